package datapath_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/networkpolicy"
	sdn "github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/kubeproxy"
	"github.com/ovsdn/ovsdn/test/tier"
)

const hairpinVNID = 10

// hairpinPolicies are the policies about the pods of a node, which are all in one namespace.
type hairpinPolicies struct {
	isolated bool // a NetworkPolicy isolates the pods in both directions, and allows nothing
	denies   policyv1alpha2.Tier
	egress   bool // the rule that denies the namespace to itself is of egress
}

// states compiles the pods of a node, and the policies.
func (h hairpinPolicies) states(t *testing.T, n sdn.Node, pods []*datapath.Pod) []sdn.State {
	t.Helper()
	engine := policy.New()
	compiler := networkpolicy.NewCompiler(n, engine)
	const namespace = "a"
	engine.SetNamespace(namespace, nil)
	engine.SetVNID(namespace, hairpinVNID)
	key := func(p *datapath.Pod) policy.PodKey {
		return policy.PodKey{Namespace: namespace, Name: p.Addr.String()}
	}
	pod := func(p *datapath.Pod) sdn.Pod {
		return sdn.Pod{OFPort: p.OFPort, MAC: p.MAC, Addrs: []netip.Addr{p.Addr}, VNID: hairpinVNID}
	}
	for _, p := range pods {
		engine.SetPod(policy.Pod{PodKey: key(p), Addrs: []netip.Addr{p.Addr}})
		compiler.AddSandbox(key(p), sdn.Owner{Kind: sdn.KindPod, Key: p.Addr.String()}, pod(p))
		engine.Attach(key(p), p.Addr)
	}
	if h.isolated {
		must(t, engine.SetNetworkPolicy(&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "isolated"},
			Spec: networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}}}))
	}
	if h.denies != "" {
		must(t, engine.SetClusterNetworkPolicy(h.clusterPolicy()))
	}
	var states []sdn.State
	for _, clause := range engine.Drain() {
		_, state := compiler.Compile(clause)
		states = append(states, state)
	}
	for _, p := range pods {
		compiled := pod(p)
		compiled.Policies.Evaluated = h.isolated || h.denies != ""
		compiled.Policies.Ingress, compiled.Policies.Egress = engine.Isolated(key(p))
		states = append(states, n.Pod(compiled))
	}
	return states
}

// clusterPolicy denies all namespaces to themselves and others.
func (h hairpinPolicies) clusterPolicy() *policyv1alpha2.ClusterNetworkPolicy {
	all := &metav1.LabelSelector{}
	p := &policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "denied"}, Spec: policyv1alpha2.ClusterNetworkPolicySpec{
		Tier: h.denies, Subject: policyv1alpha2.ClusterNetworkPolicySubject{Namespaces: all},
	}}
	const deny = policyv1alpha2.ClusterNetworkPolicyRuleActionDeny
	if h.egress {
		p.Spec.Egress = []policyv1alpha2.ClusterNetworkPolicyEgressRule{{Action: deny, To: []policyv1alpha2.ClusterNetworkPolicyEgressPeer{{Namespaces: all}}}}
	} else {
		p.Spec.Ingress = []policyv1alpha2.ClusterNetworkPolicyIngressRule{{Action: deny, From: []policyv1alpha2.ClusterNetworkPolicyIngressPeer{{Namespaces: all}}}}
	}
	return p
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// testOwnService: a pod reaches itself through a service unless a ClusterNetworkPolicy denies it. A denied connection stops, and continues when it is allowed;
// no packet of a new one arrives. The node reaches the pod all the time.
func testOwnService(t *testing.T, node *datapath.Node, apply func(*testing.T, hairpinPolicies)) {
	pod := node.Pods[0]
	asking, serving, itself, listening := pod.UDP(t, 0), pod.UDP(t, 8080), node.UDP(t, 0), pod.ListenTCP(t, 8080)
	reach := func(t *testing.T, conn datapath.Stream) {
		t.Helper()
		for _, client := range []*datapath.Socket{asking, pod.UDP(t, 0)} {
			mustReachItself(t, pod, client, vip(53), serving)
		}
		conn.MustPass(t)
		pod.Dial(t, vip(80), listening).MustPass(t)
	}
	apply(t, hairpinPolicies{})
	conn := pod.Dial(t, vip(80), listening)
	for _, tc := range []struct {
		name     string
		policies hairpinPolicies
		denied   bool
	}{
		{"NetworkPolicy isolates it", hairpinPolicies{isolated: true}, false},
		{"Admin denies ingress", hairpinPolicies{isolated: true, denies: policyv1alpha2.AdminTier}, true},
		{"Admin denies egress", hairpinPolicies{isolated: true, denies: policyv1alpha2.AdminTier, egress: true}, true},
		{"Baseline denies, NetworkPolicy isolates it", hairpinPolicies{isolated: true, denies: policyv1alpha2.BaselineTier}, false},
		{"Baseline denies", hairpinPolicies{denies: policyv1alpha2.BaselineTier}, true},
		{"no policies", hairpinPolicies{}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			apply(t, tc.policies)
			itself.MustReach(t, serving.Addr(), serving)
			if !tc.denied {
				reach(t, conn)
				return
			}
			asking.MustNotReach(t, vip(53), serving)
			pod.UDP(t, 0).MustNotReach(t, vip(53), serving)
			if err := dialError(t, &pod.Host, vip(80), time.Second); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("a new connection to %s: got %v, want no answer", vip(80), err)
			}
			datapath.MustNotPass(t, conn.Client, conn.Server)
			apply(t, hairpinPolicies{})
			datapath.MustArrive(t, conn.Server, time.Minute)
			reach(t, conn)
		})
	}
}

