package attacks

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

// forged is an inner frame that would reach a victim as another victim's, and its VXLAN datagram from a pod to a VTEP.
func (w *world) forged(token []byte, from fixture.Pod, dst netip.AddrPort) (src netip.AddrPort, payload []byte) {
	inner := wire.Ethernet(w.v2.MAC, w.v1.MAC, wire.TypeIPv4, wire.UDPPacket(to(w.v1.Addr), to(w.v2.Addr), token))
	return netip.AddrPortFrom(from.Addr, 50000), wire.VXLAN(w.victimVNID, inner)
}

// sealed returns a function that sends VXLAN out of pod a1 to an address and port that lead to a VTEP.
func (w *world) sealed(dst netip.AddrPort) func([]byte) error {
	return fromPod(w.a1, func(token []byte) [][]byte {
		src, payload := w.forged(token, w.a1, dst)
		return [][]byte{wire.Ethernet(gatewayMAC(w.a1), w.a1.MAC, wire.TypeIPv4, wire.UDPPacket(src, dst, payload))}
	})
}

// inPieces is sealed in fragments of a size, of which only the first has ports.
func (w *world) inPieces(dst netip.AddrPort, size int) func([]byte) error {
	return fromPod(w.a1, func(token []byte) (frames [][]byte) {
		src, payload := w.forged(token, w.a1, dst)
		header := wire.IPv4{Src: src.Addr(), Dst: dst.Addr(), Protocol: wire.ProtocolUDP, ID: w.id()}
		for _, f := range header.Fragments(wire.UDP(src, dst, payload), size) {
			frames = append(frames, wire.Ethernet(gatewayMAC(w.a1), w.a1.MAC, wire.TypeIPv4, f))
		}
		return frames
	})
}

// testTunnel has a pod make VXLAN that a VTEP would take for a node's.
func testTunnel(t *testing.T, w *world) {
	victim := []receiver{podFrom(w.v2, w.v1)}
	node2 := w.Addr(t, fixture.Node2)
	t.Run("direct", func(t *testing.T) {
		for _, dst := range []netip.Addr{node2, w.Addr(t, fixture.Node1), w.a2.Gateway(), w.a1.Gateway()} {
			w.try(t, attack{
				position: aPod, sent: "VXLAN to " + dst.String(), send: w.sealed(netip.AddrPortFrom(dst, vxlanPort)), at: victim,
				counters: []counter{w.drops(fixture.Node1, "20", "tp_dst=4789")},
			})
		}
	})
	t.Run("in fragments", func(t *testing.T) {
		for _, size := range []int{8, 48} {
			w.try(t, attack{
				position: aPod, sent: "VXLAN to " + node2.String() + " in fragments", send: w.inPieces(netip.AddrPortFrom(node2, vxlanPort), size), at: victim,
				counters: []counter{w.drops(fixture.Node1, ""), w.rules(fixture.Node1)},
			})
		}
	})
	t.Run("services", func(t *testing.T) {
		if testing.Short() {
			t.Skip("complete tier: services take seconds to be in use; the short tier has TestServiceWithVTEPAsEndpointIsDropped and TestTranslatedVXLANDoesNotReachOwnVTEP")
		}
		testTunnelByServices(t, w)
	})
}

// testTunnelByServices is testTunnel by services whose endpoint is a VTEP.
func testTunnelByServices(t *testing.T, w *world) {
	victim := []receiver{podFrom(w.v2, w.v1)}
	node2 := w.Addr(t, fixture.Node2)
	const port = 5000
	expose := func(t *testing.T, name string) (service netip.Addr, nodePort uint16) {
		service, nodePort = w.nodePort(t, w.attackers, name, fixture.ServicePort{Protocol: "UDP", Port: port, Target: vxlanPort}, node2)
		w.settle(t, w.attackers, w.a1, w.a2)
		return service, nodePort
	}
	t.Run("ClusterIP", func(t *testing.T) {
		service, _ := expose(t, "vtep")
		for what, send := range map[string]func([]byte) error{
			"VXLAN to a service whose endpoint is a VTEP":               w.sealed(netip.AddrPortFrom(service, port)),
			"VXLAN to a service whose endpoint is a VTEP, in fragments": w.inPieces(netip.AddrPortFrom(service, port), 48),
		} {
			w.try(t, attack{
				position: aTenant, sent: what, send: send, at: victim, counters: []counter{w.drops(fixture.Node1, ""), w.rules(fixture.Node1)},
				lossy: strings.HasSuffix(what, "fragments"),
			})
		}
	})
	t.Run("node port of the peer", func(t *testing.T) {
		_, nodePort := expose(t, "vtep-port")
		dst := netip.AddrPortFrom(node2, nodePort)
		w.try(t, attack{
			position: aTenant, sent: "VXLAN to a node port of node2 whose endpoint is the VTEP of node2", send: w.sealed(dst), at: victim,
			counters: []counter{w.translatedVXLAN(fixture.Node2)},
		})
		w.try(t, attack{
			position: aTenant, sent: "VXLAN to a node port of node2 whose endpoint is the VTEP of node2, in fragments", send: w.inPieces(dst, 48), at: victim,
			counters: []counter{w.translatedVXLAN(fixture.Node2)}, lossy: true,
		})
	})
	t.Run("node port of the own node", func(t *testing.T) {
		_, nodePort := expose(t, "vtep-own")
		w.try(t, attack{
			position: aTenant, sent: "VXLAN to a node port of node1 whose endpoint is the VTEP of node2",
			send: w.sealed(netip.AddrPortFrom(w.Addr(t, fixture.Node1), nodePort)), at: victim, counters: []counter{w.translatedVXLAN(fixture.Node1)},
		})
	})
}

// translatedVXLAN counts the VXLAN that a node drops after a service has sent it to a VTEP.
func (w *world) translatedVXLAN(node string) counter {
	if w.balanced() {
		return w.drops(node, "68", "tp_dst=4789")
	}
	return w.rules(node)
}
