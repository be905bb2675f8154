package attacks

import (
	"context"
	"net/netip"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/lab"
)

// hostileName is the name that the attackers' policy allows.
const hostileName = "attack.example.com"

// testEgressFirewalls has a tenant open, by EgressNetworkPolicies and DNS, what is closed to it. The pods are in namespaces of their own, so that the firewalls
// concern no other attack.
func testEgressFirewalls(t *testing.T, w *world) {
	t.Run("DNS answers", func(t *testing.T) { testHostileDNS(t, w) })
	t.Run("shared VNID", func(t *testing.T) { testSharedFirewall(t, w) })
	t.Run("other policies", func(t *testing.T) { testFirewallOpensNothing(t, w) })
}

// unprobed starts pods on node1 of which kubelet expects no answer.
func (w *world) unprobed(t *testing.T, namespace string, names ...string) []fixture.Pod {
	t.Helper()
	objects := make([]*corev1.Pod, len(names))
	for i, name := range names {
		objects[i] = fixture.Netexec(name, fixture.Node1)
		objects[i].Spec.Containers[0].ReadinessProbe = nil
	}
	pods := w.Run(t, namespace, objects...)
	for _, p := range pods {
		fixture.Meet(t, p.NetNS, lab.OutsideAddr())
	}
	return pods
}

func allow(to networkv1.EgressNetworkPolicyPeer) networkv1.EgressNetworkPolicyRule {
	return networkv1.EgressNetworkPolicyRule{Type: networkv1.EgressNetworkPolicyRuleAllow, To: to}
}

func deny(addr netip.Addr) networkv1.EgressNetworkPolicyRule {
	r := denyAll()
	r.To.CIDRSelector = netip.PrefixFrom(addr, addr.BitLen()).String()
	return r
}

func denyAll() networkv1.EgressNetworkPolicyRule {
	return networkv1.EgressNetworkPolicyRule{Type: networkv1.EgressNetworkPolicyRuleDeny, To: networkv1.EgressNetworkPolicyPeer{CIDRSelector: "0.0.0.0/0"}}
}

func allowAll() networkv1.EgressNetworkPolicyRule {
	return allow(networkv1.EgressNetworkPolicyPeer{CIDRSelector: "0.0.0.0/0"})
}

// setFirewall makes the EgressNetworkPolicy of a namespace that the test deletes with its pods.
func (w *world) setFirewall(t *testing.T, namespace, name string, rules ...networkv1.EgressNetworkPolicyRule) {
	t.Helper()
	o := &networkv1.EgressNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkv1.EgressNetworkPolicySpec{Egress: rules}}
	if _, err := w.Network.NetworkV1().EgressNetworkPolicies(namespace).Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// outsideFrom is the host outside as a receiver; the control comes from a pod that may send to the address.
func (w *world) outsideFrom(control fixture.Pod, addr netip.Addr) receiver {
	return receiver{name: "the host outside", listen: captures(w.outside.NetNS, "eth0"), control: sendsUDP(control.NetNS, to(addr))}
}

