package attacks

import (
	"net"
	"net/netip"
	"testing"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

// testStolenNode has node2 send tunnelled packets to node1 that only others may send.
func testStolenNode(t *testing.T, w *world) {
	node1 := w.Addr(t, fixture.Node1)
	mark := func(gateway netip.Addr) net.HardwareAddr {
		mac := fixture.MACOf(gateway)
		mac[0] = 0x0e // config.NodeMAC
		return mac
	}
	udp := func(dst fixture.Pod, mac net.HardwareAddr, source netip.Addr) func([]byte) [][]byte {
		return func(token []byte) [][]byte {
			return [][]byte{wire.Ethernet(dst.MAC, mac, wire.TypeIPv4, wire.UDPPacket(to(source), to(dst.Addr), token))}
		}
	}
	victim := []receiver{podFrom(w.v1, w.v2)}
	counted := []counter{w.drops(fixture.Node1, "0"), w.drops(fixture.Node1, "10")}
	for _, a := range []struct {
		name, sent string
		vni        uint32
		frames     func([]byte) [][]byte
	}{
		{"pod of another node", "the source of a pod of node3", w.victimVNID, udp(w.v1, w.v3.MAC, w.v3.Addr)},
		{"pod of the receiving node", "the source of a pod of node1", w.victimVNID, udp(w.v1, w.a1.MAC, w.a1.Addr)},
		{"gateway of another node", "the source of node3's gateway with VNI 0", 0, udp(w.v1, gatewayMAC(w.v3), w.v3.Gateway())},
		{"gateway of the receiving node", "the source of node1's gateway with VNI 0", 0, udp(w.v1, gatewayMAC(w.v1), w.v1.Gateway())},
		{"mark of another node", "the source and the mark of node3's gateway", 0, udp(w.v1, mark(w.v3.Gateway()), w.v3.Gateway())},
		{"IP of another node", "the source of node3's IP with VNI 0 and the mark of node3", 0, udp(w.v1, mark(w.v3.Gateway()), w.Addr(t, fixture.Node3))},
		{"unassigned address", "a source of the cluster network that no node has", w.victimVNID, udp(w.v1, w.v3.MAC, netip.MustParseAddr("10.131.250.9"))},
	} {
		t.Run(a.name, func(t *testing.T) {
			w.try(t, attack{
				position: aNode, sent: "VXLAN from node2 with " + a.sent, send: vtep(w.node2.NetNS, node1, a.vni, a.frames),
				at: victim, counters: append([]counter{w.drops(fixture.Node1, "80")}, counted...),
			})
		})
	}
	t.Run("relay to a third node", func(t *testing.T) {
		w.try(t, attack{
			position: aNode, sent: "VXLAN from node2 to node1 for a pod of node3", send: vtep(w.node2.NetNS, node1, w.victimVNID, udp(w.v3, w.v2.MAC, w.v2.Addr)),
			at: []receiver{podFrom(w.v3, w.v1)},
		})
	})
	w.tryOtherFrames(t, node1, victim, counted)
}

// tryOtherFrames has node2 tunnel other frames than those of IPv4 to node1.
func (w *world) tryOtherFrames(t *testing.T, node1 netip.Addr, victim []receiver, counted []counter) {
	t.Run("ARP as another node's gateway", func(t *testing.T) {
		w.try(t, attack{
			position: aNode, sent: "ARP from node2 as the gateway and as a pod of node3", packets: 4,
			send: vtep(w.node2.NetNS, node1, w.victimVNID, func(token []byte) (frames [][]byte) {
				for _, source := range []netip.Addr{w.v3.Gateway(), w.v3.Addr} {
					for _, operation := range []uint16{wire.ARPRequest, wire.ARPReply} {
						p := wire.ARP{Operation: operation, SenderMAC: w.a2.MAC, SenderIP: source, TargetMAC: w.v1.MAC, TargetIP: w.v1.Addr}
						frames = append(frames, wire.Ethernet(w.v1.MAC, w.a2.MAC, wire.TypeARP, p.Packet(token)))
					}
				}
				return frames
			}),
			at: victim, counters: counted,
		})
	})
	t.Run("IPv6 and tags inside", func(t *testing.T) {
		w.try(t, attack{
			position: aNode, sent: "VXLAN from node2 with IPv6 and with tagged frames inside", packets: 2,
			send: vtep(w.node2.NetNS, node1, w.victimVNID, func(token []byte) [][]byte {
				packet := wire.UDPPacket(to(w.v2.Addr), to(w.v1.Addr), token)
				return [][]byte{
					wire.Ethernet(w.v1.MAC, w.v2.MAC, wire.TypeIPv6, icmpv6(netip.MustParseAddr("fe80::1"), netip.MustParseAddr("ff02::1"), routerAdvertisement, token)),
					wire.Ethernet(w.v1.MAC, w.v2.MAC, typeQinQ, wire.VLAN(7, wire.TypeVLAN, wire.VLAN(7, wire.TypeIPv4, packet))),
				}
			}),
			at: victim, counters: counted,
		})
	})
}
