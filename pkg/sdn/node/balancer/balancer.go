// Package balancer installs the flows that send connections to services to their endpoints (--service-proxy=ovs).
package balancer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// workers bounds how many changes wait for the switch at once; the store sends them in one bundle.
const workers = 16

// indexService is the index of slices by the namespace and name of their service.
const indexService = "service"

// Events reports problems on this node's Node object.
type Events interface {
	WarnNode(reason, message string)
}

// Options are the dependencies of a Balancer.
type Options struct {
	Node     pipeline.Node
	NodeName string
	Services cache.SharedIndexInformer // with the transform endpoints.TransformService
	Slices   cache.SharedIndexInformer // of EndpointSlices, prepared by Prepare
	Nodes    cache.SharedIndexInformer // of this node's Node; others are ignored
	Store    *flowstore.Store
	Events   Events
}

// Balancer compiles services and their endpoints.
type Balancer struct {
	node     pipeline.Node
	nodeName string
	services cache.Store   // of *endpoints.Service
	slices   cache.Indexer // of *endpoints.Slice
	store    *flowstore.Store
	events   Events
	loop     *reconcile.Loop
	limits   *reconcile.Runner // of reportLimits

	mu       sync.Mutex
	zone     string            // of this node
	flushed  udpFrontends      // by which connections are evaluated
	reported map[string]report // by service; without services that have nothing to report
	// limited is the number of services that each limit concerns; unreported are limits that wait for an Event.
	limited    [limits]int
	unreported [limits]bool
}

// Prepare adds the transform and the index that New requires to an informer of EndpointSlices, which must not run yet.
func Prepare(serviceNetwork netip.Prefix, slices cache.SharedIndexInformer) error {
	if err := slices.SetTransform(endpoints.TransformSlice(serviceNetwork)); err != nil {
		return fmt.Errorf("transform EndpointSlices: %w", err)
	}
	err := slices.AddIndexers(cache.Indexers{indexService: func(obj any) ([]string, error) {
		if s, ok := obj.(*endpoints.Slice); ok && s.ServiceKey() != "" {
			return []string{s.ServiceKey()}, nil
		}
		return nil, nil
	}})
	if err != nil {
		return fmt.Errorf("index EndpointSlices: %w", err)
	}
	return nil
}

// New returns a Balancer that watches the informers.
func New(o Options) (*Balancer, error) {
	b := &Balancer{
		node: o.Node, nodeName: o.NodeName, services: o.Services.GetStore(), slices: o.Slices.GetIndexer(), store: o.Store, events: o.Events,
		flushed: newUDPFrontends(), reported: map[string]report{},
	}
	b.loop = reconcile.New("services", b.reconcile)
	b.limits = reconcile.NewRunner("limits of services", limitsInterval, b.reportLimits)
	if err := b.loop.Watch(o.Services); err != nil {
		return nil, err
	}
	if err := b.watchSlices(o.Slices); err != nil {
		return nil, err
	}
	if err := b.watchNode(o.Nodes); err != nil {
		return nil, err
	}
	o.Store.EvaluateConnections(pipeline.NATZones(), b.evaluateConnections)
	return b, nil
}

// watchSlices queues the services of slices that change.
func (b *Balancer) watchSlices(informer cache.SharedIndexInformer) error {
	add := func(obj any) {
		if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = tombstone.Obj
		}
		if s, ok := obj.(*endpoints.Slice); ok && s.ServiceKey() != "" {
			b.loop.Add(s.ServiceKey())
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: add,
		UpdateFunc: func(previous, current any) {
			old, ok := previous.(*endpoints.Slice)
			if s, isSlice := current.(*endpoints.Slice); ok && isSlice && old.SameEndpoints(s) {
				return
			}
			add(previous)
			add(current)
		},
		DeleteFunc: add,
	})
	if err != nil {
		return fmt.Errorf("watch EndpointSlices: %w", err)
	}
	return nil
}

// watchNode follows the zone of this node, by which topology hints select endpoints. All services are compiled again when it changes.
func (b *Balancer) watchNode(informer cache.SharedIndexInformer) error {
	handle := func(obj any) {
		node, ok := obj.(*corev1.Node)
		if !ok || node.Name != b.nodeName {
			return
		}
		zone := node.Labels[corev1.LabelTopologyZone]
		b.mu.Lock()
		changed := b.zone != zone
		b.zone = zone
		b.mu.Unlock()
		if !changed {
			return
		}
		for _, key := range b.services.ListKeys() {
			b.loop.Add(key)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: handle, UpdateFunc: func(_, current any) { handle(current) }})
	if err != nil {
		return fmt.Errorf("watch Node %s: %w", b.nodeName, err)
	}
	return nil
}

