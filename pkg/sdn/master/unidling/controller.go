// Package unidling wakes idled services: when an agent reports a packet for one in an Event, it scales the objects that the service's annotation lists, and removes the
// annotations (docs/idling.md).
package unidling

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/scale"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

const (
	workers    = 4
	agent      = "ovsdn-node" // the sender of Events
	syncClocks = "synchronize the clocks of nodes and of users who idle services"
	maxBackoff = 10 * time.Second

	// maxAge is the age of Events that wake a service, also after a restart of the controller. Clients have given up on older packets. It is also how far the clocks of
	// nodes may be ahead.
	maxAge = 5 * time.Minute

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

// Controller wakes services. It has no state that outlives a term: a new leader reads the Events that the API server still has.
type Controller struct {
	Clients
	events  cache.SharedIndexInformer
	loop    *reconcile.Loop // of Services
	budgets *budgets
	log     klog.Logger // of Run, which starts the informer

	mu       sync.Mutex
	requests map[string]request // by service, until it has endpoints or the request is too old
}

// request is the last packet that an agent reported for a service.
type request struct {
	at       time.Time
	reported string    // the message of the last Event about a failure, so that retries do not repeat it
	woken    time.Time // when all targets were scaled; zero: not yet
	idledAt  time.Time // of the service that was woken
}

// NewInformer returns an informer of the Events of agents about packets for idled services.
func NewInformer(kube kubernetes.Interface) cache.SharedIndexInformer {
	selector := fields.Set{"reason": eventreason.NeedPods, "involvedObject.kind": "Service", "source": agent}.String()
	return coreinformers.NewFilteredEventInformer(kube, metav1.NamespaceAll, 0, cache.Indexers{}, func(o *metav1.ListOptions) { o.FieldSelector = selector })
}

// New returns a controller of one term, which runs the informer.
func New(clients Clients, events cache.SharedIndexInformer) (*Controller, error) {
	c := &Controller{Clients: clients, events: events, budgets: newBudgets(), requests: map[string]request{}}
	c.loop = reconcile.New("unidling", c.reconcile).WithMaxBackoff(maxBackoff)
	if err := events.SetTransform(trim); err != nil {
		return nil, fmt.Errorf("watch Events: %w", err)
	}
	_, err := events.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(o any, isInInitialList bool) { c.observe(o, !isInInitialList) },
		UpdateFunc: func(previous, now any) { c.observe(now, isLater(previous, now)) },
	})
	if err != nil {
		return nil, fmt.Errorf("watch Events: %w", err)
	}
	return c, nil
}

// Run reconciles until the context ends.
func (c *Controller) Run(ctx context.Context) {
	c.log = klog.FromContext(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { c.events.RunWithContext(ctx) })
	c.loop.Run(ctx, workers)
}

// trim retains what observe reads: users can create Events with large messages.
func trim(o any) (any, error) {
	e, ok := o.(*corev1.Event)
	if !ok {
		return o, nil
	}
	about := e.InvolvedObject
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: e.Namespace, Name: e.Name, UID: e.UID, ResourceVersion: e.ResourceVersion},
		InvolvedObject: corev1.ObjectReference{Kind: about.Kind, APIVersion: about.APIVersion, Namespace: about.Namespace, Name: about.Name},
		Reason:         e.Reason, Source: corev1.EventSource{Component: e.Source.Component},
		ReportingController: e.ReportingController,
		FirstTimestamp:      e.FirstTimestamp, LastTimestamp: e.LastTimestamp, EventTime: e.EventTime, Series: e.Series,
	}, nil
}

// isLater reports whether the Event occurred again: a restart of the watch repeats those that did not.
func isLater(previous, now any) bool {
	a, wasEvent := previous.(*corev1.Event)
	b, isEvent := now.(*corev1.Event)
	return wasEvent && isEvent && !lastTime(a).Equal(lastTime(b))
}