// testHostileDNS has DNS answer for an allowed name with what no name opens. An address of the host outside is in the answer, too, and is reached: so the answer
// is active.
func testHostileDNS(t *testing.T, w *world) {
	const port = 5010
	namespace := w.Namespace(t)
	pods := w.unprobed(t, namespace, "client", "server")
	p := pods[0]
	node1, node2, hidden := w.Addr(t, fixture.Node1), w.Addr(t, fixture.Node2), outsideAddr()
	udp := fixture.ServicePort{Protocol: "UDP", Port: port, Target: controlPort}
	toNode := w.ExposeAddr(t, namespace, "to-node2", udp, node2)
	toHidden := w.ExposeAddr(t, namespace, "to-hidden", udp, hidden)
	ofVictim, _ := w.nodePort(t, w.victims, "of-v2-for-dns", udp, w.v2.Addr)
	w.settle(t, namespace, p, pods[1]) // before the firewall denies node ports
	metadata, loopback := netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("127.0.0.1")
	server := w.answerDNS(t, w.node1,
		lab.OutsideAddr(), node1, node2, toNode, toHidden, ofVictim, w.v1.Addr, w.v2.Addr, w.v1.Gateway(), w.v2.Gateway(), metadata, loopback)
	w.setFirewall(t, namespace, "default", allow(networkv1.EgressNetworkPolicyPeer{DNSName: hostileName}), denyAll())
	fixture.Eventually(t, fixture.SyncTime, "the agent asks the DNS server", func(context.Context) error { return server.wasAsked() })
	w.waitFirewall(t, p, hidden)

	host := receiver{name: "tun0 of node1", listen: captures(w.node1.NetNS, "tun0"), control: sendsUDP(p.NetNS, to(lab.OutsideAddr()))}
	second := receiver{name: fixture.Node2, listen: captures(w.node2.NetNS, "eth0"), control: sendsUDP(w.v1.NetNS, to(node2))}
	outside := w.outsideFrom(w.v1, hidden)
	dropped := []counter{w.drops(fixture.Node1, ""), w.drops(fixture.Node2, ""), w.rules(fixture.Node1), w.rules(fixture.Node2)}
	for _, a := range []struct {
		name string
		dst  netip.AddrPort
		at   []receiver
	}{
		{"own node", to(node1), []receiver{host}},
		{"another node", to(node2), []receiver{host, second}},
		{"own service to a node", netip.AddrPortFrom(toNode, port), []receiver{second}},
		{"own service to a denied host", netip.AddrPortFrom(toHidden, port), []receiver{outside}},
		{"another tenant's service", netip.AddrPortFrom(ofVictim, port), []receiver{podFrom(w.v2, w.v1)}},
		{"another tenant's pod on the own node", to(w.v1.Addr), []receiver{podFrom(w.v1, w.v2)}},
		{"another tenant's pod on another node", to(w.v2.Addr), []receiver{podFrom(w.v2, w.v1)}},
		{"metadata service", to(metadata), []receiver{host}},
		{"loopback", to(loopback), []receiver{host}},
	} {
		t.Run(a.name, func(t *testing.T) {
			w.try(t, attack{
				position: aTenant, sent: "UDP to " + a.dst.String() + ", with which DNS answers for an allowed name",
				send: fromPod(p, func(token []byte) [][]byte { return [][]byte{datagram(p, a.dst, token)} }), at: a.at, counters: dropped,
			})
		})
	}
	t.Run("segments like replies", func(t *testing.T) { testReplyLike(t, w, p, netip.AddrPortFrom(hidden, controlPort), outside) })
	fixture.Eventually(t, fixture.SyncTime, "the agent asks again, since the TTL is a second", func(context.Context) error { return server.wasAsked() })
}

// waitFirewall returns when the firewall on node1 drops what the pod sends to the address, and an allowed address is reached.
func (w *world) waitFirewall(t *testing.T, p fixture.Pod, addr netip.Addr) {
	t.Helper()
	w.waitDropped(t, p, addr, w.drops(fixture.Node1, "100"))
	fixture.Meet(t, p.NetNS, lab.OutsideAddr())
}

// testReplyLike has a pod send to a denied host what looks like a part of a connection that the host has opened, since replies pass the firewall.
func testReplyLike(t *testing.T, w *world, p fixture.Pod, dst netip.AddrPort, at receiver) {
	flags := []byte{wire.TCPSYN | wire.TCPACK, wire.TCPACK | wire.TCPPSH, 0x04 | wire.TCPACK}
	w.try(t, attack{
		position: aPod, sent: "a SYN-ACK, data and a RST of connections that were never opened, to a denied host", packets: len(flags),
		send: fromPod(p, func(token []byte) (frames [][]byte) {
			src := netip.AddrPortFrom(p.Addr, fixture.HTTPPort)
			for _, f := range flags {
				header := wire.IPv4{Src: src.Addr(), Dst: dst.Addr(), Protocol: wire.ProtocolTCP}
				frames = append(frames, wire.Ethernet(gatewayMAC(p), p.MAC, wire.TypeIPv4, header.Packet(wire.TCPSegment(src, dst, f, token))))
			}
			return frames
		}),
		at: []receiver{at}, counters: []counter{w.drops(fixture.Node1, "")},
	})
}

