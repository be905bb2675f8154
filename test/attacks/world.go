package attacks

import (
	"fmt"
	"net"
	"net/netip"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/lab"
	"github.com/ovsdn/ovsdn/test/tier"
)

// controlPort is where controls and attacks send UDP, if the port does not matter.
const controlPort = 7007

// world is the cluster that attackers find: two tenants on all nodes, a namespace of VNID 0, and one whose server admits only friends. In the short
// tier it has only the pods and the namespaces of the two tenants, and the policies.
type world struct {
	*fixture.Cluster
	attempts

	attackers, victims, globals, guarded string // namespaces
	victimVNID                           uint32

	a1, a2, a3 fixture.Pod // of the attacking tenant, on the nodes by number
	v1, v2, v3 fixture.Pod // of the victims
	o1         fixture.Pod // with VNID 0

	// Guarded; the policy of the server on node1 admits the friend, and both others are on node2. That of the other server, on node1 too, admits
	// the whole cluster network.
	server, friend, enemy, open fixture.Pod

	node1, node2, node3, outside fixture.Machine
}

func newWorld(t *testing.T, c *fixture.Cluster) *world {
	t.Helper()
	w := &world{
		Cluster: c, attackers: c.Namespace(t), victims: c.Namespace(t), globals: c.Namespace(t), guarded: c.Namespace(t),
		node1: c.Machine(t, fixture.Node1), node2: c.Machine(t, fixture.Node2), node3: c.Machine(t, fixture.Node3), outside: c.Machine(t, lab.Outside),
	}
	pods, pairs := w.tenants(), [][2]*fixture.Pod{{&w.a1, &w.a2}, {&w.v1, &w.v2}, {&w.v2, &w.v3}, {&w.v3, &w.v1}}
	others := w.others()
	others = others[:tier.Size(t, 0, len(others), "pods that only attacks of the complete tier need")]
	if pods = append(pods, others...); len(others) > 0 {
		pairs = append(pairs, [2]*fixture.Pod{&w.a2, &w.a3}, [2]*fixture.Pod{&w.friend, &w.server})
	}
	for _, p := range pods {
		object := fixture.Netexec(p.name, p.node)
		object.Spec.Containers[0].ReadinessProbe = nil
		c.Create(t, p.namespace, object)
	}
	w.guard(t)
	for _, p := range pods {
		*p.pod = c.Ready(t, p.namespace, p.name)
	}
	if len(others) > 0 {
		c.ChangeNetwork(t, w.globals, "global")
	}
	var err error
	if w.victimVNID, err = c.VNID(t.Context(), w.victims); err != nil {
		t.Fatal(err)
	}
	for _, pair := range pairs {
		fixture.Meet(t, pair[0].NetNS, pair[1].Addr)
	}
	return w
}

// wanted is a pod that the world starts.
type wanted struct {
	pod                   *fixture.Pod
	namespace, name, node string
}

// tenants are the pods of the attackers and the victims that attacks of both tiers need.
func (w *world) tenants() []wanted {
	return []wanted{
		{&w.a1, w.attackers, "a1", fixture.Node1}, {&w.a2, w.attackers, "a2", fixture.Node2},
		{&w.v1, w.victims, "v1", fixture.Node1}, {&w.v2, w.victims, "v2", fixture.Node2}, {&w.v3, w.victims, "v3", fixture.Node3},
	}
}

// others are the pods that only attacks of the complete tier need.
func (w *world) others() []wanted {
	return []wanted{
		{&w.a3, w.attackers, "a3", fixture.Node3},
		{&w.o1, w.globals, "o1", fixture.Node1},
		{&w.server, w.guarded, "server", fixture.Node1}, {&w.friend, w.guarded, "friend", fixture.Node2}, {&w.enemy, w.guarded, "enemy", fixture.Node2},
		{&w.open, w.guarded, "open", fixture.Node1},
	}
}

