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
	"github.com/ovsdn/ovsdn/pkg/sdn/node/servicenat"
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
	Reserved []netip.AddrPort          // of the API server: no service takes TCP connections to these as an external address
	Store    *flowstore.Store
	Events   Events

	// Follow is called with each service that is compiled and the number of its ready endpoints on this node; nil: it was deleted, or is not proxied. Calls for
	// one service do not overlap.
	Follow func(key string, svc *endpoints.Service, localReady int)

	// Host translates connections of other clients than pods; nil: this host does not support it.
	Host Host

	// Idling holds packets to idled services, with Node.HoldsIdled; nil: these are rejected, as others without endpoints.
	Idling Idling
}

// Host sends connections of hosts outside, and of the node's programs, to the cluster IPs of services.
type Host interface {
	// Set replaces the node port and the external addresses of a service. It does not wait.
	Set(service string, frontends []servicenat.Frontend)
}

// Balancer compiles services and their endpoints.
type Balancer struct {
	node     pipeline.Node
	nodeName string
	reserved []netip.AddrPort
	services cache.Store   // of *endpoints.Service
	slices   cache.Indexer // of *endpoints.Slice
	store    *flowstore.Store
	events   Events
	host     Host   // or nil
	idling   Idling // or nil
	follow   func(key string, svc *endpoints.Service, localReady int)
	loop     *reconcile.Loop
	limits   [limits]*reconcile.Runner // of reportLimit
	logs     *logs

	mu       sync.Mutex
	zone     string           // of this node
	claims   claims           // of external addresses and node ports
	flushed  flushedFrontends // by which connections are evaluated
	idled    idledServices
	reported map[string]report // by service; without services that have nothing to report
	limited  [limits]int       // number of services that each limit concerns
}

// Prepare adds the transform and the index that New requires to an informer of EndpointSlices, which must not run yet.
func Prepare(serviceNetwork netip.Prefix, slices cache.SharedIndexInformer) error {
	if err := slices.SetTransform(endpoints.TransformSlice(serviceNetwork)); err != nil {
		return fmt.Errorf("transform EndpointSlices: %w", err)
	}
	if err := slices.AddIndexers(cache.Indexers{indexService: indexByService}); err != nil {
		return fmt.Errorf("index EndpointSlices: %w", err)
	}
	return nil
}

// indexByService is the cache.IndexFunc of indexService.
func indexByService(obj any) ([]string, error) {
	if s, ok := obj.(*endpoints.Slice); ok && s.ServiceKey() != "" {
		return []string{s.ServiceKey()}, nil
	}
	return nil, nil
}

// New returns a Balancer that watches the informers.
func New(o Options) (*Balancer, error) {
	b := &Balancer{
		node: o.Node, nodeName: o.NodeName, services: o.Services.GetStore(), slices: o.Slices.GetIndexer(), store: o.Store, events: o.Events, follow: o.Follow,
		reserved: o.Reserved, host: o.Host, idling: o.Idling, claims: newClaims(), flushed: newFlushedFrontends(), reported: map[string]report{}, logs: newLogs(), idled: idledServices{},
	}
	b.loop = reconcile.New("services", b.reconcile)
	b.newLimits()
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
	var all []candidate
	for _, obj := range b.services.List() { // claims before the first is compiled: two would have the same group
		if svc, ok := obj.(*endpoints.Service); ok {
			c := b.candidate(cache.NewObjectName(svc.GetNamespace(), svc.GetName()).String(), svc)
			b.claim(c.key, svc, c.usable)
			all = append(all, c)
		}
	}
	for _, c := range all { // Run compiles those again that have changed since
		b.install(ctx, c)
	}
	return nil
}

// Run reconciles services until the context ends.
func (b *Balancer) Run(ctx context.Context) {
	var reporting sync.WaitGroup
	defer reporting.Wait()
	for _, r := range b.limits {
		reporting.Go(func() { r.Run(ctx) })
	}
	b.loop.Run(ctx, workers)
}

func (b *Balancer) reconcile(ctx context.Context, key string) error {
	c, commit := b.set(ctx, key)
	err := commit.Wait(ctx)
	b.release(key, c, err)
	if errors.As(err, new(*flowstore.MissingInputError)) {
		return nil // the store installs the service once its namespace has a VNID
	}
	return err
}

// compiled is a service on this node. It is empty if the service was deleted or is not proxied.
type compiled struct {
	proxied    *endpoints.Service
	localReady int                   // ready endpoints on this node
	frontends  []pipeline.Frontend   // of the switch
	host       []servicenat.Frontend // of other clients than pods
	idled      bool                  // the switch sends packets to the agent
	report     report
}

// set compiles a service, which may have been deleted, and stores its flows.
func (b *Balancer) set(ctx context.Context, key string) (compiled, *flowstore.Commit) {
	obj, _, _ := b.services.GetByKey(key) // it never fails
	svc, _ := obj.(*endpoints.Service)    // nil: deleted
	return b.install(ctx, b.candidate(key, svc))
}

