package policies

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/policy"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

const (
	zoneHere   = 0x6002
	zoneTarget = 0x8002
	protoICMP  = 1
	protoGRE   = 47
)

// tracked is a connection from one address and port to another.
func tracked(zone uint16, protocol uint8, from, to string) ovs.Connection {
	src, dst := netip.MustParseAddrPort(from), netip.MustParseAddrPort(to)
	c := ovs.Connection{
		Zone: zone, Protocol: protocol,
		Original: ovs.Tuple{Src: src.Addr(), Dst: dst.Addr(), SrcPort: src.Port(), DstPort: dst.Port()},
		Reply:    ovs.Tuple{Src: dst.Addr(), Dst: src.Addr(), SrcPort: dst.Port(), DstPort: src.Port()},
	}
	if protocol == protoICMP {
		c.Original.ICMP, c.Reply.ICMP = ovs.ICMP{ID: 1, Type: 8}, ovs.ICMP{ID: 1}
	}
	return c
}

// allowFrom lets pods with the label app into those of the namespace, and those of the namespace out to them: to TCP port 80, or all.
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

// newJudge knows a judged pod at 10.128.0.2 and one without policies at 10.128.0.3, both here, and a pod elsewhere at 10.129.0.2 that the
// judged one may reach, and be reached by, on TCP port 80.
func newJudge(t *testing.T, ports ...networkingv1.NetworkPolicyPort) *judge {
	t.Helper()
	j := &judge{
		node: pipeline.Node{
			Subnets: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/23")}, ServiceNetwork: netip.MustParsePrefix("172.30.0.0/16"),
		},
		engine: policy.New(), homes: map[netip.Addr]policy.PodKey{}, zones: map[uint16]struct{}{}, outside: outsideOf,
	}
	for i, p := range []struct {
		namespace, app, addr string
		here                 bool
	}{{"judged", "judged", "10.128.0.2", true}, {"free", "stranger", "10.128.0.3", true}, {"free", "friend", "10.129.0.2", false}} {
		key, addr := policy.PodKey{Namespace: p.namespace, Name: fmt.Sprint(i)}, netip.MustParseAddr(p.addr)
		j.engine.SetNamespace(p.namespace, nil)
		j.engine.SetPod(policy.Pod{PodKey: key, Labels: map[string]string{"app": p.app}, Addrs: []netip.Addr{addr}})
		if p.here {
			j.engine.Attach(key, addr)
			j.homes[addr] = key
		}
	}
	if err := j.engine.SetNetworkPolicy(allowFrom("judged", "friend", ports...)); err != nil {
		t.Fatal(err)
	}
	return j
}

// outsideOf returns the outside endpoints of three services: the address that the judged pod may reach, but for the port of the second; the third is
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

func cuts(j *judge, c ovs.Connection) bool {
	before := len(j.cut)
	j.look(c)
	return len(j.cut) > before
}

func TestWhichConnectionsAreCut(t *testing.T) {
	const judged, free, friend, node, world = "10.128.0.2", "10.128.0.3", "10.129.0.2", "10.128.0.1", "192.0.2.1"
	for _, c := range []struct {
		name string
		conn ovs.Connection
		cut  bool
	}{
		{"out, allowed", tracked(zoneHere, protoTCP, judged+":1000", friend+":80"), false},
		{"out, to another port", tracked(zoneHere, protoTCP, judged+":1000", friend+":81"), true},
		{"out, by another protocol", tracked(zoneHere, protoUDP, judged+":1000", friend+":80"), true},
		{"out, to a stranger", tracked(zoneHere, protoTCP, judged+":1000", free+":80"), true},
		{"out, to the world", tracked(zoneHere, protoTCP, judged+":1000", world+":80"), true},
		{"out, to its node", tracked(zoneHere, protoTCP, judged+":1000", node+":80"), true},
		{"out, a ping, of which rules with ports say nothing", tracked(zoneHere, protoICMP, judged+":0", friend+":0"), true},
		{"out, a protocol without ports", tracked(zoneHere, protoGRE, judged+":0", friend+":0"), true},
		{"in, allowed", tracked(zoneTarget, protoTCP, friend+":1000", judged+":80"), false},
		{"in, to another port", tracked(zoneTarget, protoTCP, friend+":1000", judged+":81"), true},
		{"in, from a stranger on this node", tracked(zoneHere, protoTCP, free+":1000", judged+":80"), true},
		{"in, from the world", tracked(zoneTarget, protoTCP, world+":1000", judged+":80"), true},
		{"in, a probe of the node", tracked(zoneHere, protoTCP, node+":1000", judged+":80"), false},
		{"between others", tracked(zoneHere, protoTCP, free+":1000", friend+":81"), false},
		{"SCTP", tracked(zoneHere, protoSCTP, judged+":1000", friend+":80"), true},
		{"to a service, on the way to the proxy", tracked(zoneHere, protoTCP, judged+":1000", "172.30.0.10:81"), false},
		{"to a service whose outside endpoints are allowed", tracked(zoneHere, protoTCP, judged+":1000", "172.30.0.11:81"), false},
		{"to a service with an outside endpoint that is not", tracked(zoneHere, protoTCP, judged+":1000", "172.30.0.12:81"), true},
		{"to a service that is closed", tracked(zoneHere, protoTCP, judged+":1000", "172.30.0.13:81"), true},
		{"to a service that is closed, from others", tracked(zoneHere, protoTCP, "10.128.0.9:1000", "172.30.0.13:81"), false},
		{"in a zone of endpoints", tracked(0x4002, protoTCP, judged+":1000", friend+":81"), false},
	} {
		if got := cuts(newJudge(t, onPort(80)), c.conn); got != c.cut {
			t.Errorf("%s: cut %v, want %v", c.name, got, c.cut)
		}
	}
	j := newJudge(t)
	if cuts(j, tracked(zoneHere, protoICMP, judged+":0", friend+":0")) {
		t.Error("a ping is cut that a rule without ports allows")
	}
	j.node.StatelessSCTP = true
	if cuts(j, tracked(zoneHere, protoSCTP, judged+":0", free+":0")) {
		t.Error("SCTP is cut where both directions are judged")
	}
}