// testSharedFirewall has a namespace open what another one of the same VNID denies to its own pods. The controls show that the denials of that one do not affect it.
func testSharedFirewall(t *testing.T, w *world) {
	closed, open := w.Namespace(t), w.Namespace(t)
	inside := w.unprobed(t, closed, "inside")[0]
	other := w.unprobed(t, open, "other")[0]
	w.ChangeNetwork(t, open, "join:"+closed)
	w.setFirewall(t, closed, "m", denyAll())
	w.waitDropped(t, inside, lab.OutsideAddr(), w.drops(fixture.Node1, "100"))
	try := func(name string) {
		t.Run(name, func(t *testing.T) {
			w.try(t, attack{
				position: aTenant, sent: "UDP to a host that the own namespace denies, and another of the VNID does not: " + name,
				send: fromPod(inside, func(token []byte) [][]byte { return [][]byte{datagram(inside, to(lab.OutsideAddr()), token)} }),
				at:   []receiver{w.outsideFrom(other, lab.OutsideAddr())}, counters: []counter{w.drops(fixture.Node1, "100")},
			})
		})
	}
	try("no policy in the other namespace")
	// Policies of a namespace are merged by name: this one would come first.
	w.setFirewall(t, open, "a", deny(outsideAddr()), allowAll())
	w.waitDropped(t, other, outsideAddr(), w.drops(fixture.Node1, "100"))
	try("a policy that allows all in the other namespace")
	// The pods of the VNID reach each other.
	fixture.Meet(t, inside.NetNS, other.Addr)
}

// testFirewallOpensNothing has a namespace allow by its EgressNetworkPolicy what its NetworkPolicy, or the administrator's policy, denies.
func testFirewallOpensNothing(t *testing.T, w *world) {
	for _, a := range []struct {
		name  string
		close func(t *testing.T, p fixture.Pod, namespace string)
	}{
		{"NetworkPolicy", func(t *testing.T, p fixture.Pod, namespace string) {
			w.SetPolicy(t, &networkingv1.NetworkPolicy{
				ObjectMeta: metav1.ObjectMeta{Name: "closed", Namespace: namespace},
				Spec:       networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}},
			})
			w.waitDenied(t, p, lab.OutsideAddr())
		}},
		{"ClusterNetworkPolicy", func(t *testing.T, p fixture.Pod, namespace string) {
			w.denyEgress(t, namespace, p, lab.OutsideAddr())
		}},
	} {
		t.Run(a.name, func(t *testing.T) {
			namespace := w.Namespace(t)
			p := w.unprobed(t, namespace, "client")[0]
			host := netip.PrefixFrom(lab.OutsideAddr(), lab.OutsideAddr().BitLen()).String()
			w.setFirewall(t, namespace, "default", allow(networkv1.EgressNetworkPolicyPeer{CIDRSelector: host}), denyAll())
			w.waitFirewall(t, p, outsideAddr())
			a.close(t, p, namespace)
			w.try(t, attack{
				position: aTenant, sent: "UDP to a host that a " + a.name + " denies and the EgressNetworkPolicy allows",
				send: fromPod(p, func(token []byte) [][]byte { return [][]byte{datagram(p, to(lab.OutsideAddr()), token)} }),
				at:   []receiver{w.outsideFrom(w.v1, lab.OutsideAddr())}, counters: []counter{w.drops(fixture.Node1, "29")},
			})
		})
	}
}
