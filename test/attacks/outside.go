package attacks

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/lab"
)

// testOutside has a host on the underlay make VXLAN, and use a node as its router.
func testOutside(t *testing.T, w *world) {
	node1 := w.Addr(t, fixture.Node1)
	victim := []receiver{podFrom(w.v1, w.v2)}
	t.Run("VXLAN of a stranger", func(t *testing.T) {
		for _, vni := range []uint32{w.victimVNID, 0} {
			w.try(t, attack{
				position: underlay, sent: "VXLAN from a host that is no node",
				send: vtep(w.outside.NetNS, node1, vni, func(token []byte) [][]byte {
					return [][]byte{wire.Ethernet(w.v1.MAC, w.v2.MAC, wire.TypeIPv4, wire.UDPPacket(to(w.v2.Addr), to(w.v1.Addr), token))}
				}),
				at: victim, counters: []counter{w.drops(fixture.Node1, "10"), w.rules(fixture.Node1)},
			})
		}
	})
	t.Run("ARP in VXLAN of a stranger", func(t *testing.T) {
		w.try(t, attack{
			position: underlay, sent: "VXLAN with ARP from a host that is no node",
			send: vtep(w.outside.NetNS, node1, w.victimVNID, func(token []byte) [][]byte {
				p := wire.ARP{Operation: wire.ARPReply, SenderMAC: w.a2.MAC, SenderIP: w.v2.Addr, TargetMAC: w.v1.MAC, TargetIP: w.v1.Addr}
				return [][]byte{wire.Ethernet(w.v1.MAC, w.a2.MAC, wire.TypeARP, p.Packet(token))}
			}),
			at: victim, counters: []counter{w.drops(fixture.Node1, "10"), w.rules(fixture.Node1)},
		})
	})
	routed := func(dst fixture.Pod, sources ...netip.Addr) func([]byte) error {
		return inject(w.outside.NetNS, "eth0", func(token []byte) (frames [][]byte) {
			for _, source := range sources {
				for _, dscp := range []byte{0, 0x3e, 0x3f} {
					header := wire.IPv4{Src: source, Dst: dst.Addr, Protocol: wire.ProtocolUDP, DSCP: dscp}
					frames = append(frames, wire.Ethernet(nodeMAC(node1), nodeMAC(outsideAddr()), wire.TypeIPv4, header.Packet(wire.UDP(to(source), to(dst.Addr), token))))
				}
			}
			return frames
		})
	}
	w.routeBack(t)
	// One with VNID 0 hears what is routed, with the host's own source.
	heard := podFrom(w.o1, w.o1)
	heard.control = routed(w.o1, lab.OutsideAddr())
	for _, a := range []struct {
		name, sent string
		dst        fixture.Pod
		sources    []netip.Addr
	}{
		{"routed with sources of pods", "packets that node1 is to route, with sources of pods and all DSCPs of the firewall", w.v1, []netip.Addr{w.v2.Addr, w.v3.Addr}},
		{"routed with sources of gateways", "packets that node1 is to route, with sources of gateways and all DSCPs of the firewall", w.v1, []netip.Addr{w.v1.Gateway(), w.v2.Gateway()}},
		{"routed with sources of nodes", "packets that node1 is to route, with sources of nodes and all DSCPs of the firewall", w.v1, []netip.Addr{node1, w.Addr(t, fixture.Node2)}},
		{"routed with forged DSCP", "packets that node1 is to route, with its own source and all DSCPs of the firewall", w.v1, []netip.Addr{lab.OutsideAddr()}},
		{"routed to another node", "packets that node1 is to route to a pod of node2, with its own source and all DSCPs of the firewall", w.v2, []netip.Addr{lab.OutsideAddr()}},
	} {
		t.Run(a.name, func(t *testing.T) {
			control := w.v2
			if a.dst.Addr == w.v2.Addr {
				control = w.v1
			}
			w.try(t, attack{
				position: underlay, sent: a.sent, packets: 1, send: routed(a.dst, a.sources...), at: []receiver{podFrom(a.dst, control), heard},
				counters: []counter{w.rules(fixture.Node1), w.drops(fixture.Node1, "80"), w.drops(fixture.Node2, "80")},
			})
		})
	}
}

// outsideAddr is the fabric address of the host outside.
func outsideAddr() netip.Addr { return netip.MustParseAddr("172.31.0.254") }

// nodeMAC is the MAC of a machine of the lab on the fabric.
func nodeMAC(addr netip.Addr) net.HardwareAddr {
	return append(net.HardwareAddr{2, 0}, addr.AsSlice()...)
}

// routeBack gives the host outside a route to the pods through node1, as a router of the user's network may have.
func (w *world) routeBack(t *testing.T) {
	t.Helper()
	network := w.Shape().ClusterNetwork.String()
	w.Output(t, lab.Outside, "ip", "route", "replace", network, "via", w.Addr(t, fixture.Node1).String())
	t.Cleanup(func() {
		if _, err := w.TryOutput(context.WithoutCancel(t.Context()), lab.Outside, "ip", "route", "del", network); err != nil {
			t.Error(err)
		}
	})
}
