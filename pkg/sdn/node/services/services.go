// Package services installs the flows that send packets to services to the host's proxy (--service-proxy=external), in table 60. For services
// with endpoints outside of the pod network, policies are evaluated for the endpoints.
package services

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// workers bounds how many changes wait for the switch at once; the store sends them in one bundle.
const workers = 16

// Services compiles services into the flows to the host's proxy.
type Services struct {
	node   pipeline.Node
	lister corelisters.ServiceLister
	slices cache.Indexer // of EndpointSlices; nil in mode subnet
	store  *flowstore.Store
	loop   *reconcile.Loop
	nodes  *nodeAddresses // nil in mode subnet

	mu        sync.Mutex
	endpoints endpoints
}

// Options are the dependencies of Services.
type Options struct {
	Node     pipeline.Node
	Lister   corelisters.ServiceLister
	Informer cache.SharedIndexInformer // that of Lister
	Slices   cache.SharedIndexInformer // of EndpointSlices, prepared by Prepare; nil in mode subnet
	Store    *flowstore.Store

	NodeName string                    // this node's
	Nodes    cache.SharedIndexInformer // of all Nodes; nil in mode subnet
}

// New returns Services that watch the informers.
func New(o Options) (*Services, error) {
	s := &Services{node: o.Node, lister: o.Lister, store: o.Store, endpoints: newEndpoints()}
	s.loop = reconcile.New("services", s.reconcile)
	if err := s.loop.Watch(o.Informer); err != nil {
		return nil, err
	}
	if o.Nodes != nil {
		var err error
		if s.nodes, err = newNodeAddresses(o.Node, o.NodeName, o.Nodes, o.Store); err != nil {
			return nil, err
		}
	}
	if o.Slices == nil {
		return s, nil
	}
	s.slices = o.Slices.GetIndexer()
	return s, s.watchSlices(o.Slices)
}

// Prime stores the flows of all services and Nodes without waiting for the switch. The informers must have synced.
func (s *Services) Prime(ctx context.Context) error {
	all, err := s.lister.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list Services: %w", err)
	}
	for _, svc := range all {
		s.set(ctx, svc.Namespace, svc.Name, svc)
	}
	if s.nodes != nil {
		s.nodes.prime()
	}
	return nil
}

// Run reconciles services and Nodes until the context ends.
func (s *Services) Run(ctx context.Context) {
	var parts sync.WaitGroup
	if s.nodes != nil {
		parts.Go(func() { s.nodes.loop.Run(ctx, workers) })
	}
	s.loop.Run(ctx, workers)
	parts.Wait()
}

func (s *Services) reconcile(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return fmt.Errorf("service key %q: %w", key, err)
	}
	svc, err := s.lister.Services(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		svc = nil
	} else if err != nil {
		return fmt.Errorf("service %s: %w", key, err)
	}
	err = s.set(ctx, namespace, name, svc).Wait(ctx)
	if errors.As(err, new(*flowstore.MissingInputError)) {
		return nil // the store installs the service once its namespace has a VNID
	}
	return err
}

// set compiles a service; nil: it was deleted.
func (s *Services) set(ctx context.Context, namespace, name string, svc *corev1.Service) *flowstore.Commit {
	parsed, changed := s.updateEndpoints(ctx, namespace+"/"+name, svc)
	if svc == nil && len(parsed.NodePorts) == 0 {
		return s.store.Delete(owner(namespace, name))
	}
	vnid := inputs.VNID(namespace)
	change := flowstore.Change{
		Owner: owner(namespace, name),
		Reads: []flowstore.Input{vnid},
		Compile: func(v *flowstore.Values) pipeline.State {
			of := parsed
			of.VNID = flowstore.Read[config.VNID](v, vnid)
			return s.node.Service(of)
		},
	}
	// Policies evaluate connections to a service by its outside endpoints.
	return s.store.Update(flowstore.Update{Changes: []flowstore.Change{change}, Revoked: flowstore.Revocation{Permission: changed}})[0]
}

// Transform is an informer's transform that retains the fields of a Service that this package reads, and those that take ports of nodes from host ports.
// Each agent caches the Services of all namespaces, and the API allows 256 KiB of annotations in each.
func Transform(obj any) (any, error) {
	svc, ok := obj.(*corev1.Service)
	if !ok {
		return obj, nil
	}
	out := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: svc.Namespace, Name: svc.Name, UID: svc.UID, ResourceVersion: svc.ResourceVersion},
		Spec: corev1.ServiceSpec{
			Type: svc.Spec.Type, ClusterIP: svc.Spec.ClusterIP, ClusterIPs: svc.Spec.ClusterIPs, Ports: svc.Spec.Ports,
			ExternalIPs: svc.Spec.ExternalIPs, HealthCheckNodePort: svc.Spec.HealthCheckNodePort,
		},
	}
	for _, i := range svc.Status.LoadBalancer.Ingress {
		if i.IP != "" {
			out.Status.LoadBalancer.Ingress = append(out.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: i.IP})
		}
	}
	return out, nil
}

func owner(namespace, name string) pipeline.Owner {
	return pipeline.Owner{Kind: pipeline.KindService, Key: namespace + "/" + name}
}

// parse returns the addresses and ports of a service. Headless services (clusterIP "None") and ExternalName services have no address.
func parse(svc *corev1.Service) pipeline.Service {
	var out pipeline.Service
	for _, text := range svc.Spec.ClusterIPs {
		if addr, err := netip.ParseAddr(text); err == nil && addr.Is4() {
			out.ClusterIPs = append(out.ClusterIPs, addr)
		}
	}
	for _, port := range svc.Spec.Ports {
		out.Ports = append(out.Ports, pipeline.ServicePort{Protocol: protocol(port.Protocol), Port: uint16(port.Port)})
		if port.NodePort != 0 {
			out.NodePorts = append(out.NodePorts, pipeline.ServicePort{Protocol: protocol(port.Protocol), Port: uint16(port.NodePort)})
		}
	}
	return out
}

func protocol(p corev1.Protocol) goovs.Protocol {
	switch p {
	case corev1.ProtocolUDP:
		return goovs.ProtocolUDPv4
	case corev1.ProtocolSCTP:
		return pipeline.ProtocolSCTP
	default:
		return goovs.ProtocolTCPv4 // the API's default
	}
}
