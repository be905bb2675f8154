package unidling

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/cache"
)

// Budget of a namespace, whose users can create any number of Events and long lists: services of other namespaces do not wait for them.
// A token pays for about two requests to the API server: to read a service, or to read and scale one object.
const (
	tokensPerSecond   = 2
	namespaceBurst    = 40 // more than the longest list takes
	maxNamespaces     = 10_000
	namespaceLifetime = namespaceBurst * time.Second / tokensPerSecond // after which an unused budget is full again
)

// activity is what a budget is for: services that wait for endpoints do not delay those that are to be woken.
type activity int

const (
	waking activity = iota
	polling
	activities // their number
)

// budgets limits the requests to the API server for each namespace.
type budgets struct {
	mu         sync.Mutex
	namespaces *cache.LRUExpireCache // of *rate.Limiter, by budgetKey
}

type budgetKey struct {
	namespace string
	activity  activity
}

func newBudgets() *budgets { return &budgets{namespaces: cache.NewLRUExpireCache(maxNamespaces)} }

// take takes the tokens, at most namespaceBurst, from the namespace's budget. If it has fewer, it takes none, and returns the time after which it has them.
func (b *budgets) take(namespace string, a activity, tokens int) (wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := budgetKey{namespace, a}
	value, _ := b.namespaces.Get(key)
	limiter, ok := value.(*rate.Limiter)
	if !ok {
		limiter = rate.NewLimiter(tokensPerSecond, namespaceBurst)
	}
	b.namespaces.Add(key, limiter, namespaceLifetime)
	now := time.Now()
	taken := limiter.ReserveN(now, tokens)
	if wait = taken.DelayFrom(now); wait > 0 {
		taken.CancelAt(now)
	}
	return wait
}
