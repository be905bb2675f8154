package diagnosticsapi

import (
	"crypto/sha256"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// userLimit limits requests that are answered at the same time, and those of one user: a tenant must not delay the others.
type userLimit struct {
	total, each int

	mu     sync.Mutex
	sum    int
	byUser map[[sha256.Size]byte]int
}

func newUserLimit(total, each int) *userLimit {
	return &userLimit{total: total, each: each, byUser: map[[sha256.Size]byte]int{}}
}

// acquire returns the function that ends a request of the user, or the error that the client retries.
func (l *userLimit) acquire(u user, what string) (release func(), err error) {
	hash := u.hash()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.byUser[hash] >= l.each:
		return nil, apierrors.NewTooManyRequests("the controller answers "+what+" of yours; retry later", retryAfterSeconds)
	case l.sum >= l.total:
		return nil, apierrors.NewTooManyRequests("the controller answers "+what+" of other clients; retry later", retryAfterSeconds)
	}
	l.sum++
	l.byUser[hash]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.sum--
		if l.byUser[hash]--; l.byUser[hash] == 0 {
			delete(l.byUser, hash)
		}
	}, nil
}
