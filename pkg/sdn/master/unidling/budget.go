package unidling

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/cache"
)

// Budget of a namespace, whose users can create any number of Events: services of other namespaces do not wait for them.
const (
	namespaceInterval = time.Second // for each service
	namespaceBurst    = 20
	maxNamespaces     = 10_000
	namespaceLifetime = namespaceBurst * namespaceInterval // after which an unused budget is full again

	overBudgetRetry = 5 * time.Second
)

// budgets limits how many services of each namespace are woken.
type budgets struct {
	mu         sync.Mutex
	namespaces *cache.LRUExpireCache // of *rate.Limiter
}

func newBudgets() *budgets { return &budgets{namespaces: cache.NewLRUExpireCache(maxNamespaces)} }

// take takes one service from the namespace's budget, and reports whether it had one.
func (b *budgets) take(namespace string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	value, _ := b.namespaces.Get(namespace)
	limiter, ok := value.(*rate.Limiter)
	if !ok {
		limiter = rate.NewLimiter(rate.Every(namespaceInterval), namespaceBurst)
	}
	b.namespaces.Add(namespace, limiter, namespaceLifetime)
	return limiter.Allow()
}
