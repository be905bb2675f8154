package metrics

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
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
	maxReviews       = 1024 // in each of the caches

	// renewAfter is the age at which an accepted review is renewed. If that fails it is valid until acceptedLifetime.
	renewAfter = 30 * time.Second
	// knownLifetime is the time after its last accepted review in which a token and its source address have the reserved budget. It exceeds intervals of scrapes.
	knownLifetime = time.Hour

	// unknownRate limits the reviews of all unknown tokens. A whole cluster of agents then sends few requests to the API server.
	unknownRate  = 0.2 // per second
	unknownBurst = 10
	// sourceReviewRate limits those of one source address: far below unknownRate, so that one pod cannot use it up.
	sourceReviewRate     = 1.0 / 60
	sourceReviewBurst    = 3
	sourceReviewLifetime = 5 * time.Minute // longer than an unused limiter takes to be full again
	// knownRate is reserved for renewals, and for new tokens of source addresses that had an accepted one: credentials are replaced.
	knownRate  = 1
	knownBurst = 10
)

// errTooManyReviews is the error of a request that would exceed the limits of reviews.
var errTooManyReviews = errors.New("too many requests with unknown tokens; retry in a minute")

// reviewer decides which requests are allowed: by TokenReview, whose token it is, and by SubjectAccessReview, what that user may do. It retains the
// results, accepted and refused ones apart: any number of invalid tokens does not evict a valid one.
type reviewer struct {
	kube           kubernetes.Interface
	unknown, known *rate.Limiter
	sources        *sources
	accepted       *cache.LRUExpireCache // of a question; the time of the review
	scrapers       *cache.LRUExpireCache // of a source address with an accepted token; the value is unused
	refused        *cache.LRUExpireCache // of a question; the status code
}

// question is the key of a review. It does not contain the token itself. Without a verb and a path it is that of an invalid token.
type question struct {
	token      [sha256.Size]byte
	verb, path string
}

func newReviewer(kube kubernetes.Interface) *reviewer {
	return &reviewer{
		kube: kube, unknown: rate.NewLimiter(unknownRate, unknownBurst), known: rate.NewLimiter(knownRate, knownBurst),
		sources:  newSources(sourceReviewRate, sourceReviewBurst, sourceReviewLifetime),
		accepted: cache.NewLRUExpireCache(maxReviews), scrapers: cache.NewLRUExpireCache(maxReviews), refused: cache.NewLRUExpireCache(maxReviews),
	}
}

// age returns the time since the last accepted review of the question. ok is false if there was none in knownLifetime.
func (r *reviewer) age(q question) (age time.Duration, ok bool) {
	value, ok := r.accepted.Get(q)
	at, isTime := value.(time.Time)
	return time.Since(at), ok && isTime
}

// isKnown reports whether the question was accepted in knownLifetime.
func (r *reviewer) isKnown(token, verb, path string) bool {
	_, ok := r.age(question{sha256.Sum256([]byte(token)), verb, path})
	return ok
}

// review returns the status code for a request with the token: 200, 401 or 403. It fails if the API server does not answer.
func (r *reviewer) review(ctx context.Context, source netip.Addr, token, verb, path string) (int, error) {
	q := question{sha256.Sum256([]byte(token)), verb, path}
	age, known := r.age(q)
	if known && age < renewAfter {
		return http.StatusOK, nil
	}
	for _, key := range []question{{token: q.token}, q} {
		if status, ok := r.refused.Get(key); ok {
			return status.(int), nil //nolint:forcetypeassert // written below only
		}
	}
	status, err := 0, errTooManyReviews
	switch {
	case hasExpired(token, time.Now()):
		status, err = http.StatusUnauthorized, nil
	case known && r.known.Allow() || !known && r.allowUnknown(source):
		status, err = r.ask(ctx, token, verb, path)
	}
	switch {
	case err != nil && known && age < acceptedLifetime:
		return http.StatusOK, nil
	case err != nil:
		return 0, err
	case status == http.StatusOK:
		r.accepted.Add(q, time.Now(), knownLifetime)
		r.scrapers.Add(source, nil, knownLifetime)
		return status, nil
	}
	r.accepted.Remove(q)
	if status == http.StatusUnauthorized {
		q = question{token: q.token} // holds for every path
	}
	r.refused.Add(q, status, refusedLifetime)
	return status, nil
}

// allowUnknown reports whether an unknown token of the source may be reviewed.
func (r *reviewer) allowUnknown(source netip.Addr) bool {
	limit := r.unknown
	if _, ok := r.scrapers.Get(source); ok {
		limit = r.known
	}
	return r.sources.allow(source) && limit.Allow()
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