// observe requests that the service of an Event is woken. It does not rely on the API server's selection of Events. isNew: the Event has occurred since the start.
func (c *Controller) observe(o any, isNew bool) {
	e, ok := o.(*corev1.Event)
	if !ok || !isOfAgent(e) {
		return
	}
	at := lastTime(e)
	key := cache.NewObjectName(e.InvolvedObject.Namespace, e.InvolvedObject.Name).String()
	if !isRecent(at) {
		if isNew {
			c.log.V(2).Info("Ignored an Event about a packet for an idled service", "service", key, "eventTime", at, "maxAge", maxAge, "action", syncClocks)
		}
		return
	}
	c.mu.Lock()
	r := c.requests[key]
	if r.at.Before(at) {
		r.at = at
		c.requests[key] = r
	}
	c.mu.Unlock()
	c.loop.AddUnlessFailing(key)
}

// isOfAgent reports whether the Event is one that agents send. Users who may create Events in a namespace can forge it for the services of this namespace.
func isOfAgent(e *corev1.Event) bool {
	sender := e.Source.Component
	if sender == "" {
		sender = e.ReportingController
	}
	about := e.InvolvedObject
	return e.Reason == eventreason.NeedPods && sender == agent && about.Kind == "Service" && (about.APIVersion == "v1" || about.APIVersion == "") &&
		about.Name != "" && about.Namespace != "" && about.Namespace == e.Namespace
}

// lastTime returns when the Event occurred last, by the clock of the node.
func lastTime(e *corev1.Event) time.Time {
	at := e.LastTimestamp.Time
	others := []time.Time{e.FirstTimestamp.Time, e.EventTime.Time}
	if e.Series != nil {
		others = append(others, e.Series.LastObservedTime.Time)
	}
	for _, t := range others {
		if t.After(at) {
			at = t
		}
	}
	return at
}

func isRecent(at time.Time) bool { return time.Since(at).Abs() <= maxAge }

func (c *Controller) reconcile(ctx context.Context, key string) error {
	c.mu.Lock()
	r, requested := c.requests[key]
	c.mu.Unlock()
	if !requested {
		return nil
	}
	service, err := cache.ParseObjectName(key)
	if err != nil {
		return fmt.Errorf("parse key: %w", err)
	}
	if !r.woken.IsZero() {
		return c.awaitEndpoints(ctx, service, r)
	}
	if !isRecent(r.at) {
		c.finish(service, r)
		return nil
	}
	if !c.budgets.take(service.Namespace) {
		klog.FromContext(ctx).V(5).Info("Too many Events of a namespace", "namespace", service.Namespace, "retryAfter", overBudgetRetry)
		c.loop.AddAfter(key, wait.Jitter(overBudgetRetry, 0.5))
		return nil
	}
	idledAt, err := c.wake(ctx, service, r)
	if err != nil {
		return err
	}
	if idledAt.IsZero() {
		c.finish(service, r)
		return nil
	}
	r.woken, r.idledAt = time.Now(), idledAt
	c.update(service, func(current *request) { current.woken, current.idledAt = r.woken, r.idledAt })
	return c.awaitEndpoints(ctx, service, r)
}

// finish deletes the request, unless a later packet was reported in the meantime: its Event has added the key again.
func (c *Controller) finish(service cache.ObjectName, finished request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r, ok := c.requests[service.String()]; ok && !r.at.After(finished.at) {
		delete(c.requests, service.String())
	}
}

// update changes the request, if it is not finished.
func (c *Controller) update(service cache.ObjectName, change func(*request)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r, ok := c.requests[service.String()]; ok {
		change(&r)
		c.requests[service.String()] = r
	}
}

// setReported records the message of an Event about a failure, and reports whether it is a new one.
func (c *Controller) setReported(service cache.ObjectName, message string) (isNew bool) {
	c.update(service, func(r *request) { isNew, r.reported = r.reported != message, message })
	return isNew
}
