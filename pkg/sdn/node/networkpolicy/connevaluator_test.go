package networkpolicy

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
)

const (
	zoneHere   = 0x6002
	zoneTarget = 0x8002

	protocolGRE = 47
)

// tracked returns a connection from one address and port to another.
func tracked(zone uint16, protocol uint8, from, to string) ovs.Connection {
	src, dst := netip.MustParseAddrPort(from), netip.MustParseAddrPort(to)
	c := ovs.Connection{
		Zone: zone, Protocol: protocol,
		Original: ovs.Tuple{Src: src.Addr(), Dst: dst.Addr(), SrcPort: src.Port(), DstPort: dst.Port()},
		Reply:    ovs.Tuple{Src: dst.Addr(), Dst: src.Addr(), SrcPort: dst.Port(), DstPort: src.Port()},
	}
	if protocol == protocolICMP {
		c.Original.ICMP, c.Reply.ICMP = ovs.ICMP{ID: 1, Type: 8}, ovs.ICMP{ID: 1}
	}
	return c
}

// allowFrom allows connections of pods with the label app to those of the namespace, and the reverse, to the ports; none: to all ports.
func allowFrom(namespace, app string, ports ...networkingv1.NetworkPolicyPort) *networkingv1.NetworkPolicy {
	peers := []networkingv1.NetworkPolicyPeer{{
		NamespaceSelector: &metav1.LabelSelector{}, PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
	}}
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "allow"},
		Spec: networkingv1.NetworkPolicySpec{
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
			Ingress:     []networkingv1.NetworkPolicyIngressRule{{From: peers, Ports: ports}},
			Egress:      []networkingv1.NetworkPolicyEgressRule{{To: peers, Ports: ports}},
		},
	}
}

func onPort(n int32) networkingv1.NetworkPolicyPort { return onPortOf(corev1.ProtocolTCP, n) }

func onUDP(n int32) networkingv1.NetworkPolicyPort { return onPortOf(corev1.ProtocolUDP, n) }

func onPortOf(protocol corev1.Protocol, n int32) networkingv1.NetworkPolicyPort {
	port := intstr.FromInt32(n)
	return networkingv1.NetworkPolicyPort{Protocol: &protocol, Port: &port}
}

// newEvaluator returns an evaluator with two local pods, 10.128.0.2 with a policy and 10.128.0.3 without, and a remote one, 10.129.0.2. The policy allows
// connections of the first with the remote one, in both directions, to the ports.
func newEvaluator(t *testing.T, ports ...networkingv1.NetworkPolicyPort) *connEvaluator {
	t.Helper()
	e := &connEvaluator{
		node: pipeline.Node{
			Subnets: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/23")}, ServiceNetwork: netip.MustParsePrefix("172.30.0.0/16"),
		},
		engine: policy.New(), pods: map[netip.Addr]policy.PodKey{}, outside: outsideOf,
	}
	for i, p := range []struct {
		namespace, app, addr string
		local                bool
	}{{"evaluated", "evaluated", "10.128.0.2", true}, {"free", "stranger", "10.128.0.3", true}, {"free", "friend", "10.129.0.2", false}} {
		key, addr := policy.PodKey{Namespace: p.namespace, Name: fmt.Sprint(i)}, netip.MustParseAddr(p.addr)
		e.engine.SetNamespace(p.namespace, nil)
		e.engine.SetPod(policy.Pod{PodKey: key, Labels: map[string]string{"app": p.app}, Addrs: []netip.Addr{addr}})
		if p.local {
			e.engine.Attach(key, addr)
			e.pods[addr] = key
		}
	}
	if err := e.engine.SetNetworkPolicy(allowFrom("evaluated", "friend", ports...)); err != nil {
		t.Fatal(err)
	}
	return e
}

// outsideOf returns the outside endpoints of three services: the address that the evaluated pod may reach, but for the port of the second; the third is
// closed.
func outsideOf(addr netip.Addr, _ goovs.Protocol, port uint16) pipeline.OutsideEndpoints {
	friend := netip.MustParseAddr("10.129.0.2")
	switch netip.AddrPortFrom(addr, port).String() {
	case "172.30.0.11:81":
		return pipeline.OutsideEndpoints{Addrs: []netip.AddrPort{netip.AddrPortFrom(friend, 80)}}
	case "172.30.0.12:81":
		return pipeline.OutsideEndpoints{Addrs: []netip.AddrPort{netip.AddrPortFrom(friend, 80), netip.AddrPortFrom(friend, 82)}}
	case "172.30.0.13:81":
		return pipeline.OutsideEndpoints{Closed: true}
	}
	return pipeline.OutsideEndpoints{}
}

func isStale(e *connEvaluator, c ovs.Connection) bool { return e.orphaned(c) || e.forbidden(c) }

