package diagnosticsserver

import (
	"sync"

	"golang.org/x/time/rate"
)

// podLimits limits what an agent does for users at pods, by number and by rate: a tenant must not delay the others.
type podLimits struct {
	total, each int // at the same time, and of pods of one namespace
	rate        *rate.Limiter

	mu          sync.Mutex
	running     int
	byNamespace map[string]int
}

func newPodLimits(total, each, perSecond int) *podLimits {
	return &podLimits{total: total, each: each, rate: rate.NewLimiter(rate.Limit(perSecond), perSecond), byNamespace: map[string]int{}}
}

// acquire returns the function that ends what was begun at a pod of the namespace; nil if there are too many.
func (l *podLimits) acquire(namespace string) (release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running >= l.total || l.byNamespace[namespace] >= l.each || !l.rate.Allow() {
		return nil
	}
	l.running++
	l.byNamespace[namespace]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.running--
		if l.byNamespace[namespace]--; l.byNamespace[namespace] == 0 {
			delete(l.byNamespace, namespace)
		}
	}
}