// Prime stores the flows of all services without waiting for the switch. The informers must have synced.
func (b *Balancer) Prime(ctx context.Context) error {
	for _, key := range b.services.ListKeys() {
		b.set(ctx, key)
	}
	return nil
}

// Run reconciles services until the context ends.
func (b *Balancer) Run(ctx context.Context) {
	var reporting sync.WaitGroup
	defer reporting.Wait()
	reporting.Go(func() { b.limits.Run(ctx) })
	b.loop.Run(ctx, workers)
}

func (b *Balancer) reconcile(ctx context.Context, key string) error {
	err := b.set(ctx, key).Wait(ctx)
	if errors.As(err, new(*flowstore.MissingInputError)) {
		return nil // the store installs the service once its namespace has a VNID
	}
	return err
}

// set compiles a service, which may have been deleted.
func (b *Balancer) set(ctx context.Context, key string) *flowstore.Commit {
	owner := pipeline.Owner{Kind: pipeline.KindService, Key: key}
	obj, exists, _ := b.services.GetByKey(key) // it never fails
	svc, ok := obj.(*endpoints.Service)
	var compiled pipeline.BalancedService
	var found report
	if exists && ok {
		compiled.Frontends, found = b.frontends(ctx, key, svc)
	}
	b.report(ctx, key, found)
	b.mu.Lock()
	revoked := b.flushed.set(key, compiled.Frontends)
	b.mu.Unlock()
	change := flowstore.Change{Owner: owner}
	if len(compiled.Frontends) > 0 && b.node.Mode == config.ModeMultitenant {
		vnid := inputs.VNID(svc.GetNamespace())
		change.Reads = []flowstore.Input{vnid}
		change.Compile = func(v *flowstore.Values) pipeline.State {
			of := compiled
			of.VNID = flowstore.Read[config.VNID](v, vnid)
			return b.node.BalancedService(of)
		}
	} else {
		change.State = b.node.BalancedService(compiled)
	}
	return b.store.Update(flowstore.Update{Changes: []flowstore.Change{change}, Revoked: flowstore.Revocation{Permission: revoked}})[0]
}

// frontends returns the frontends of a service, with the endpoints that this node uses.
func (b *Balancer) frontends(ctx context.Context, key string, svc *endpoints.Service) (all []pipeline.Frontend, found report) {
	objs, err := b.slices.ByIndex(indexService, key)
	if err != nil { // only without the index
		klog.FromContext(ctx).Error(err, "Failed to list EndpointSlices", "service", key)
		return nil, found
	}
	found.addProblems("Service", svc.Problems)
	slices := make([]*endpoints.Slice, 0, len(objs))
	for _, obj := range objs {
		if s, ok := obj.(*endpoints.Slice); ok {
			slices = append(slices, s)
			found.addProblems("EndpointSlice "+s.GetName(), s.Problems)
		}
	}
	b.mu.Lock()
	zone := b.zone
	b.mu.Unlock()
	selected, ok := endpoints.Select(svc, slices, endpoints.Node{Name: b.nodeName, Zone: zone})
	if !ok {
		return nil, report{}
	}
	found.addProblems("endpoints", selected.Problems)
	affinity := found.affinity(svc)
	for _, f := range svc.Frontends() {
		if f.Kind != endpoints.ClusterIP {
			found.limits[limitExternal] = true
			continue
		}
		port, targets := svc.Ports[f.Of], selected.Ports[f.Of].Internal
		frontend := pipeline.Frontend{Addr: f.Addr, Protocol: protocol(port.Protocol), Port: f.Port, Affinity: affinity, Closed: targets.Verdict == endpoints.Drop}
		for _, t := range endpoints.Subset(targets.Endpoints, b.nodeName, pipeline.MaxEndpoints) {
			frontend.Endpoints = append(frontend.Endpoints, t.Addr)
		}
		if frontend.Protocol == pipeline.ProtocolSCTP && b.node.Userspace {
			found.limits[limitSCTP] = true
		}
		all = append(all, frontend)
	}
	return all, found
}

func protocol(p corev1.Protocol) goovs.Protocol {
	switch p {
	case corev1.ProtocolUDP:
		return goovs.ProtocolUDPv4
	case corev1.ProtocolSCTP:
		return pipeline.ProtocolSCTP
	}
	return goovs.ProtocolTCPv4
}
