// Package balanced compiles a fixed set of Services as the agent does with --service-proxy=ovs, for tests of packages that must not import its balancer.
package balanced

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/balancer"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/servicenat"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// Services are the Services of a cluster, on one of its nodes.
type Services struct {
	Node   *corev1.Node // with its name and labels
	Config pipeline.Node
	VNIDs  map[string]uint32 // by namespace
	All    []*corev1.Service
	Slices []*discoveryv1.EndpointSlice
}

// Installed are the Services of a node whose flows are on the switch.
type Installed struct {
	Owners []pipeline.Owner
	host   []servicenat.Frontend
}

// Install installs the flows of the Services.
func Install(t testing.TB, store *flowstore.Store, s Services) *Installed {
	t.Helper()
	nodes, services, sliceInformer := newInformer(&corev1.Node{}), newInformer(&corev1.Service{}), newInformer(&discoveryv1.EndpointSlice{})
	noError(t, balancer.Prepare(s.Config.ServiceNetwork, sliceInformer))
	noError(t, nodes.GetStore().Add(s.Node))
	installed := &Installed{}
	for _, svc := range s.All {
		obj, err := endpoints.TransformService(svc)
		noError(t, err)
		noError(t, services.GetStore().Add(obj))
		installed.Owners = append(installed.Owners, pipeline.Owner{Kind: pipeline.KindService, Key: svc.Namespace + "/" + svc.Name})
	}
	for _, slice := range s.Slices {
		obj, err := endpoints.TransformSlice(s.Config.ServiceNetwork)(slice)
		noError(t, err)
		noError(t, sliceInformer.GetStore().Add(obj))
	}
	var published []flowstore.Published
	for namespace, vnid := range s.VNIDs {
		published = append(published, flowstore.Published{Input: inputs.VNID(namespace), Value: config.VNID(vnid)})
	}
	store.Update(flowstore.Update{Publish: published})
	b, err := balancer.New(balancer.Options{
		Node: s.Config, NodeName: s.Node.Name, Services: services, Slices: sliceInformer, Nodes: nodes, Store: store, Events: ignored{}, Host: installed,
		Follow: func(string, *endpoints.Service, int) {},
	})
	noError(t, err)
	noError(t, b.Prime(t.Context()))
	installed.wait(t, store, s)
	return installed
}

// wait waits until the switch has the flows: it has them when it has those of a later owner.
func (i *Installed) wait(t testing.TB, store *flowstore.Store, s Services) {
	t.Helper()
	last := pipeline.Owner{Kind: pipeline.KindService, Key: "after all others"}
	i.Owners = append(i.Owners, last)
	unused := pipeline.Frontend{Addr: s.Config.ServiceNetwork.Masked().Addr(), Protocol: goovs.ProtocolTCPv4, Port: 1}
	noError(t, store.Set(last, s.Config.BalancedService(pipeline.BalancedService{Frontends: []pipeline.Frontend{unused}})).Wait(t.Context()))
	noError(t, store.Healthy())
	if conflicts := store.Statistics().Conflicts; conflicts > 0 {
		t.Fatalf("got %d conflicts between flows of services, want none", conflicts)
	}
}

// Set is the balancer's call with the frontends of a Service that the host translates.
func (i *Installed) Set(_ string, frontends []servicenat.Frontend) {
	i.host = append(i.host, frontends...)
}

// Translation is what the host does with a connection of a client that is no pod.
type Translation struct {
	Verdict endpoints.Verdict // Unused: the packet goes to its destination
	To      netip.AddrPort    // with Forward: a cluster IP
}

// Translate returns what the rules of package servicenat do with a connection to an address and port: node ports precede addresses, and addresses that tenants choose
// take no packets of the node, nor those to it. own are the addresses of the node, fromNode is set for its own programs.
func (i *Installed) Translate(from netip.Addr, fromNode bool, to netip.AddrPort, protocol corev1.Protocol, own []netip.Addr) Translation {
	toNode := slices.Contains(own, to.Addr())
	for _, isNodePort := range []bool{true, false} {
		for _, f := range i.host {
			switch {
			case f.Addr.IsValid() == isNodePort || f.Protocol != protocol || f.Port != to.Port():
			case isNodePort && toNode:
				return Translation{f.Verdict, f.To}
			case isNodePort || f.Addr != to.Addr() || f.TenantAddress && (fromNode || toNode):
			case len(f.Sources) > 0 && !slices.ContainsFunc(f.Sources, func(p netip.Prefix) bool { return p.Contains(from) }):
				return Translation{Verdict: endpoints.Drop}
			default:
				return Translation{f.Verdict, f.To}
			}
		}
	}
	return Translation{}
}

// informer does not run. Its handlers get the objects of its store when they are added.
type informer struct{ cache.SharedIndexInformer }

func newInformer(object runtime.Object) informer {
	return informer{cache.NewSharedIndexInformer(&cache.ListWatch{}, object, 0, cache.Indexers{})}
}

// AddEventHandler adds no handler of later events: the objects do not change.
func (i informer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	for _, obj := range i.GetStore().List() {
		h.OnAdd(obj, true)
	}
	return nil, nil
}

// ignored are Events.
type ignored struct{}

func (ignored) WarnNode(string, string) {}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(fmt.Errorf("install services: %w", err))
	}
}
