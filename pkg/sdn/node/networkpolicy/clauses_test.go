package networkpolicy

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/oracle"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
	"github.com/ovsdn/ovsdn/test/tier"
)

// newSingleNode returns the first of two nodes, with an empty switch.
func newSingleNode(t *testing.T) *testNode {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	s := newTestNode(t, 0)
	s.reset(pipeline.Node{Mode: config.ModeNetworkPolicy, Userspace: true})
	s.engine.SetNamespace("ns", nil)
	return s
}

// pod adds a pod on this node or the other.
func (s *testNode) pod(node int, last byte, app string) oracle.Endpoint {
	addr := netip.AddrFrom4([4]byte{10, 128, byte(2 * node), last})
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("%s%d", app, last), Labels: map[string]string{"app": app}}}
	p.Spec.NodeName = fmt.Sprintf("n%d", node+1)
	p.Status.PodIP, p.Status.PodIPs = addr.String(), []corev1.PodIP{{IP: addr.String()}}
	if s.isLocal(p) {
		s.attach(p, 0)
	}
	s.engine.SetPod(policy.NewPod(p))
	return oracle.Endpoint{Addr: addr, Pod: p}
}

func (s *testNode) allow(t *testing.T, name string, rules ...networkingv1.NetworkPolicyIngressRule) {
	t.Helper()
	if err := s.engine.SetNetworkPolicy(&networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec:       networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "target"}}, Ingress: rules},
	}); err != nil {
		t.Fatal(err)
	}
}

func tcpFrom(number int, peers ...networkingv1.NetworkPolicyPeer) networkingv1.NetworkPolicyIngressRule {
	return networkingv1.NetworkPolicyIngressRule{From: peers, Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromInt(number))}}}
}

func block(cidr string) networkingv1.NetworkPolicyPeer {
	return networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: cidr}}
}

// ruleFlows counts the flows of rules of network policies.
func (s *testNode) ruleFlows(t *testing.T) int {
	t.Helper()
	return len(slices.DeleteFunc(s.sw.Dump(t), func(flow string) bool { return !strings.Contains(flow, "conj") }))
}

// check traces a TCP connection.
func (s *testNode) check(t *testing.T, from, to oracle.Endpoint, port int32, want bool) {
	t.Helper()
	got, err := s.allows([]oracle.Connection{{From: from, To: to, Protocol: corev1.ProtocolTCP, Port: port}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got[0] != want {
		t.Errorf("%s to %s, port %d: got allowed %v, want %v", end(from), end(to), port, got[0], want)
	}
}

// The number of flows is about the sum of targets and peers, not their product.
func TestTargetsTimesPeers(t *testing.T) {
	tier.Parallel(t)
	s := newSingleNode(t)
	var targets, peers []oracle.Endpoint
	for i := range 200 {
		targets = append(targets, s.pod(0, byte(2+i), "target"))
		peers = append(peers, s.pod(1, byte(2+i), "peer"))
	}
	stranger := s.pod(1, 250, "stranger")
	s.allow(t, "np", tcpFrom(80, networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "peer"}}}))
	s.write(t, true)
	const most = 450
	n := s.ruleFlows(t)
	if n > most {
		t.Errorf("%d flows, want at most %d", n, most)
	}
	t.Logf("%d targets, %d peers: %d flows", len(targets), len(peers), n)
	for i := range targets {
		s.check(t, peers[len(peers)-1-i], targets[i], 80, true)
		s.check(t, peers[i], targets[i], 81, false)
		s.check(t, stranger, targets[i], 80, false)
	}
}

// One pod and one port may have more rules than a flow can have conjunction actions.
func TestTenThousandPolicies(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: size")
	}
	s := newSingleNode(t)
	const policies = 10_000
	peer := func(i int) oracle.Endpoint {
		return oracle.Endpoint{Addr: netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)})}
	}
	target, other := s.pod(0, 2, "target"), s.pod(0, 3, "target")
	s.write(t, true)
	start := time.Now()
	for i := range policies {
		s.allow(t, fmt.Sprintf("np%d", i), tcpFrom(80, block(peer(i).Addr.String()+"/32")))
	}
	s.write(t, false)
	t.Logf("%d policies: %d flows, installed after %v", policies, s.ruleFlows(t), time.Since(start).Round(time.Millisecond))
	for _, i := range []int{0, 1, 2999, 3000, 6000, 9999} {
		s.check(t, peer(i), target, 80, true)
		s.check(t, peer(i), other, 80, true)
		s.check(t, peer(i), other, 81, false)
	}
	s.check(t, peer(policies), target, 80, false)
	start = time.Now()
	s.allow(t, "np7", tcpFrom(81, block(peer(7).Addr.String()+"/32")))
	s.write(t, false)
	t.Logf("one of them changed: installed after %v", time.Since(start).Round(time.Millisecond))
	s.check(t, peer(7), target, 80, false)
	s.check(t, peer(7), target, 81, true)
	for i := range policies {
		s.engine.DeleteNetworkPolicy("ns", fmt.Sprintf("np%d", i))
	}
	s.write(t, false)
	if n := s.ruleFlows(t); n != 0 {
		t.Errorf("%d flows remain, want 0", n)
	}
	s.check(t, peer(policies), target, 80, true)
}

// IPv6 blocks, which users write besides 0.0.0.0/0, result in no invalid flows.
func TestIPv6BlocksHaveNoFlows(t *testing.T) {
	tier.Parallel(t)
	s := newSingleNode(t)
	target := s.pod(0, 2, "target")
	s.allow(t, "np", tcpFrom(80, block("0.0.0.0/0"), block("::/0"), block("2001:db8::1/128")))
	s.allow(t, "np6", tcpFrom(81, block("::/0")))
	s.write(t, true)
	world := oracle.Endpoint{Addr: netip.MustParseAddr("192.0.2.7")}
	s.check(t, world, target, 80, true)
	s.check(t, world, target, 81, false)
}
