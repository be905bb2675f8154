package balancer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
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
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
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
}

func (f *fixture) WarnNode(reason, message string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, reason+" "+message)
}

// newFixture starts a Balancer for node n1 in a mode.
func newFixture(t *testing.T, mode config.Mode) *fixture {
	t.Helper()
	f := &fixture{
		T: t, bridge: ovs.NewFake("br0"), services: fcache.NewFakeControllerSource(), slices: fcache.NewFakeControllerSource(), nodes: fcache.NewFakeControllerSource(),
	}
	f.noError(f.bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: "br0", DatapathType: "netdev"}))
	f.store = flowstore.New(f.bridge)
	network := netip.MustParsePrefix("172.30.0.0/16")
	informers := map[*fcache.FakeControllerSource]cache.SharedIndexInformer{}
	for source, object := range map[*fcache.FakeControllerSource]runtime.Object{f.services: &corev1.Service{}, f.slices: &discoveryv1.EndpointSlice{}, f.nodes: &corev1.Node{}} {
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
		NodeName: "n1", Services: informers[f.services], Slices: informers[f.slices], Nodes: informers[f.nodes], Store: f.store, Events: f,
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
	toA  = "reg8=0xa800005,reg9=0x1f90,actions=ct(commit,nat(dst=10.128.0.5:8080)"
	toB  = "reg8=0xa810007,reg9=0x1f90,actions=ct(commit,nat(dst=10.129.0.7:8080)"
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
	f.store.Update(flowstore.Update{Publish: []flowstore.Published{{Input: inputs.VNID("ns"), Value: config.VNID(17)}}})
	f.expect("with a VNID", []string{"tcp,reg0=0,nw_dst=172.30.0.10,tp_dst=80", "tcp,reg0=0x11,nw_dst=172.30.0.10,tp_dst=80"}, "tcp,nw_dst=172.30.0.10,tp_dst=80")
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
	}
	f.services.Add(service(limited))
	f.slices.Add(slice("a", "web", corev1.ProtocolTCP, 8080, "10.128.0.5"))
	f.slices.Add(slice("b", "sctp", corev1.ProtocolSCTP, 9, "10.128.0.5"))
	f.expect("limits", []string{"idle_timeout=65535", toA}, "sctp")
	for i := range 50 {
		svc := service(limited)
		svc.Name, svc.Spec.ClusterIP = fmt.Sprint("svc", i), fmt.Sprint("172.30.1.", i)
		svc.Spec.ClusterIPs = []string{svc.Spec.ClusterIP}
		f.services.Add(svc)
		f.expect(svc.Name, []string{svc.Spec.ClusterIP})
	}
	events := func() []string {
		f.mu.Lock()
		defer f.mu.Unlock()
		return slices.Clone(f.events)
	}
	await.OK(f, timeout, func(context.Context) error {
		if got := events(); len(got) < 3 {
			return fmt.Errorf("got %d Events, want 3: %q", len(got), got)
		}
		return nil
	})
	for l := range limits {
		if got := events(); len(got) != 3 || !strings.Contains(got[l], l.String()) || !strings.HasPrefix(got[l], "ServiceLimited ") || !strings.Contains(got[l], "such as ns/svc") {
			t.Errorf("got Events %q, want one about %q", got, l)
		}
	}
}

// TestReportLimits checks that one Event has the number of services, and that the next one follows only when there were none in between.
func TestReportLimits(t *testing.T) {
	f := &fixture{T: t}
	b := &Balancer{reported: map[string]report{}, events: f}
	b.limits = reconcile.NewRunner("limits", limitsInterval, b.reportLimits)
	external := report{}
	external.limits[limitExternal] = true
	for i, step := range []struct {
		service string
		found   report
		events  int // in total
	}{{"ns/b", external, 1}, {"ns/a", external, 1}, {"ns/a", external, 1}, {"ns/a", report{}, 1}, {"ns/b", report{}, 1}, {"ns/c", external, 2}} {
		b.report(t.Context(), step.service, step.found)
		f.noError(b.reportLimits(t.Context()))
		if len(f.events) != step.events {
			t.Errorf("step %d: got Events %q, want %d", i, f.events, step.events)
		}
	}
	b.report(t.Context(), "ns/c", report{})
	b.report(t.Context(), "ns/b", external)
	b.report(t.Context(), "ns/a", external)
	f.noError(b.reportLimits(t.Context()))
	if got, want := f.events[len(f.events)-1], "ServiceLimited 2 services, such as ns/a: "+limitExternal.String(); got != want {
		t.Errorf("got Event %q, want %q", got, want)
	}
}

