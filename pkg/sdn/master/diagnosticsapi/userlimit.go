package diagnosticsapi

import (
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// userLimit limits requests that are answered at the same time, and those of one user and of one namespace: a tenant must not delay the others. Users are
// distinguished by name only, since each token of a user has its own credential ID, and a tenant may create any number of tokens and of ServiceAccounts.
type userLimit struct {
	total, each int

	mu  sync.Mutex
	sum int
	by  map[share]int
}

// share is a part of the limit: that of a user or of a namespace.
type share struct{ user, namespace string }

func newUserLimit(total, each int) *userLimit {
	return &userLimit{total: total, each: each, by: map[share]int{}}
}

// acquire returns the function that ends a request of the user in the namespace, or the error that the client retries. The user has the right in the namespace.
func (l *userLimit) acquire(u user, namespace, what string) (release func(), err error) {
	shares := []share{{user: u.name}, {namespace: namespace}}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.sum >= l.total:
		return nil, apierrors.NewTooManyRequests("the controller already answers "+what+", as many as it can; retry later", retryAfterSeconds)
	case l.by[shares[0]] >= l.each:
		return nil, apierrors.NewTooManyRequests("the controller answers "+what+" of yours; retry later", retryAfterSeconds)
	case l.by[shares[1]] >= l.each:
		return nil, apierrors.NewTooManyRequests("the controller answers "+what+" of this namespace; retry later", retryAfterSeconds)
	}
	l.sum++
	for _, s := range shares {
		l.by[s]++
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.sum--
		for _, s := range shares {
			if l.by[s]--; l.by[s] == 0 {
				delete(l.by, s)
			}
		}
	}, nil
}
