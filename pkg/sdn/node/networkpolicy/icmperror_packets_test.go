package networkpolicy

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/ovsdn/ovsdn/test/await"
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

// ICMP errors about many connections cause few upcalls: their megaflows do not match whole addresses.
func TestICMPErrorsCauseFewUpcalls(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: bound of upcalls")
	}
	const connections, allowed = 300, 100
	s := newPacketNode(t)
	s.isolate(t, []networkingv1.NetworkPolicyIngressRule{{Ports: []networkingv1.NetworkPolicyPort{onUDP(53)}}}, []networkingv1.NetworkPolicyEgressRule{{}})
	s.node.Sh(t, "nft add chain ip track sweep '{ type filter hook prerouting priority -400; }'", "nft add rule ip track sweep ip daddr 198.16.0.0/12 drop")
	opener, third := s.node.Pods[0], s.node.Pods[1]
	client, forged, control, dns := opener.UDP(t, 0), third.Listen(t, rawICMP, 0), third.UDP(t, 0), opener.UDP(t, 53)
	destination := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 16, byte(i >> 8), byte(i)}), 53) //nolint:gosec // below 1<<16
	}
	await.OK(t, 30*time.Second, func(context.Context) error {
		for i := range connections {
			client.Send(t, destination(i), client.Message())
		}
		if got := strings.Count(s.node.AppCtl(t, "dpctl/dump-conntrack"), "dst=198.16."); got < connections {
			return fmt.Errorf("conntrack has %d of %d connections", got, connections)
		}
		return nil
	})
	_, before := s.upcalls(t)
	for i := range connections {
		quoted := wire.UDPPacket(client.Addr(), destination(i), forged.Message())
		forged.Send(t, netip.AddrPortFrom(opener.Addr, 0), wire.ICMPError(3, 1, quoted))
		control.MustReach(t, dns.Addr(), dns) // one after the other: the next one finds the megaflow
	}
	_, after := s.upcalls(t)
	t.Logf("%d ICMP errors about as many connections: %d upcalls", connections, after-before)
	if got := after - before; got < 1 || got > allowed {
		t.Errorf("%d ICMP errors about as many connections caused %d upcalls, want 1 to %d", connections, got, allowed)
	}
}