// TestUDPConnectionsAreFlushed checks that connections of UDP to a removed endpoint are flushed, and no others.
func TestUDPConnectionsAreFlushed(t *testing.T) {
	f := newFixture(t, config.ModeSubnet)
	f.services.Add(service(nil))
	f.slices.Add(slice("web", "web", corev1.ProtocolTCP, 8080, "10.128.0.5", "10.129.0.7"))
	f.slices.Add(slice("dns", "dns", corev1.ProtocolUDP, 5353, "10.128.0.5", "10.129.0.7"))
	f.expect("two endpoints", []string{toA, toB, "nat(dst=10.128.0.5:5353)", "nat(dst=10.129.0.7:5353)"})
	from := uint16(4000)
	connection := func(zone uint16, protocol uint8, port, endpointPort uint16, endpoint string) ovs.Connections {
		from++
		client, svc := netip.MustParseAddr("10.128.0.9"), netip.MustParseAddr("172.30.0.10")
		return ovs.Connections{
			Zone: zone, Protocol: protocol,
			Original: ovs.Tuple{Src: client, Dst: svc, SrcPort: from, DstPort: port},
			Reply:    ovs.Tuple{Src: netip.MustParseAddr(endpoint), Dst: client, SrcPort: endpointPort, DstPort: from},
		}
	}
	const nat, allowed = 0x4009, 0x6009
	remaining := []ovs.Connections{
		connection(nat, 6, 80, 8080, "10.128.0.5"), connection(nat, protocolUDP, 53, 5353, "10.129.0.7"), connection(allowed, protocolUDP, 53, 5353, "10.128.0.5"),
	}
	removed := connection(nat, protocolUDP, 53, 5353, "10.128.0.5")
	for _, c := range append(slices.Clone(remaining), removed) {
		f.bridge.Connect(c)
	}
	f.slices.Modify(slice("web", "web", corev1.ProtocolTCP, 8080, "10.129.0.7"))
	f.slices.Modify(slice("dns", "dns", corev1.ProtocolUDP, 5353, "10.129.0.7"))
	await.OK(t, timeout, func(context.Context) error {
		if got := f.bridge.Tracked(); len(got) != len(remaining) || slices.Contains(got, removed) {
			return fmt.Errorf("connections: got %v, want %v", got, remaining)
		}
		return nil
	})
}

func TestUDPFrontends(t *testing.T) {
	at := func(endpoints ...string) []pipeline.Frontend {
		f := pipeline.Frontend{Addr: netip.MustParseAddr("172.30.0.10"), Port: 53, Protocol: goovs.ProtocolUDPv4}
		for _, e := range endpoints {
			f.Endpoints = append(f.Endpoints, netip.MustParseAddrPort(e))
		}
		return []pipeline.Frontend{f}
	}
	tcp := at("10.0.0.1:1")
	tcp[0].Protocol = goovs.ProtocolTCPv4
	u := newUDPFrontends()
	for _, step := range []struct {
		name      string
		frontends []pipeline.Frontend
		lost      bool
	}{
		{"new", at("10.0.0.1:1"), false}, {"one more", at("10.0.0.1:1", "10.0.0.2:1"), false}, {"one less", at("10.0.0.2:1"), true},
		{"another port", at("10.0.0.2:2"), true}, {"TCP only", tcp, true}, {"no TCP", nil, false}, {"deleted", nil, false},
	} {
		if got := u.set("ns/svc", step.frontends); got != step.lost {
			t.Errorf("%s: lost an endpoint: got %v, want %v", step.name, got, step.lost)
		}
	}
	if len(u.endpoints)+len(u.services) > 0 {
		t.Errorf("after the deletion: got %v, want nothing", u)
	}
}

// TestReport_problems checks that invalid fields of a service and of its slices are reported once, until they change.
func TestReport_problems(t *testing.T) {
	bad := slice("a", "web", corev1.ProtocolTCP, 0, "10.128.0.5", "172.30.0.77")
	var r report
	r.addProblems("EndpointSlice a", endpoints.NewSlice(bad, netip.MustParsePrefix("172.30.0.0/16")).Problems)
	for _, want := range []string{"EndpointSlice a: 2 invalid fields", "172.30.0.77"} {
		if !strings.Contains(r.invalid, want) {
			t.Errorf("report: got %q, want %q in it", r.invalid, want)
		}
	}
	if r.limits != [limits]bool{} {
		t.Errorf("limits of the node: got %v, want none", r.limits)
	}
}