func TestConnEvaluator_forbidden(t *testing.T) {
	const evaluated, free, friend, node, world = "10.128.0.2", "10.128.0.3", "10.129.0.2", "10.128.0.1", "192.0.2.1"
	for _, c := range []struct {
		name  string
		conn  ovs.Connection
		stale bool
	}{
		{"out, allowed", tracked(zoneHere, protocolTCP, evaluated+":1000", friend+":80"), false},
		{"out, to another port", tracked(zoneHere, protocolTCP, evaluated+":1000", friend+":81"), true},
		{"out, by another protocol", tracked(zoneHere, protocolUDP, evaluated+":1000", friend+":80"), true},
		{"out, to a stranger", tracked(zoneHere, protocolTCP, evaluated+":1000", free+":80"), true},
		{"out, to the world", tracked(zoneHere, protocolTCP, evaluated+":1000", world+":80"), true},
		{"out, to its node", tracked(zoneHere, protocolTCP, evaluated+":1000", node+":80"), true},
		{"out, a ping, which no rule with ports allows", tracked(zoneHere, protocolICMP, evaluated+":0", friend+":0"), true},
		{"out, a protocol without ports", tracked(zoneHere, protocolGRE, evaluated+":0", friend+":0"), true},
		{"in, allowed", tracked(zoneTarget, protocolTCP, friend+":1000", evaluated+":80"), false},
		{"in, to another port", tracked(zoneTarget, protocolTCP, friend+":1000", evaluated+":81"), true},
		{"in, from a stranger on this node", tracked(zoneHere, protocolTCP, free+":1000", evaluated+":80"), true},
		{"in, from the world", tracked(zoneTarget, protocolTCP, world+":1000", evaluated+":80"), true},
		{"in, a probe of the node", tracked(zoneHere, protocolTCP, node+":1000", evaluated+":80"), false},
		{"between others", tracked(zoneHere, protocolTCP, free+":1000", friend+":81"), false},
		{"SCTP", tracked(zoneHere, protocolSCTP, evaluated+":1000", friend+":80"), true},
		{"to a service, on the way to the proxy", tracked(zoneHere, protocolTCP, evaluated+":1000", "172.30.0.10:81"), false},
		{"to a service whose outside endpoints are allowed", tracked(zoneHere, protocolTCP, evaluated+":1000", "172.30.0.11:81"), false},
		{"to a service with an outside endpoint that is not", tracked(zoneHere, protocolTCP, evaluated+":1000", "172.30.0.12:81"), true},
		{"to a service that is closed", tracked(zoneHere, protocolTCP, evaluated+":1000", "172.30.0.13:81"), true},
		{"to a service that is closed, from others", tracked(zoneHere, protocolTCP, "10.128.0.9:1000", "172.30.0.13:81"), false},
		{"in a zone of endpoints", tracked(0x4002, protocolTCP, evaluated+":1000", friend+":81"), false},
	} {
		if got := isStale(newEvaluator(t, onPort(80)), c.conn); got != c.stale {
			t.Errorf("%s: got not valid %v, want %v", c.name, got, c.stale)
		}
	}
	e := newEvaluator(t)
	if isStale(e, tracked(zoneHere, protocolICMP, evaluated+":0", friend+":0")) {
		t.Error("got not valid for a ping that a rule without ports allows, want valid")
	}
	e.node.Userspace = true
	if isStale(e, tracked(zoneHere, protocolSCTP, evaluated+":0", free+":0")) {
		t.Error("got not valid for SCTP where flows evaluate both directions, want valid")
	}
}

// Flows match a whole namespace by its VNID, so they allow a pod whose address is not known yet, and its connections are valid.
func TestConnEvaluator_unknownPodOfAllowedNamespace(t *testing.T) {
	const evaluated, unknown, world = "10.128.0.5", "10.129.0.77:1000", "192.0.2.1:1000"
	f := newFixture(t, addPolicyWithPeer)
	f.attachPod(podObject("a", "web", "2", "", labels("web")), "s1", 3, evaluated)
	f.networkPolicies.Modify(allowAllOf("a", "web", "b", 8080))
	f.eventually(has(1, "table=81", "reg0=0xb,"))
	f.Policies.mu.Lock()
	defer f.Policies.mu.Unlock()
	for _, c := range []struct {
		conn  ovs.Connection
		stale bool
	}{
		{tracked(zoneTarget, protocolTCP, unknown, evaluated+":8080"), false},
		{tracked(zoneTarget, protocolTCP, unknown, evaluated+":8081"), true},
		{tracked(zoneTarget, protocolTCP, world, evaluated+":8080"), true},
	} {
		if got := isStale(f.evaluator(false), c.conn); got != c.stale {
			t.Errorf("%v: got not valid %v, want %v", c.conn.Original, got, c.stale)
		}
	}
}

