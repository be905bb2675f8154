// Package unidling wakes idled services: when an agent reports a packet for one in an Event, it scales the objects that the service's annotation lists, and removes the
// annotations (docs/idling.md).
package unidling

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/scale"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

const (
	workers    = 4 // one for each namespace at most
	syncClocks = "synchronize the clocks of nodes and of users who idle services"
	minBackoff = 100 * time.Millisecond
	maxBackoff = 10 * time.Second

	// failureLifetime is for how long a service whose objects can't be scaled is not tried again, if it does not change.
	failureLifetime = 5 * time.Minute
	maxFailures     = 10_000

	// maxWait is how long the annotations of a woken service remain while it has no endpoints. In that time, and for 30 s longer, agents hold each packet for the service
	// for 30 s; later they reject them.
	maxWait      = 2 * time.Minute
	pollInterval = 10 * time.Second // agents see the endpoints at once
)

// Mapper returns the resource of a kind.
type Mapper interface {
	RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error)
}

// Clients are the clients of the API server.
type Clients struct {
	Kube     kubernetes.Interface
	Metadata metadata.Interface // of Services and Endpoints
	Scales   scale.ScalesGetter
	Mapper   Mapper
	Events   record.EventRecorder
}

// Controller wakes services. It has no state that outlives a term: a new leader reads the Events that the API server still has, and finds services that have endpoints.
type Controller struct {
	Clients
	events   *Informer
	loop     *reconcile.Loop // of namespaces in turn, so that one with many services has one worker and one timer
	requests *requests
	budgets  *budgets
	failures *utilcache.LRUExpireCache // versions of services whose objects can't be scaled, by service
	left     leftovers
	log      klog.Logger // of Run, which starts the informer
}

// New returns a controller of one term, which runs the informer. An informer has one controller.
func New(clients Clients, events *Informer) (*Controller, error) {
	if events.observe != nil {
		return nil, errors.New("the informer of Events has a controller")
	}
	c := &Controller{
		Clients: clients, events: events, requests: newRequests(), budgets: newBudgets(), failures: utilcache.NewLRUExpireCache(maxFailures),
	}
	c.loop = reconcile.New("unidling", c.reconcile).WithMaxBackoff(maxBackoff)
	events.observe = c.observe
	return c, nil
}

// Run reconciles until the context ends.
func (c *Controller) Run(ctx context.Context) {
	c.log = klog.FromContext(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { c.events.run(ctx) })
	left := reconcile.NewRunner("unidling-leftovers", time.Second, c.removeLeftovers)
	left.Trigger()
	running.Go(func() { left.Run(ctx) })
	c.loop.Run(ctx, workers)
}

// reconcile makes an attempt for one service of the namespace. Those of other namespaces precede its next one.
func (c *Controller) reconcile(ctx context.Context, namespace string) error {
	defer c.schedule(namespace)
	name, r, due := c.requests.first(namespace)
	if name == "" || due.After(time.Now()) {
		return nil
	}
	service := cache.NewObjectName(namespace, name)
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("service", name))
	if err := c.reconcileService(ctx, service, r); err != nil {
		c.requests.update(service, func(r *request) {
			r.due = time.Now().Add(min(minBackoff<<min(r.failures, 10), maxBackoff))
			r.failures++
		})
		return fmt.Errorf("idled service %s: %w", name, err)
	}
	return nil
}

// schedule adds the namespace again when its next service is due.
func (c *Controller) schedule(namespace string) {
	if name, _, due := c.requests.first(namespace); name != "" {
		c.loop.AddAfter(namespace, time.Until(due))
	}
}

// errOverBudget ends an attempt that is repeated when the budget of the namespace allows it.
var errOverBudget = errors.New("the namespace wakes too many objects")

func (c *Controller) reconcileService(ctx context.Context, service cache.ObjectName, r request) error {
	if r.woken.IsZero() && !isRecent(r.at) {
		c.requests.finish(service, r)
		return nil
	}
	if !c.pay(ctx, service.Namespace, r.activity(), r.tokens) {
		return nil
	}
	if !r.woken.IsZero() {
		return c.awaitEndpoints(ctx, service, r)
	}
	idledAt, err := c.wake(ctx, service, r)
	switch {
	case errors.Is(err, errOverBudget):
		return nil
	case err != nil:
		return err
	case idledAt.IsZero():
		c.requests.finish(service, r)
		return nil
	}
	r.woken, r.idledAt = time.Now(), idledAt
	c.requests.update(service, func(current *request) {
		current.woken, current.idledAt = r.woken, r.idledAt
		current.tokens, current.failures = 1, 0
	})
	return c.awaitEndpoints(ctx, service, r)
}

// pay takes tokens from the budget of the namespace, or postpones the activity until it has them.
func (c *Controller) pay(ctx context.Context, namespace string, a activity, tokens int) bool {
	wait := c.budgets.take(namespace, a, tokens)
	if wait > 0 {
		klog.FromContext(ctx).V(5).Info("Too many requests of a namespace", "namespace", namespace, "retryAfter", wait)
		c.requests.pause(namespace, a, wait)
	}
	return wait == 0
}

// payTargets takes what the targets of a service cost in addition to the tokens of its attempt, or makes the next attempt take all.
func (c *Controller) payTargets(ctx context.Context, service cache.ObjectName, r request, targets int) bool {
	tokens := 1 + targets
	if tokens <= r.tokens || c.pay(ctx, service.Namespace, waking, tokens-r.tokens) {
		return true
	}
	c.requests.update(service, func(r *request) { r.tokens = tokens })
	return false
}

// setReported records the message of an Event about a failure, and reports whether it is a new one.
func (c *Controller) setReported(service cache.ObjectName, message string) (isNew bool) {
	c.requests.update(service, func(r *request) { isNew, r.reported = r.reported != message, message })
	return isNew
}
