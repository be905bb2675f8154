// Package unsupported reports in Events what users ask for in objects of the cluster and this network ignores: in mode subnet egress IPs in NetNamespaces and
// HostSubnets, and policies of kinds that are not enforced (config.UnsupportedKinds).
package unsupported

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/discovery"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// Rate limit of Events: each one is an API call, and those for nodes and namespaces have priority.
const (
	eventsPerSecond = 20
	eventBurst      = 100
)

// Clients are the clients of the API server.
type Clients struct {
	Metadata metadata.Interface
	Events   record.EventRecorder
}

// Controller sends an Event for an object when it is created, and when what it asks for changes. Each leader sends them again, since Events expire. It
// writes nothing else.
type Controller struct {
	Clients
	mode     atomic.Uint32 // a config.Mode
	policies []ignoredPolicies
	loops    []*reconcile.Loop       // one for each kind
	limiter  flowcontrol.RateLimiter // of Events

	egress []egressKind // NetNamespaces and HostSubnets
}

// egressKind is a kind whose support depends on the mode.
type egressKind struct {
	informer cache.SharedIndexInformer
	loop     *reconcile.Loop
}

// ignoredPolicies are the policies of a kind.
type ignoredPolicies struct {
	config.UnsupportedKind
	informer cache.SharedIndexInformer // only of their metadata; runs once the API server serves the kind
}

// New returns a controller that watches the informers of NetNamespaces and HostSubnets, which the caller starts.
func New(clients Clients, netNamespaces, hostSubnets cache.SharedIndexInformer) (*Controller, error) {
	c := &Controller{Clients: clients, limiter: flowcontrol.NewTokenBucketRateLimiter(eventsPerSecond, eventBurst)}
	errs := []error{watch(c, "netnamespaces", netNamespaces, sameNetNamespace, c.netNamespace), watch(c, "hostsubnets", hostSubnets, sameHostSubnet, c.hostSubnet)}
	c.egress = []egressKind{{netNamespaces, c.loops[0]}, {hostSubnets, c.loops[1]}}
	for _, kind := range config.UnsupportedKinds() {
		informer := metadatainformer.NewFilteredMetadataInformer(clients.Metadata, kind.Resource, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
		p := ignoredPolicies{kind, informer}
		c.policies = append(c.policies, p)
		errs = append(errs, informer.SetTransform(trim), watch(c, kind.Resource.Resource, informer, sameGeneration,
			func(ctx context.Context, o *metav1.PartialObjectMetadata) error {
				return c.report(ctx, p.reference(o), []string{p.Ignored})
			}))
	}
	return c, errors.Join(errs...)
}

// watch adds a loop that calls report for the objects of an informer.
func watch[T any](c *Controller, resource string, informer cache.SharedIndexInformer, same func(before, now any) bool, report func(context.Context, *T) error) error {
	loop := reconcile.New("unsupported-"+resource, func(ctx context.Context, key string) error {
		obj, exists, err := informer.GetStore().GetByKey(key)
		if o, ok := obj.(*T); err == nil && exists && ok {
			return report(ctx, o)
		}
		return nil
	})
	c.loops = append(c.loops, loop)
	return loop.WatchUnless(informer, same)
}

// trim removes what an Event does not need before an object is cached.
func trim(o any) (any, error) {
	if m, ok := o.(*metav1.PartialObjectMetadata); ok {
		return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, Generation: m.Generation,
		}}, nil
	}
	return o, nil
}

func sameNetNamespace(before, now any) bool {
	b, ok := before.(*networkv1.NetNamespace)
	n, ok2 := now.(*networkv1.NetNamespace)
	return ok && ok2 && b.UID == n.UID && slices.Equal(b.EgressIPs, n.EgressIPs)
}

func sameHostSubnet(before, now any) bool {
	b, ok := before.(*networkv1.HostSubnet)
	n, ok2 := now.(*networkv1.HostSubnet)
	return ok && ok2 && b.UID == n.UID && slices.Equal(b.EgressIPs, n.EgressIPs) && slices.Equal(b.EgressCIDRs, n.EgressCIDRs)
}

func sameGeneration(before, now any) bool {
	b, ok := before.(metav1.Object)
	n, ok2 := now.(metav1.Object)
	return ok && ok2 && b.GetUID() == n.GetUID() && b.GetGeneration() == n.GetGeneration()
}

// SetMode sets the mode of the network, before Run or later.
func (c *Controller) SetMode(mode config.Mode) {
	if config.Mode(c.mode.Swap(uint32(mode))) == mode {
		return
	}
	for _, kind := range c.egress {
		for _, key := range kind.informer.GetStore().ListKeys() {
			kind.loop.Add(key)
		}
	}
}

// Run reconciles until the context ends. CRDs of policies may be created later.
func (c *Controller) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, p := range c.policies {
		running.Go(func() {
			if err := discovery.AwaitResource(ctx, c.Metadata, p.Resource); err == nil {
				p.informer.RunWithContext(ctx)
			}
		})
	}
	for _, loop := range c.loops {
		running.Go(func() { loop.Run(ctx, 1) }) // enough for eventsPerSecond
	}
	running.Wait()
}

func (c *Controller) netNamespace(ctx context.Context, o *networkv1.NetNamespace) error {
	return c.report(ctx, o, config.UnsupportedOfNetNamespace(o, config.Mode(c.mode.Load())))
}

func (c *Controller) hostSubnet(ctx context.Context, o *networkv1.HostSubnet) error {
	return c.report(ctx, o, config.UnsupportedOfHostSubnet(o, config.Mode(c.mode.Load())))
}

// reference returns the object of an Event about a policy.
func (p ignoredPolicies) reference(o *metav1.PartialObjectMetadata) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: p.Resource.GroupVersion().String(), Kind: p.Kind, Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion,
	}
}

// report sends an Event about what the object asks for, if that is anything.
func (c *Controller) report(ctx context.Context, about runtime.Object, ignored []string) error {
	if len(ignored) == 0 {
		return nil
	}
	if err := c.limiter.Wait(ctx); err != nil {
		return fmt.Errorf("wait for the rate limit of Events: %w", err)
	}
	c.Events.Event(about, corev1.EventTypeWarning, eventreason.NotSupported, "the network ignores "+strings.Join(ignored, "; "))
	return nil
}