// mustReachItself sends from the pod to an address that leads back to the pod, and a reply.
func mustReachItself(t *testing.T, pod *datapath.Pod, client *datapath.Socket, to netip.AddrPort, serving *datapath.Socket) {
	t.Helper()
	from := client.MustReach(t, to, serving)
	if from.Addr() == pod.Addr {
		t.Errorf("source at the endpoint: got the pod's own address %s", from)
	}
	if from := serving.MustReach(t, from, client); from != to {
		t.Errorf("source of the reply: got %s, want %s", from, to)
	}
}

// TestHairpin tests hairpins of kube-proxy in mode iptables with the agent's firewall, and TestBalancedServices those of the switch
// (docs/decisions/0013-hairpins.md).
func TestHairpin(t *testing.T) {
	tier.Parallel(t)
	h := newHostHairpin(t)
	for protocol, port := range map[string]uint16{"udp": 53, "tcp": 80} {
		to := fmt.Sprintf("-d %s -p %s --dport %d", vip(port).Addr(), protocol, port)
		h.node.Sh(t, fmt.Sprintf("iptables -t nat -A PREROUTING -s %s %s -j MARK --or-mark 0x4000", h.pod.Addr, to),
			fmt.Sprintf("iptables -t nat -A PREROUTING %s -j DNAT --to-destination %s:8080", to, h.pod.Addr))
	}
	h.node.Sh(t, "iptables -t nat -I POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE --random-fully")
	h.eachMode(t, func(t *testing.T) { testOwnService(t, h.node, h.applyPolicies) })
}

// TestHairpin_nftables is TestHairpin for kube-proxy in mode nftables, which masquerades hairpins without its mark, and those of node ports, too.
func TestHairpin_nftables(t *testing.T) {
	tier.Parallel(t)
	h := newHostHairpin(t)
	nodePort, endpoint := netip.AddrPortFrom(h.node.VTEP, 30053), netip.AddrPortFrom(h.pod.Addr, 8080)
	h.node.Sh(t, "nft -f - <<'EOF'\n"+kubeproxy.NFTables(
		kubeproxy.Port{Protocol: "udp", At: vip(53), Endpoint: endpoint},
		kubeproxy.Port{Protocol: "tcp", At: vip(80), Endpoint: endpoint},
		kubeproxy.Port{Protocol: "udp", At: nodePort, Endpoint: endpoint, Masqueraded: true},
	)+"EOF")
	h.eachMode(t, func(t *testing.T) {
		t.Run("service", func(t *testing.T) { testOwnService(t, h.node, h.applyPolicies) })
		t.Run("node port", func(t *testing.T) { h.testOwnNodePort(t, nodePort, endpoint.Port()) })
	})
}

// testOwnNodePort: a pod reaches itself through a node port unless a ClusterNetworkPolicy denies it.
func (h hostHairpin) testOwnNodePort(t *testing.T, nodePort netip.AddrPort, port uint16) {
	asking, serving := h.pod.UDP(t, 0), h.pod.UDP(t, port)
	for _, egress := range []bool{false, true} {
		h.applyPolicies(t, hairpinPolicies{})
		mustReachItself(t, h.pod, asking, nodePort, serving)
		h.applyPolicies(t, hairpinPolicies{denies: policyv1alpha2.AdminTier, egress: egress})
		asking.MustNotReach(t, nodePort, serving)
		h.pod.UDP(t, 0).MustNotReach(t, nodePort, serving)
	}
}

// hostHairpin is a node with the agent's firewall, whose pod is the endpoint of a service through a proxy of the host.
type hostHairpin struct {
	*product
	node *datapath.Node
	pod  *datapath.Pod
}

func newHostHairpin(t *testing.T) hostHairpin {
	t.Helper()
	h := hostHairpin{product: &product{Network: datapath.New(t, 1)}}
	h.node = h.Nodes[0]
	h.pod = h.node.AddPod(t)
	h.protect(t, h.node)
	return h
}

func (h hostHairpin) eachMode(t *testing.T, run func(t *testing.T)) {
	for _, mode := range []config.Mode{config.ModeMultitenant, config.ModeNetworkPolicy} {
		t.Run(mode.String(), func(t *testing.T) {
			if testing.Short() && mode != config.ModeNetworkPolicy {
				t.Skip("complete tier: another mode")
			}
			h.mode = mode
			run(t)
		})
	}
}

// applyPolicies installs the flows of the node with the policies.
func (h hostHairpin) applyPolicies(t *testing.T, policies hairpinPolicies) {
	t.Helper()
	n := h.compiler(h.node)
	service := n.Service(sdn.Service{ClusterIPs: []netip.Addr{vip(0).Addr()}, VNID: hairpinVNID, Ports: []sdn.ServicePort{
		{Protocol: goovs.ProtocolTCPv4, Port: 80}, {Protocol: goovs.ProtocolUDPv4, Port: 53},
	}})
	h.install(t, h.node, append(policies.states(t, n, h.node.Pods), service), nil)
}

// testBalancedHairpinPolicies is TestHairpin for services in the switch.
func testBalancedHairpinPolicies(t *testing.T, b *balanced) {
	if b.mode == config.ModeSubnet {
		return // evaluates no policies
	}
	pod := b.pod(0, 0)
	b.endpoints, b.vnid = []netip.AddrPort{netip.AddrPortFrom(pod.Addr, 8080)}, hairpinVNID
	testOwnService(t, b.Nodes[0], func(t *testing.T, policies hairpinPolicies) {
		t.Helper()
		b.selfPolicies = &policies
		b.install(t)
	})
}