// The flows know entire namespaces by their VNID, and so let in a pod whose address nobody has told of yet.
func TestConnectionsOfAPodThatNobodyHasToldOfYet(t *testing.T) {
	const judged, yet, world = "10.128.0.5", "10.129.0.77:1000", "192.0.2.1:1000"
	f := newFixture(t, two)
	f.come(podObject("a", "web", "2", "", labels("web")), "s1", 3, judged)
	f.networkPolicies.Modify(allowAllOf("a", "web", "b", 8080))
	f.eventually(has(1, "table=81", "reg0=0xb,"))
	f.Policies.mu.Lock()
	defer f.Policies.mu.Unlock()
	for _, c := range []struct {
		conn ovs.Connection
		cut  bool
	}{
		{tracked(zoneTarget, protoTCP, yet, judged+":8080"), false},
		{tracked(zoneTarget, protoTCP, yet, judged+":8081"), true},
		{tracked(zoneTarget, protoTCP, world, judged+":8080"), true},
	} {
		if got := cuts(f.judge(), c.conn); got != c.cut {
			t.Errorf("%v: cut %v, want %v", c.conn.Original, got, c.cut)
		}
	}
}

func TestConnectionsOfAnAddressThatLostItsPodAreCut(t *testing.T) {
	j := newJudge(t)
	j.gone = map[netip.Addr]struct{}{netip.MustParseAddr("10.128.0.9"): {}}
	const gone, free, friend = "10.128.0.9", "10.128.0.3", "10.129.0.2"
	translated := tracked(0x4003, protoTCP, free+":1000", "172.30.0.10:80")
	translated.Reply.Src = netip.MustParseAddr(gone)
	for name, c := range map[string]ovs.Connection{
		"what it opened":         tracked(zoneHere, protoTCP, gone+":1000", friend+":80"),
		"what was opened to it":  tracked(zoneTarget, protoUDP, friend+":1000", gone+":53"),
		"its own endpoints":      tracked(0x4009, protoTCP, gone+":1000", "172.30.0.10:80"),
		"as somebody's endpoint": translated,
	} {
		if !cuts(j, c) {
			t.Errorf("%s is not cut", name)
		}
	}
	if cuts(j, tracked(zoneHere, protoTCP, free+":1000", friend+":80")) {
		t.Error("others' connections are cut")
	}
}

