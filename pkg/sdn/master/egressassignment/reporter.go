package egressassignment

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// Rate limit of Events: each one is an API call, and those for nodes and namespaces have priority.
const (
	eventsPerSecond = 20
	eventBurst      = 100
)

// notice is an Event to send.
type notice struct {
	about                      runtime.Object
	eventType, reason, message string
}

// reporter sends an Event when a problem begins or its message changes, apart from the loop that writes, which must not wait for the rate limit.
type reporter struct {
	events  record.EventRecorder
	limiter flowcontrol.RateLimiter
	loop    *reconcile.Loop

	mu       sync.Mutex
	problems findings // that exist
	pending  map[string]*notice
}

func newReporter(events record.EventRecorder) *reporter {
	r := &reporter{events: events, limiter: flowcontrol.NewTokenBucketRateLimiter(eventsPerSecond, eventBurst), pending: map[string]*notice{}}
	r.loop = reconcile.New("egress-ip-events", r.send)
	return r
}

// set sets all problems.
func (r *reporter) set(problems findings) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, n := range problems {
		if before := r.problems[key]; before == nil || before.message != n.message {
			r.add(key, n)
		}
	}
	for key, n := range r.problems {
		if problems[key] != nil {
			continue
		}
		delete(r.pending, key)
		if n.reason == eventreason.EgressNodeUnreachable {
			r.add(key, &notice{about: n.about, eventType: corev1.EventTypeNormal, reason: eventreason.EgressNodeReachable, message: "ovsdn-controller reaches the node again, its condition Ready decides, or it hosts no egress IPs any longer"})
		}
	}
	r.problems = problems
}

// once sends an Event once. A later one with the same key replaces it until it is sent.
func (r *reporter) once(key string, n *notice) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(key, n)
}

func (r *reporter) add(key string, n *notice) {
	r.pending[key] = n
	r.loop.Add(key)
}

func (r *reporter) send(ctx context.Context, key string) error {
	if !r.isPending(key) {
		return nil
	}
	if err := r.limiter.Wait(ctx); err != nil {
		return fmt.Errorf("wait for the rate limit of Events: %w", err)
	}
	r.mu.Lock()
	n := r.pending[key]
	delete(r.pending, key)
	r.mu.Unlock()
	if n != nil {
		r.events.Event(n.about, n.eventType, n.reason, reconcile.Shorten(n.message))
	}
	return nil
}

func (r *reporter) isPending(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pending[key] != nil
}
