package diagnosticsapi

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"io"
	"maps"
	"slices"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/cache"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
)

const (
	reviewLifetime = 10 * time.Second // of results: a revoked right ends, and a new one begins, after it
	reviewTimeout  = 5 * time.Second
	maxReviews     = 4096 // in each of the caches
)

// access is what a user wants to do. An empty name is that of a list without a name, or of an object that is created.
type access struct {
	verb, resource, name string

	subresource string // "": none
	namespace   string // "": at the cluster scope
	group       string // "": that of diagnostics
}

// resourceName returns the resource with its subresource, as RBAC has it.
func (a access) resourceName() string {
	if a.subresource == "" {
		return a.resource
	}
	return a.resource + "/" + a.subresource
}

// groupVersion returns those of the resource. The version of another group does not matter to authorizers.
func (a access) groupVersion() schema.GroupVersion {
	if a.group == "" {
		return groupVersion()
	}
	return schema.GroupVersion{Group: a.group, Version: "*"}
}

// refusal is the message for a user without the right, as that of the API server.
func (a access) refusal(u user) string {
	scope := "at the cluster scope"
	if a.namespace != "" {
		scope = fmt.Sprintf("in the namespace %q", a.namespace)
	}
	return fmt.Sprintf("User %q cannot %s resource %q in API group %q %s", u.name, a.verb, a.resourceName(), a.groupVersion().Group, scope)
}

// question is the key of a review.
type question struct {
	user [sha256.Size]byte
	access
}

// authorizer decides by SubjectAccessReview. It retains accepted and refused results apart: refused ones do not evict accepted ones.
type authorizer struct {
	reviews           authorizationclient.SubjectAccessReviewInterface
	accepted, refused *cache.LRUExpireCache // of a question; an accepted value is unused, a refused one is the reason
}

func newAuthorizer(reviews authorizationclient.SubjectAccessReviewInterface) *authorizer {
	return &authorizer{reviews: reviews, accepted: cache.NewLRUExpireCache(maxReviews), refused: cache.NewLRUExpireCache(maxReviews)}
}

// allowed reports whether the user has the right, and otherwise the reason that the authorizer of the cluster reports, if any.
func (a *authorizer) allowed(ctx context.Context, u user, want access) (allowed bool, reason string, err error) {
	q := question{u.hash(), want}
	if _, ok := a.accepted.Get(q); ok {
		return true, "", nil
	}
	if value, ok := a.refused.Get(q); ok {
		reason, _ := value.(string)
		return false, reason, nil
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	review, err := a.reviews.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: u.name, UID: u.uid, Groups: u.groups, Extra: u.extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: want.groupVersion().Group, Version: want.groupVersion().Version, Resource: want.resource, Subresource: want.subresource, Verb: want.verb, Name: want.name, Namespace: want.namespace,
		},
	}}, metav1.CreateOptions{})
	if err != nil {
		return false, "", fmt.Errorf("create SubjectAccessReview: %w", err)
	}
	if review.Status.Allowed && !review.Status.Denied {
		a.accepted.Add(q, nil, reviewLifetime)
		return true, "", nil
	}
	reason = printable(review.Status.Reason, maxMessage)
	a.refused.Add(q, reason, reviewLifetime)
	return false, reason, nil
}

// hash identifies the user with all that an authorizer can distinguish. Each string is preceded by its length, each list by its number of strings.
func (u user) hash() (sum [sha256.Size]byte) {
	h := sha256.New()
	writeStrings(h, u.name, u.uid)
	writeStrings(h, u.groups...)
	for _, key := range slices.Sorted(maps.Keys(u.extra)) {
		writeStrings(h, key)
		writeStrings(h, u.extra[key]...)
	}
	h.Sum(sum[:0])
	return sum
}

func writeStrings(h hash.Hash, list ...string) {
	var number [8]byte
	h.Write(binary.BigEndian.AppendUint64(number[:0], uint64(len(list))))
	for _, s := range list {
		h.Write(binary.BigEndian.AppendUint64(number[:0], uint64(len(s))))
		_, _ = io.WriteString(h, s) // never fails
	}
}
