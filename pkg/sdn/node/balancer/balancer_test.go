package balancer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
)

const timeout = 90 * time.Second

// fixture runs a Balancer with a fake switch and fake sources of objects.
type fixture struct {
	*testing.T
	*Balancer
	bridge                  *ovs.Fake
	store                   *flowstore.Store
	services, slices, nodes *fcache.FakeControllerSource

	mu     sync.Mutex
	events []string
	local  map[string]int // ready endpoints on the node, by proxied service
	idling []string       // calls of Hold and Release, without repetitions
}

// follow stores what followers of the Balancer get.
func (f *fixture) follow(key string, svc *endpoints.Service, localReady int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if svc == nil {
		delete(f.local, key)
		return
	}
	f.local[key] = localReady
}

func (f *fixture) WarnNode(reason, message string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, reason+" "+message)
}

// warnings returns the Events.
func (f *fixture) warnings() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.events)
}

// newFixture starts a Balancer for node n1 in a mode.
func newFixture(t *testing.T, mode config.Mode) *fixture {
	t.Helper()
	f := &fixture{
		T: t, bridge: ovs.NewFake("br0"), services: fcache.NewFakeControllerSource(), slices: fcache.NewFakeControllerSource(), nodes: fcache.NewFakeControllerSource(),
		local: map[string]int{},
	}
	f.noError(f.bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: "br0", DatapathType: "netdev"}))
	f.store = flowstore.New(f.bridge)
	network := netip.MustParsePrefix("172.30.0.0/16")
	informers := map[*fcache.FakeControllerSource]cache.SharedIndexInformer{}
	for source, object := range map[*fcache.FakeControllerSource]runtime.Object{
		f.services: &corev1.Service{}, f.slices: &discoveryv1.EndpointSlice{}, f.nodes: &corev1.Node{},
	} {
		t.Cleanup(source.Shutdown)
		informers[source] = cache.NewSharedIndexInformer(listOnly{source}, object, 0, cache.Indexers{})
	}
	f.noError(informers[f.services].SetTransform(endpoints.TransformService))
	f.noError(Prepare(network, informers[f.slices]))
	var err error
	f.Balancer, err = New(Options{
		Node: pipeline.Node{
			Mode: mode, ClusterNetworks: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14")}, ServiceNetwork: network,
			Subnets: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/23")}, BalancesServices: true, Userspace: true,
		},
		NodeName: "n1", Services: informers[f.services], Slices: informers[f.slices], Nodes: informers[f.nodes], Store: f.store, Events: f, Follow: f.follow, Idling: f,
		Reserved: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.10:80")},
	})
	f.noError(err)

	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	for _, i := range informers {
		running.Go(func() { i.RunWithContext(ctx) })
		if !cache.WaitForCacheSync(ctx.Done(), i.HasSynced) {
			t.Fatal("the cache did not sync")
		}
	}
	f.noError(f.Prime(t.Context()))
	running.Go(func() { f.Balancer.Run(ctx) })
	running.Go(func() {
		if err := f.store.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	return f
}

func (f *fixture) noError(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// expect waits until the flows and groups contain exactly these texts of a list, each in one or more of them.
func (f *fixture) expect(step string, present []string, absent ...string) {
	f.Helper()
	cookie := regexp.MustCompile(`cookie=0x5[0-9a-f]+,`)
	await.OK(f, timeout, func(context.Context) error {
		all := cookie.ReplaceAllString(strings.Join(append(f.bridge.Flows(), f.bridge.Groups()...), "\n"), "")
		for _, text := range present {
			if !strings.Contains(all, text) {
				return fmt.Errorf("%s: no flow or group has %q:\n%s", step, text, all)
			}
		}
		for _, text := range absent {
			if strings.Contains(all, text) {
				return fmt.Errorf("%s: a flow or group has %q:\n%s", step, text, all)
			}
		}
		return nil
	})
}

// listOnly disables the streaming of lists, which the fake source does not implement.
type listOnly struct{ cache.ListerWatcher }

func (listOnly) IsWatchListSemanticsUnSupported() bool { return true }

func service(change func(*corev1.ServiceSpec)) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "svc"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeClusterIP, ClusterIP: "172.30.0.10", ClusterIPs: []string{"172.30.0.10"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
		Ports: []corev1.ServicePort{{Name: "web", Protocol: corev1.ProtocolTCP, Port: 80}, {Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53}},
	}}
	if change != nil {
		change(&svc.Spec)
	}
	return svc
}