// install compiles a service, and sets its flows.
func (b *Balancer) install(ctx context.Context, of candidate) (compiled, *flowstore.Commit) {
	key, c := of.key, b.compile(ctx, of)
	b.follow(key, c.proxied, c.localReady)
	if b.host != nil {
		b.host.Set(key, c.host)
	}
	b.report(ctx, key, c.report)
	b.mu.Lock()
	revoked := b.flushed.set(key, c.frontends)
	b.mu.Unlock()
	b.hold(key, c)
	balanced := pipeline.BalancedService{Frontends: c.frontends}
	change := flowstore.Change{Owner: pipeline.Owner{Kind: pipeline.KindService, Key: key}}
	if len(c.frontends) > 0 && b.node.Mode == config.ModeMultitenant {
		vnid := inputs.VNID(of.service.GetNamespace())
		change.Reads = []flowstore.Input{vnid}
		change.Compile = func(v *flowstore.Values) pipeline.State {
			withVNID := balanced
			withVNID.VNID = flowstore.Read[config.VNID](v, vnid)
			return b.node.BalancedService(withVNID)
		}
	} else {
		change.State = b.node.BalancedService(balanced)
	}
	return c, b.store.Update(flowstore.Update{Changes: []flowstore.Change{change}, Revoked: flowstore.Revocation{Permission: revoked}})[0]
}

// compile returns a service on this node, and replaces its claims.
func (b *Balancer) compile(ctx context.Context, of candidate) (c compiled) {
	key, svc := of.key, of.service
	held := b.claim(key, svc, of.usable)
	if svc == nil {
		b.isIdled(key, nil, endpoints.Selection{})
		return compiled{}
	}
	c.report = of.report
	c.report.limits[limitConflict] = len(held) < len(of.usable)
	selected, ok := b.selectEndpoints(ctx, key, svc, &c.report)
	if !ok {
		b.isIdled(key, nil, endpoints.Selection{})
		return compiled{}
	}
	c.proxied, c.localReady, c.idled = svc, selected.LocalReady, b.isIdled(key, svc, selected)
	c.frontends = b.frontends(svc, held, selected, &c.report)
	if c.idled {
		c.frontends = b.idle(svc, c.frontends, selected)
	}
	if b.hostTranslates(svc) {
		c.host = b.hostFrontends(svc, held, selected, c.idled)
	}
	return c
}

// selectEndpoints returns the endpoints of a service, and adds invalid fields to the report; false: it is not proxied.
func (b *Balancer) selectEndpoints(ctx context.Context, key string, svc *endpoints.Service, found *report) (selected endpoints.Selection, ok bool) {
	objs, err := b.slices.ByIndex(indexService, key)
	if err != nil { // only without the index
		klog.FromContext(ctx).Error(err, "Failed to list EndpointSlices", "service", key)
		return selected, false
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
	selected, ok = endpoints.Select(svc, slices, endpoints.Node{Name: b.nodeName, Zone: zone})
	found.addProblems("endpoints", selected.Problems)
	return selected, ok
}

// frontends returns the frontends of a service in the switch, with the endpoints that this node uses, and adds what this node does not support to the report.
func (b *Balancer) frontends(svc *endpoints.Service, held []frontend, selected endpoints.Selection, found *report) (all []pipeline.Frontend) {
	affinity := found.affinity(svc)
	ports, translated := b.portEndpoints(selected, found), b.hostTranslates(svc)
	for _, f := range held {
		port := ports[f.Of]
		out := b.newFrontend(svc, f, selected.Ports[f.Of])
		out.Affinity = affinity
		if out.Protocol == pipeline.ProtocolSCTP && b.node.Userspace {
			found.limits[limitSCTP] = true
		}
		if f.Kind != endpoints.ClusterIP {
			if !f.closed {
				out.Endpoints = port.shortCircuit
			}
			all = append(all, out)
			continue
		}
		out.Endpoints = port.internal
		all = append(all, out)
		if translated && len(port.external) > 0 {
			// Of connections from outside, to which externalTrafficPolicy may give other endpoints.
			out.Kind, out.Endpoints = pipeline.FromOutside, port.external
			all = append(all, out)
		}
	}
	found.limitAffine(all)
	return all
}

// newFrontend returns a frontend without endpoints. Pods use external addresses and node ports as the cluster IP, whatever externalTrafficPolicy is.
func (b *Balancer) newFrontend(svc *endpoints.Service, f frontend, selected endpoints.PortSelection) pipeline.Frontend {
	closed := f.closed
	if f.Kind == endpoints.ClusterIP {
		closed = selected.Internal.Verdict == endpoints.Drop
	}
	return pipeline.Frontend{
		Kind: kind(f.Kind), Addr: f.Addr, Protocol: protocol(svc.Ports[f.Of].Protocol), Port: f.Port, Closed: closed, Sources: f.sources,
	}
}

// kind returns the kind of a frontend in the pipeline.
func kind(of endpoints.FrontendKind) pipeline.FrontendKind {
	switch of {
	case endpoints.NodePort:
		return pipeline.NodePort
	case endpoints.LoadBalancer:
		return pipeline.LoadBalancer
	case endpoints.ExternalIP:
		return pipeline.ExternalIP
	case endpoints.ClusterIP:
	}
	return pipeline.ClusterIP
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
