package unidling

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
)

const (
	agent    = "ovsdn-node" // the sender of Events
	pageSize = 500          // of lists

	// maxAge is the age of Events that wake a service, also after a restart of the controller. Clients have given up on older packets.
	maxAge = 5 * time.Minute

	// maxAhead is how far the clocks of nodes may be ahead.
	maxAhead = 30 * time.Second
)

// Informer lists and watches the Events of agents about packets for idled services. It stores none: users can create any number of them.
type Informer struct {
	client   corev1client.EventInterface
	selector string
	observe  func(e *corev1.Event, isNew bool) // isNew: not of a list. nil before the controller is created
}

// NewInformer returns an informer of all namespaces.
func NewInformer(kube kubernetes.Interface) *Informer {
	return &Informer{
		client:   kube.CoreV1().Events(metav1.NamespaceAll),
		selector: fields.Set{"reason": eventreason.NeedPods, "involvedObject.kind": "Service", "source": agent}.String(),
	}
}

// run calls observe for each Event that exists, is created or updated, until the context ends.
func (i *Informer) run(ctx context.Context) {
	cache.NewNamedReflector("idled services", i, &corev1.Event{}, observer{i}, 0).RunWithContext(ctx)
}

// IsWatchListSemanticsUnSupported disables streamed lists in the reflector, which would collect all Events.
func (*Informer) IsWatchListSemanticsUnSupported() bool { return true }

// ListWithContext observes all Events page by page, and returns a list without any.
func (i *Informer) ListWithContext(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
	options := metav1.ListOptions{FieldSelector: i.selector, Limit: pageSize}
	for {
		page, err := i.client.List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("list Events: %w", err)
		}
		for n := range page.Items {
			i.observe(&page.Items[n], false)
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return &corev1.EventList{ListMeta: metav1.ListMeta{ResourceVersion: page.ResourceVersion}}, nil
		}
	}
}

// WatchWithContext watches the Events.
func (i *Informer) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.FieldSelector = i.selector
	return i.client.Watch(ctx, options)
}

// List is ListWithContext for the type of the reflector, which does not call it.
func (i *Informer) List(options metav1.ListOptions) (runtime.Object, error) {
	return i.ListWithContext(context.Background(), options)
}

// Watch is WatchWithContext for the type of the reflector, which does not call it.
func (i *Informer) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return i.WatchWithContext(context.Background(), options)
}

// observer is the reflector's store, which stores nothing.
type observer struct{ *Informer }

func (o observer) Add(obj any) error {
	if e, ok := obj.(*corev1.Event); ok {
		o.observe(e, true)
	}
	return nil
}

func (o observer) Update(obj any) error      { return o.Add(obj) }
func (observer) Delete(any) error            { return nil }
func (observer) Replace([]any, string) error { return nil }
func (observer) Resync() error               { return nil }

// observe requests that the service of an Event is woken. It does not rely on the API server's selection of Events. isNew: the Event has occurred since the start.
func (c *Controller) observe(e *corev1.Event, isNew bool) {
	if !isOfAgent(e) {
		return
	}
	at := lastTime(e)
	if !isRecent(at) {
		if isNew {
			c.log.V(2).Info("Ignored an Event about a packet for an idled service", "service", cache.NewObjectName(e.InvolvedObject.Namespace, e.InvolvedObject.Name),
				"eventTime", at, "maxAge", maxAge, "action", syncClocks)
		}
		return
	}
	if c.requests.add(cache.NewObjectName(e.InvolvedObject.Namespace, e.InvolvedObject.Name), at) {
		c.loop.Add(e.InvolvedObject.Namespace)
	}
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

// isRecent reports whether a packet still wakes its service.
func isRecent(at time.Time) bool {
	age := time.Since(at)
	return age <= maxAge && age >= -maxAhead
}