// slice returns a slice of service ns/svc with ready endpoints, on node n1 those of subnet 10.128.0.0/23.
func slice(name, port string, protocol corev1.Protocol, number int32, addrs ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "svc"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &port, Protocol: &protocol, Port: &number}},
	}
	for _, a := range addrs {
		node, ready := "n2", true
		if strings.HasPrefix(a, "10.128.0.") {
			node = "n1"
		}
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
	}
	return s
}

const (
	toA  = "reg8=0xa800005,reg9=0x1f90,actions=load:0x1->NXM_NX_REG4[20],ct(commit,nat(dst=10.128.0.5:8080)"
	toB  = "reg8=0xa810007,reg9=0x1f90,actions=load:0x1->NXM_NX_REG4[20],ct(commit,nat(dst=10.129.0.7:8080)"
	none = "tcp,nw_dst=172.30.0.10,tp_dst=80,actions=goto_table:69"
)

// TestBalancer follows a service from its creation to its deletion.
func TestBalancer(t *testing.T) {
	f := newFixture(t, config.ModeNetworkPolicy)
	f.services.Add(service(nil))
	f.expect("without a slice", []string{none})
	f.slices.Add(slice("a", "web", corev1.ProtocolTCP, 8080, "10.128.0.5"))
	f.expect("an endpoint", []string{toA, "tcp,nw_dst=172.30.0.10,tp_dst=80,actions=group:"}, none, toB)
	f.slices.Add(slice("b", "web", corev1.ProtocolTCP, 8080, "10.129.0.7"))
	f.expect("another slice", []string{toA, toB}, none)
	f.slices.Modify(slice("a", "web", corev1.ProtocolTCP, 8080))
	f.expect("a removed endpoint", []string{toB}, toA)
	f.services.Modify(service(func(s *corev1.ServiceSpec) {
		local := corev1.ServiceInternalTrafficPolicyLocal
		s.InternalTrafficPolicy = &local
	}))
	f.expect("no endpoint on this node", []string{"tcp,nw_dst=172.30.0.10,tp_dst=80,actions=drop"}, toB)
	f.services.Delete(service(nil))
	f.expect("deleted", nil, "172.30.0.10", "reg8")
	if groups := f.bridge.Groups(); len(groups) > 0 {
		t.Errorf("groups of a deleted service: got %v, want none", groups)
	}
}

// TestBalancer_follow checks what followers get of a service: the number of its ready endpoints on this node, and its end.
func TestBalancer_follow(t *testing.T) {
	f := newFixture(t, config.ModeSubnet)
	expect := func(when string, want map[string]int) {
		t.Helper()
		await.OK(t, timeout, func(context.Context) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			if !maps.Equal(f.local, want) {
				return fmt.Errorf("%s: got ready endpoints %v, want %v", when, f.local, want)
			}
			return nil
		})
	}
	f.services.Add(service(nil))
	expect("without endpoints", map[string]int{"ns/svc": 0})
	f.slices.Add(slice("a", "web", corev1.ProtocolTCP, 8080, "10.128.0.5", "10.128.0.6", "10.129.0.7"))
	expect("two endpoints on this node", map[string]int{"ns/svc": 2})
	f.slices.Modify(slice("a", "web", corev1.ProtocolTCP, 8080, "10.129.0.7"))
	expect("one on another node", map[string]int{"ns/svc": 0})
	f.services.Modify(service(func(s *corev1.ServiceSpec) { s.ClusterIP, s.ClusterIPs = corev1.ClusterIPNone, nil }))
	expect("headless", map[string]int{})
	f.services.Modify(service(nil))
	expect("with a cluster IP again", map[string]int{"ns/svc": 0})
	f.services.Delete(service(nil))
	expect("deleted", map[string]int{})
}

// TestBalancer_costOfAChange checks that a change of an endpoint changes flows of its service only.
func TestBalancer_costOfAChange(t *testing.T) {
	f := newFixture(t, config.ModeNetworkPolicy)
	f.services.Add(service(nil))
	f.slices.Add(slice("a", "web", corev1.ProtocolTCP, 8080, "10.128.0.5"))
	f.expect("one endpoint", []string{toA})
	before := f.bridge.Changes()
	f.slices.Modify(slice("a", "web", corev1.ProtocolTCP, 8080, "10.128.0.5", "10.129.0.7"))
	f.expect("two endpoints", []string{toA, toB})
	if got := f.bridge.Changes() - before; got != 2 {
		t.Errorf("flows and groups changed by a new endpoint: got %d, want 2, its flow and the group", got)
	}
}

