package certificaterequests

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/cache"
)

// Budget of the requests of one node. Further ones stay pending: a node that creates any number of requests costs the leader no more API calls, and does not
// delay those of other nodes. kube-controller-manager deletes pending requests after a day.
const (
	nodeInterval = 2 * time.Minute
	nodeBurst    = 10
	maxNodes     = 10_000
	nodeLifetime = nodeBurst * nodeInterval // after which an unused budget is full again
)

// budgets limits the requests of each node.
type budgets struct {
	mu    sync.Mutex
	nodes *cache.LRUExpireCache // of *rate.Limiter
}

func newBudgets() *budgets { return &budgets{nodes: cache.NewLRUExpireCache(maxNodes)} }

// take takes one request from the node's budget, or returns the time until it has one.
func (b *budgets) take(node string) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	value, _ := b.nodes.Get(node)
	limiter, ok := value.(*rate.Limiter)
	if !ok {
		limiter = rate.NewLimiter(rate.Every(nodeInterval), nodeBurst)
	}
	b.nodes.Add(node, limiter, nodeLifetime)
	r := limiter.Reserve()
	pause := r.Delay()
	if pause > 0 {
		r.Cancel()
	}
	return pause
}
