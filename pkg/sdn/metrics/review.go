package metrics

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/kubernetes"
)

const (
	// The lifetimes of reviews: a revoked right ends after acceptedLifetime, a new one begins after refusedLifetime.
	acceptedLifetime = time.Minute
	refusedLifetime  = 10 * time.Second
	maxReviews       = 1024 // in each of the two caches

	// reviewRate limits the requests to the API server that clients without a valid token cause.
	reviewRate  = 5 // per second
	reviewBurst = 20
)

// errTooManyReviews is the error of a request that would exceed reviewRate.
var errTooManyReviews = errors.New("too many requests with unknown tokens")

// reviewer decides which requests are allowed: by TokenReview, whose token it is, and by SubjectAccessReview, what that user may do. It retains the
// results, accepted and refused ones apart: any number of invalid tokens does not evict a valid one.
type reviewer struct {
	kube     kubernetes.Interface
	limit    *rate.Limiter
	accepted *cache.LRUExpireCache // of a question; the value is unused
	refused  *cache.LRUExpireCache // of a question; the status code
}

// question is the key of a review. It does not contain the token itself.
type question struct {
	token      [sha256.Size]byte
	verb, path string
}

func newReviewer(kube kubernetes.Interface) *reviewer {
	return &reviewer{
		kube: kube, limit: rate.NewLimiter(reviewRate, reviewBurst),
		accepted: cache.NewLRUExpireCache(maxReviews), refused: cache.NewLRUExpireCache(maxReviews),
	}
}

// review returns the status code for a request with the token: 200, 401 or 403. It fails if the API server does not answer.
func (r *reviewer) review(ctx context.Context, token, verb, path string) (int, error) {
	q := question{sha256.Sum256([]byte(token)), verb, path}
	if _, ok := r.accepted.Get(q); ok {
		return http.StatusOK, nil
	}
	if status, ok := r.refused.Get(q); ok {
		return status.(int), nil //nolint:forcetypeassert // written below only
	}
	if !r.limit.Allow() {
		return 0, errTooManyReviews
	}
	status, err := r.ask(ctx, token, verb, path)
	switch {
	case err != nil:
		return 0, err
	case status == http.StatusOK:
		r.accepted.Add(q, nil, acceptedLifetime)
	default:
		r.refused.Add(q, status, refusedLifetime)
	}
	return status, nil
}

// ask sends the two reviews.
func (r *reviewer) ask(ctx context.Context, token, verb, path string) (int, error) {
	identity, err := r.kube.AuthenticationV1().TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return 0, fmt.Errorf("create TokenReview: %w", err)
	}
	if !identity.Status.Authenticated {
		return http.StatusUnauthorized, nil
	}
	user := identity.Status.User
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for key, values := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	access, err := r.kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
		NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: verb},
	}}, metav1.CreateOptions{})
	if err != nil {
		return 0, fmt.Errorf("create SubjectAccessReview: %w", err)
	}
	if !access.Status.Allowed {
		return http.StatusForbidden, nil
	}
	return http.StatusOK, nil
}