// TestBalancer_multitenant checks that a service waits for the VNID of its namespace, and that only clients of the VNID and of VNID 0 use it.
func TestBalancer_multitenant(t *testing.T) {
	f := newFixture(t, config.ModeMultitenant)
	f.services.Add(service(nil))
	f.slices.Add(slice("a", "web", corev1.ProtocolTCP, 8080, "10.128.0.5"))
	await.OK(t, timeout, func(context.Context) error {
		if len(f.Balancer.services.ListKeys()) == 0 {
			return errors.New("the service is not cached")
		}
		return nil
	})
	f.expect("without a VNID", nil, "172.30.0.10")
	publish(f, 17)
	f.expect("with a VNID", []string{"tcp,reg0=0,nw_dst=172.30.0.10,tp_dst=80", "tcp,reg0=0x11,nw_dst=172.30.0.10,tp_dst=80"}, "tcp,nw_dst=172.30.0.10,tp_dst=80")
}

// publish gives namespace ns a VNID.
func publish(f *fixture, vnid config.VNID) {
	f.store.Update(flowstore.Update{Publish: []flowstore.Published{{Input: inputs.VNID("ns"), Value: vnid}}})
}

// TestBalancer_zone checks that topology hints are followed when the Node gets a zone.
func TestBalancer_zone(t *testing.T) {
	f := newFixture(t, config.ModeSubnet)
	hinted := slice("a", "web", corev1.ProtocolTCP, 8080, "10.128.0.5", "10.129.0.7")
	for i, zone := range []string{"z1", "z2"} {
		hinted.Endpoints[i].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
	}
	f.services.Add(service(nil))
	f.slices.Add(hinted)
	f.expect("no zone", []string{toA, toB})
	f.nodes.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2", Labels: map[string]string{corev1.LabelTopologyZone: "z1"}}})
	f.nodes.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{corev1.LabelTopologyZone: "z2"}}})
	f.expect("zone z2", []string{toB}, toA)
}

// TestBalancer_limits checks that what this node does not support is reported in one Event for each limit, however many services have it, and that affinity is
// limited.
func TestBalancer_limits(t *testing.T) {
	f := newFixture(t, config.ModeSubnet)
	limited := func(s *corev1.ServiceSpec) {
		seconds := int32(86400)
		s.SessionAffinity = corev1.ServiceAffinityClientIP
		s.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
		s.Ports = append(s.Ports, corev1.ServicePort{Name: "sctp", Protocol: corev1.ProtocolSCTP, Port: 9, NodePort: 30009})
		s.ExternalIPs = []string{"172.30.9.9", "10.128.0.5"}
	}
	first := service(limited)
	first.Spec.ExternalIPs = append(first.Spec.ExternalIPs, f.reserved[0].Addr().String())
	f.services.Add(first)
	f.slices.Add(slice("a", "web", corev1.ProtocolTCP, 8080, "10.128.0.5"))
	f.slices.Add(slice("b", "sctp", corev1.ProtocolSCTP, 9, "10.128.0.5"))
	f.expect("limits", []string{"idle_timeout=65535", toA}, "sctp", "172.30.9.9", "nw_dst=10.128.0.5", "tcp,nw_dst=192.0.2.10")
	for i := range 50 {
		svc := service(limited)
		svc.Name, svc.Spec.ClusterIP = fmt.Sprint("svc", i), fmt.Sprint("172.30.1.", i)
		svc.Spec.ClusterIPs, svc.Spec.Ports[2].NodePort = []string{svc.Spec.ClusterIP}, int32(31000+i) //nolint:gosec // small
		f.services.Add(svc)
		f.expect(svc.Name, []string{svc.Spec.ClusterIP})
	}
	await.OK(f, timeout, func(context.Context) error {
		if got := f.warnings(); len(got) < 3 {
			return fmt.Errorf("got %d Events, want 3: %q", len(got), got)
		}
		return nil
	})
	got := f.warnings()
	for _, l := range []limit{limitAddress, limitSCTP, limitAffinity} {
		about := func(event string) bool {
			return strings.HasPrefix(event, "ServiceLimited ") && strings.Contains(event, l.String()) && strings.Contains(event, "such as ns/svc")
		}
		if len(got) != 3 || !slices.ContainsFunc(got, about) {
			t.Errorf("got Events %q, want one about %q", got, l)
		}
	}
}