// What can't be named alone goes with its zone, a few zones at a time.
func TestConnectionsGoWithTheirZone(t *testing.T) {
	j := newJudge(t, onPort(80))
	j.look(tracked(zoneHere, protoSCTP, "10.128.0.2:1000", "192.0.2.1:9"))
	for i := range 10 {
		j.look(tracked(zoneHere, protoGRE, "10.128.0.2:0", fmt.Sprintf("192.0.2.%d:0", i)))
	}
	if len(j.cut) != 1 || j.cut[0] != (ovs.Connections{Zone: zoneHere}) {
		t.Errorf("forgotten: %v", j.cut)
	}
	for zone := range uint16(2 * maxZones) {
		j.look(tracked(zoneTarget+zone, protoGRE, "192.0.2.1:0", "10.128.0.2:0"))
	}
	if len(j.cut) != maxZones || !j.more {
		t.Errorf("%d zones, want %d; more to come: %v", len(j.cut), maxZones, j.more)
	}
	j.look(tracked(zoneTarget+2*maxZones, protoTCP, "192.0.2.1:1000", "10.128.0.2:80"))
	if len(j.cut) != maxZones+1 {
		t.Error("what the switch finds at once waits")
	}
}

// No more are held in memory than go in one run.
func TestManyConnectionsAreCutInSeveralRuns(t *testing.T) {
	j := newJudge(t)
	for i := range maxCut + 5 {
		j.look(tracked(zoneHere, protoTCP, fmt.Sprintf("10.128.0.2:%d", 1+i%50_000), "192.0.2.1:80"))
	}
	if len(j.cut) != maxCut || !j.more {
		t.Errorf("%d are cut, want %d; more to come: %v", len(j.cut), maxCut, j.more)
	}
}

func TestCutsFollowPolicies(t *testing.T) {
	f := newPrimed(t, func(f *fixture) { f.tenant("a", 10, nil) }) // its own cuts would come between
	cuts := newCuts(f.bridge, &f.Policies.mu, f.judge)
	all := []ovs.Connection{
		tracked(zoneHere, protoTCP, "10.128.0.2:1000", "10.128.0.3:80"),
		tracked(zoneHere, protoTCP, "10.128.0.2:1000", "10.128.0.3:81"),
		tracked(0x4002, protoTCP, "10.128.0.2:1001", "172.30.0.10:80"),
	}
	connect := func() {
		for _, c := range f.bridge.Tracked() {
			tx := f.bridge.NewTransaction()
			tx.Forget(c)
			f.must(f.bridge.Run(t.Context(), tx))
		}
		for _, c := range all {
			f.bridge.Connect(ovs.Connections{Zone: c.Zone, Protocol: c.Protocol, Original: c.Original, Reply: c.Reply})
		}
	}
	expect := func(what string, left int) {
		t.Helper()
		f.must(cuts.cut(t.Context()))
		if got := f.bridge.Tracked(); len(got) != left {
			t.Errorf("%s: %d connections are left, want %d: %v", what, len(got), left, got)
		}
	}
	connect()
	expect("nobody is here", 3)
	f.come(podObject("a", "client", "1", "10.128.0.2", map[string]string{"app": "client"}), "1", 3, "10.128.0.2")
	f.come(podObject("a", "server", "2", "10.128.0.3", map[string]string{"app": "server"}), "2", 4, "10.128.0.3")
	expect("there are no policies", 3)

	f.Policies.mu.Lock()
	err := f.compiler.engine.SetNetworkPolicy(allowFrom("a", "client", onPort(80)))
	f.Policies.mu.Unlock()
	f.must(err)
	expect("the client may not reach what is no client", 1)

	f.Policies.mu.Lock()
	f.compiler.engine.DeleteNetworkPolicy("a", "allow")
	f.Policies.mu.Unlock()
	connect()
	expect("the policy is gone", 3)
	cuts.Forget(netip.MustParseAddr("10.128.0.2"))
	f.bridge.SetUnavailable(true)
	if err := cuts.cut(t.Context()); !ovs.IsUnavailable(err) {
		t.Errorf("got %v", err)
	}
	f.bridge.SetUnavailable(false)
	expect("the client went while the switch was away", 0)
}

func BenchmarkJudge100k(b *testing.B) {
	var conns []ovs.Connection
	for i := range 100_000 {
		conns = append(conns, tracked(zoneHere, protoTCP, fmt.Sprintf("10.128.0.2:%d", 1+i%60_000), fmt.Sprintf("10.129.%d.2:80", i%100)))
	}
	for _, rules := range []int{1, 10, 100} {
		b.Run(fmt.Sprintf("rules=%d", rules), func(b *testing.B) {
			j := newJudge(&testing.T{})
			for i := range rules {
				p := allowFrom("judged", fmt.Sprint("app", i), onPort(80))
				p.Name = fmt.Sprint(i)
				if err := j.engine.SetNetworkPolicy(p); err != nil {
					b.Fatal(err)
				}
			}
			var lock sync.Mutex
			for b.Loop() {
				j.cut = nil
				for _, c := range conns {
					lock.Lock()
					j.look(c)
					lock.Unlock()
				}
			}
		})
	}
}
