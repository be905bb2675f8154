package networkpolicy

import (
	"net/netip"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/tier"
)

// rawICMP is the network of sockets for ICMP messages.
const rawICMP = "ip4:1"

// An ICMP error about a connection counts as a reply if it comes from the connection's peer, from a router outside or from the node. One of another pod is
// evaluated by policies: by those of the pod that opened the connection, and by those of the pod that sends the error.
func TestICMPErrorsOfPeers(t *testing.T) {
	tier.Parallel(t)
	s := newPacketNode(t)
	s.world.RouteTo(t, s.node)
	opener, peer, third := s.node.Pods[0], s.node.Pods[1], s.node.Pods[2]
	dns := []networkingv1.NetworkPolicyPort{onUDP(53)}
	server, outside := peer.UDP(t, 53), s.world.UDP(t, 53)
	received, to := opener.Listen(t, rawICMP, 0), netip.AddrPortFrom(opener.Addr, 0)
	fromPeer, fromThird := peer.Listen(t, rawICMP, 0), third.Listen(t, rawICMP, 0)
	fromRouter, fromNode := s.world.Listen(t, rawICMP, 0), s.node.Listen(t, rawICMP, 0)

	for _, c := range []struct {
		denies  string
		ingress networkingv1.NetworkPolicyIngressRule
		egress  networkingv1.NetworkPolicyEgressRule
	}{
		{denies: "ingress", ingress: networkingv1.NetworkPolicyIngressRule{Ports: dns}},
		{denies: "egress", egress: networkingv1.NetworkPolicyEgressRule{Ports: dns}},
	} {
		t.Run(c.denies, func(t *testing.T) {
			s.isolate(t, []networkingv1.NetworkPolicyIngressRule{c.ingress}, []networkingv1.NetworkPolicyEgressRule{c.egress})
			client := opener.UDP(t, 0)
			for _, end := range []*datapath.Socket{server, outside} {
				client.MustReach(t, end.Addr(), end)
				about := func(from *datapath.Socket) func() []byte {
					return func() []byte { return wire.ICMPError(3, 1, wire.UDPPacket(client.Addr(), end.Addr(), from.Message())) }
				}
				fromRouter.MustReachWith(t, to, received, about(fromRouter))
				fromNode.MustReachWith(t, to, received, about(fromNode))
				fromThird.MustNotReachWith(t, to, received, about(fromThird))
				if end == server {
					fromPeer.MustReachWith(t, to, received, about(fromPeer))
				} else {
					fromPeer.MustNotReachWith(t, to, received, about(fromPeer))
				}
			}
		})
	}
}
