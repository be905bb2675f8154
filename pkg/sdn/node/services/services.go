// Package services keeps table 60 in step with the cluster's services while the host's own proxy balances them
// (--service-proxy=external). Services with endpoints outside of the pod network are evaluated by these.
package services

import (
	"context"
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
	"github.com/ovsdn/ovsdn/pkg/sdn/node/store"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/vnids"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// workers bounds how many changes wait for the switch at once; the store sends them in one bundle.
const workers = 16

// Services compiles services into the flows that lead to the host's proxy.
type Services struct {
	node   pipeline.Node
	lister corelisters.ServiceLister
	slices cache.Indexer // of EndpointSlices; nil: sources are not evaluated (mode subnet)
	vnids  *vnids.VNIDs
	loop   *reconcile.Loop
	nodes  *nodeAddresses // nil in mode subnet

	mu        sync.Mutex
	endpoints endpoints
	follow    func(*store.Commit)
}

// Options is what Services works with.
type Options struct {
	Node     pipeline.Node
	Lister   corelisters.ServiceLister
	Informer cache.SharedIndexInformer // that of Lister
	Slices   cache.SharedIndexInformer // of EndpointSlices, prepared by Prepare; nil in mode subnet
	VNIDs    *vnids.VNIDs

	NodeName string                    // this node's
	Nodes    cache.SharedIndexInformer // of all Nodes; nil in mode subnet
	Store    *store.Store              // for their addresses
}

// New returns the feature.
func New(o Options) (*Services, error) {
	s := &Services{node: o.Node, lister: o.Lister, vnids: o.VNIDs, endpoints: newEndpoints(), follow: func(*store.Commit) {}}
	s.loop = reconcile.New("services", s.serve)
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

// Follow has the function called when the outside endpoints of a service change, with the commit of the service's flows. It is called before Run.
func (s *Services) Follow(changed func(*store.Commit)) { s.follow = changed }

// Prime puts all services and Nodes into the store without waiting for the switch. The informers must have synced.
func (s *Services) Prime() error {
	all, err := s.lister.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("listing Services: %w", err)
	}
	for _, svc := range all {
		s.set(svc.Namespace, svc.Name, svc)
	}
	if s.nodes != nil {
		s.nodes.prime()
	}
	return nil
}

// Run follows the services and Nodes until the context ends.
func (s *Services) Run(ctx context.Context) {
	var parts sync.WaitGroup
	if s.nodes != nil {
		parts.Go(func() { s.nodes.loop.Run(ctx, workers) })
	}
	s.loop.Run(ctx, workers)
	parts.Wait()
}

func (s *Services) serve(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return fmt.Errorf("service key %q: %w", key, err)
	}
	svc, err := s.lister.Services(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return s.set(namespace, name, nil).Wait(ctx)
	}
	if err != nil {
		return fmt.Errorf("service %s: %w", key, err)
	}
	return s.set(namespace, name, svc).Wait(ctx)
}

// set compiles a service, nil for one that was deleted.
func (s *Services) set(namespace, name string, svc *corev1.Service) *store.Commit {
	parsed, changed := s.learn(namespace+"/"+name, svc)
	if svc == nil && len(parsed.NodePorts) == 0 {
		return s.vnids.Delete(owner(namespace, name))
	}
	commit := s.vnids.Set(namespace, owner(namespace, name), vnids.Dependent{
		Compile: func(vnid config.VNID) pipeline.State {
			of := parsed
			of.VNID = vnid
			return s.node.Service(of)
		},
	})
	if changed {
		s.follow(commit)
	}
	return commit
}

// Slim returns of a Service what is read of it: each agent stores the Services of all namespaces, and users may give one 256 KiB of annotations. It is
// an informer's transform.
func Slim(obj any) (any, error) {
	svc, ok := obj.(*corev1.Service)
	if !ok {
		return obj, nil
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: svc.Namespace, Name: svc.Name, UID: svc.UID, ResourceVersion: svc.ResourceVersion},
		Spec:       corev1.ServiceSpec{Type: svc.Spec.Type, ClusterIP: svc.Spec.ClusterIP, ClusterIPs: svc.Spec.ClusterIPs, Ports: svc.Spec.Ports},
	}, nil
}

func owner(namespace, name string) pipeline.Owner {
	return pipeline.Owner{Kind: pipeline.KindService, Key: namespace + "/" + name}
}

// parse takes what the pipeline needs. A headless service has no address ("None"), an ExternalName none at all.
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