// guard makes the policies of the servers.
func (w *world) guard(t *testing.T) {
	t.Helper()
	friend := app("friend")
	cluster := &networkingv1.IPBlock{CIDR: w.Shape().ClusterNetwork.String()}
	for server, peer := range map[string]networkingv1.NetworkPolicyPeer{"server": {PodSelector: &friend}, "open": {IPBlock: cluster}} {
		w.SetPolicy(t, &networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: server, Namespace: w.guarded},
			Spec: networkingv1.NetworkPolicySpec{
				PodSelector: app(server), PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
				Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{peer}}},
			},
		})
	}
}

// app selects a pod by its name.
func app(name string) metav1.LabelSelector {
	return metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
}

// gatewayMAC is tun0's on a pod's node.
func gatewayMAC(p fixture.Pod) net.HardwareAddr { return fixture.MACOf(p.Gateway()) }

// to returns a destination's address with controlPort.
func to(addr netip.Addr) netip.AddrPort { return netip.AddrPortFrom(addr, controlPort) }

// datagram is a frame with a UDP packet as the pod itself sends it.
func datagram(from fixture.Pod, dst netip.AddrPort, payload []byte) []byte {
	return wire.Ethernet(nextHop(from, dst.Addr()), from.MAC, wire.TypeIPv4, wire.UDPPacket(to(from.Addr), dst, payload))
}

// nextHop is the MAC to which a pod sends: that of another pod by the rule, else the gateway's.
func nextHop(from fixture.Pod, dst netip.Addr) net.HardwareAddr {
	if netip.MustParsePrefix("10.128.0.0/14").Contains(dst) {
		return fixture.MACOf(dst)
	}
	return gatewayMAC(from)
}

// inject returns a function that sends frames out of an interface.
func inject(n wire.NetNS, iface string, frames func(token []byte) [][]byte) func([]byte) error {
	return func(token []byte) error {
		i, err := n.Inject(iface)
		if err != nil {
			return err
		}
		defer i.Close()
		for _, f := range frames(token) {
			if err := i.Send(f); err != nil {
				return err
			}
		}
		return nil
	}
}

// fromPod returns a function that sends frames out of a pod's interface.
func fromPod(p fixture.Pod, frames func(token []byte) [][]byte) func([]byte) error {
	return inject(p.NetNS, "eth0", frames)
}

// sendsTo returns a function that sends a legitimate datagram from a pod to a pod.
func sendsTo(from, dst fixture.Pod) func([]byte) error {
	return fromPod(from, func(token []byte) [][]byte { return [][]byte{datagram(from, to(dst.Addr), token)} })
}

// podFrom is a pod as a receiver; the control comes from another pod that may send to it.
func podFrom(p, control fixture.Pod) receiver {
	return receiver{name: fmt.Sprintf("pod %s on %s", p.Name, p.Node), listen: captures(p.NetNS, "eth0"), control: sendsTo(control, p)}
}

// victimReceivers are the victims' pods on the first two nodes.
func (w *world) victimReceivers() []receiver {
	return []receiver{podFrom(w.v1, w.v2), podFrom(w.v2, w.v1)}
}

// vtep returns a function that sends VXLAN from a machine to a node's VTEP, as that machine's kernel would: from its own address.
func vtep(from wire.NetNS, dst netip.Addr, vni uint32, frames func(token []byte) [][]byte) func([]byte) error {
	return func(token []byte) error {
		conn, err := from.ListenPacket("udp4", "0.0.0.0:0")
		if err != nil {
			return err
		}
		defer conn.Close()
		for _, f := range frames(token) {
			if _, err := conn.WriteTo(wire.VXLAN(vni, f), net.UDPAddrFromAddrPort(netip.AddrPortFrom(dst, vxlanPort))); err != nil {
				return err
			}
		}
		return nil
	}
}

// vxlanPort is the product's (RFC 7348).
const vxlanPort = 4789