// TestConnEvaluator_orphaned: after a restart, connections of addresses of this node without a pod are not valid.
func TestConnEvaluator_orphaned(t *testing.T) {
	const deleted, pod, friend, node = "10.128.0.9", "10.128.0.3", "10.129.0.2", "10.128.0.1"
	translated := tracked(0x4003, protocolTCP, pod+":1000", "172.30.0.10:80")
	translated.Reply.Src = netip.MustParseAddr(deleted)
	for _, c := range []struct {
		name     string
		conn     ovs.Connection
		orphaned bool
	}{
		{"opened by the deleted pod", tracked(zoneHere, protocolTCP, deleted+":1000", friend+":80"), true},
		{"opened to the deleted pod", tracked(zoneTarget, protocolUDP, friend+":1000", deleted+":53"), true},
		{"of the deleted pod to a service", tracked(0x4009, protocolTCP, deleted+":1000", "172.30.0.10:80"), true},
		{"to the deleted pod through a service", translated, true},
		{"between other pods", tracked(zoneHere, protocolTCP, pod+":1000", friend+":80"), false},
		{"of the node", tracked(zoneHere, protocolTCP, node+":1000", pod+":80"), false},
	} {
		e := newEvaluator(t)
		if isStale(e, c.conn) {
			t.Errorf("%s: the connection is not valid before the restart", c.name)
		}
		e.local = map[netip.Addr]struct{}{netip.MustParseAddr(pod): {}, netip.MustParseAddr("10.128.0.2"): {}}
		if got := isStale(e, c.conn); got != c.orphaned {
			t.Errorf("%s: got not valid %t, want %t", c.name, got, c.orphaned)
		}
	}
}

func TestFlush_changesOfPolicies(t *testing.T) { synctest.Test(t, testFlushChangesOfPolicies) }

func testFlushChangesOfPolicies(t *testing.T) {
	f := newPrimed(t, func(f *fixture) { f.tenant("a", 10, nil) })
	<-time.After(testTimeout) // the first evaluation is over
	all := []ovs.Connection{
		tracked(zoneHere, protocolTCP, "10.128.0.2:1000", "10.128.0.3:80"),
		tracked(zoneHere, protocolTCP, "10.128.0.2:1000", "10.128.0.3:81"),
		tracked(0x4002, protocolTCP, "10.128.0.2:1001", "172.30.0.10:80"),
	}
	connect := func() {
		for _, c := range f.bridge.Tracked() {
			tx := f.bridge.NewTransaction()
			tx.Flush(c)
			f.must(f.bridge.Run(t.Context(), tx))
		}
		for _, c := range all {
			f.bridge.Connect(ovs.Connections{Zone: c.Zone, Protocol: c.Protocol, Original: c.Original, Reply: c.Reply})
		}
	}
	expect := func(what string, left int) {
		t.Helper()
		f.store.Update(flowstore.Update{Revoked: flowstore.Revocation{Permission: true}})
		<-time.After(2 * testTimeout) // the longest backoff is over
		synctest.Wait()
		if got := f.bridge.Tracked(); len(got) != left {
			t.Errorf("%s: got %d connections, want %d: %v", what, len(got), left, got)
		}
	}
	connect()
	expect("no pod", 3)
	f.attachPod(podObject("a", "client", "1", "10.128.0.2", map[string]string{"app": "client"}), "1", 3, "10.128.0.2")
	f.attachPod(podObject("a", "server", "2", "10.128.0.3", map[string]string{"app": "server"}), "2", 4, "10.128.0.3")
	expect("no policies", 3)

	f.Policies.mu.Lock()
	err := f.compiler.engine.SetNetworkPolicy(allowFrom("a", "client", onPort(80)))
	f.Policies.mu.Unlock()
	f.must(err)
	expect("the client may reach no server", 1)

	f.Policies.mu.Lock()
	f.compiler.engine.DeleteNetworkPolicy("a", "allow")
	f.Policies.mu.Unlock()
	connect()
	expect("the policy was deleted", 3)
	f.bridge.SetUnavailable(true)
	f.store.Update(flowstore.Update{Revoked: flowstore.Revocation{Permission: true, Addrs: []netip.Addr{netip.MustParseAddr("10.128.0.2")}}})
	expect("the client was deleted while Open vSwitch is unavailable", 3)
	f.bridge.SetUnavailable(false)
	expect("Open vSwitch is available again", 0)
}

func BenchmarkConnEvaluator100k(b *testing.B) {
	var conns []ovs.Connection
	for i := range 100_000 {
		conns = append(conns, tracked(zoneHere, protocolTCP, fmt.Sprintf("10.128.0.2:%d", 1+i%60_000), fmt.Sprintf("10.129.%d.2:80", i%100)))
	}
	for _, rules := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("rules=%d", rules), func(b *testing.B) {
			e := newEvaluator(&testing.T{})
			for i := range rules {
				p := allowFrom("evaluated", fmt.Sprint("app", i), onPort(80))
				p.Name = fmt.Sprint(i)
				if err := e.engine.SetNetworkPolicy(p); err != nil {
					b.Fatal(err)
				}
			}
			var lock sync.Mutex
			for b.Loop() {
				for _, c := range conns {
					lock.Lock()
					isStale(e, c)
					lock.Unlock()
				}
			}
		})
	}
}
