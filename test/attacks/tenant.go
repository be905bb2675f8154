package attacks

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

func containsText(data, text []byte) bool { return bytes.Contains(data, text) }

// testTenants has a tenant's pods try to reach another tenant's, by themselves and through services.
func testTenants(t *testing.T, w *world) {
	t.Run("direct", func(t *testing.T) {
		w.try(t, attack{
			position: aTenant, sent: "UDP to another tenant's pods on the same node and on another", packets: 2,
			send: fromPod(w.a1, func(token []byte) [][]byte {
				return [][]byte{datagram(w.a1, to(w.v1.Addr), token), datagram(w.a1, to(w.v2.Addr), token)}
			}),
			at: w.victimReceivers(), counters: []counter{w.drops(fixture.Node1, "80"), w.drops(fixture.Node2, "80")},
		})
	})
	t.Run("forged DSCP", func(t *testing.T) {
		// What the host's firewall writes into packets that it forwards (pipeline.RoutedDSCP, ForwardedDSCP, HairpinDSCP).
		w.try(t, attack{
			position: aPod, sent: "UDP with the DSCPs of the host's firewall", packets: 6,
			send: fromPod(w.a1, func(token []byte) (frames [][]byte) {
				for _, dst := range []fixture.Pod{w.v1, w.v2} {
					for _, dscp := range []byte{0x3d, 0x3e, 0x3f} {
						header := wire.IPv4{Src: w.a1.Addr, Dst: dst.Addr, Protocol: wire.ProtocolUDP, DSCP: dscp}
						packet := header.Packet(wire.UDP(to(w.a1.Addr), to(dst.Addr), token))
						frames = append(frames, wire.Ethernet(dst.MAC, w.a1.MAC, wire.TypeIPv4, packet))
					}
				}
				return frames
			}),
			at: w.victimReceivers(), counters: []counter{w.drops(fixture.Node1, "80"), w.drops(fixture.Node2, "80")},
		})
	})
	t.Run("multicast", func(t *testing.T) {
		group := netip.MustParseAddrPort("239.7.7.7:7007")
		w.try(t, attack{
			position: aTenant, sent: "UDP to a multicast group", packets: 1,
			send: fromPod(w.a1, func(token []byte) [][]byte {
				return [][]byte{wire.Ethernet([]byte{0x01, 0x00, 0x5e, 7, 7, 7}, w.a1.MAC, wire.TypeIPv4, wire.UDPPacket(to(w.a1.Addr), group, token))}
			}),
			at: w.victimReceivers(), counters: []counter{w.drops(fixture.Node1, "")},
		})
	})
	t.Run("services", func(t *testing.T) {
		if testing.Short() {
			t.Skip("complete tier: services take seconds to be in use; the short tier has TestTraceFrontends, and others' services and node ports in TestCapabilities")
		}
		testTenantServices(t, w)
	})
}

// tenantService is an address at which a tenant's packet must not reach a pod.
type tenantService struct {
	name, sent string
	dst        netip.AddrPort
	at         receiver
}

// untranslated counts what a node's host receives for an address of its own, since without kube-proxy it translates nothing.
func (w *world) untranslated(t *testing.T, dst netip.AddrPort) []counter {
	switch t.Helper(); {
	case !w.balanced():
		return nil
	case dst.Addr() == w.Addr(t, fixture.Node1):
		return []counter{w.atHost(t, fixture.Node1, dst)}
	case dst.Addr() == w.v2.Gateway():
		return []counter{w.atHost(t, fixture.Node2, dst)}
	}
	return nil
}

// testTenantServices has a tenant use another's services, and services of its own that lead to another tenant.
func testTenantServices(t *testing.T, w *world) {
	const port = 5001
	udp := fixture.ServicePort{Protocol: "UDP", Port: port, Target: controlPort}
	victimService, victimPort := w.nodePort(t, w.victims, "of-v2", udp, w.v2.Addr)
	toPod, _ := w.nodePort(t, w.attackers, "to-v2", udp, w.v2.Addr)
	toHere, toHerePort := w.nodePort(t, w.attackers, "to-v1", udp, w.v1.Addr)
	node1, node2, node3 := w.Addr(t, fixture.Node1), w.Addr(t, fixture.Node2), w.Addr(t, fixture.Node3)
	toNodePort := udp
	toNodePort.Target = int32(victimPort)
	toNode2, toNode2Port := w.nodePort(t, w.attackers, "to-node2", toNodePort, node2)
	_, toNode3Port := w.nodePort(t, w.attackers, "to-node3", toNodePort, node3)
	w.settle(t, w.attackers, w.a1, w.a2)
	w.settle(t, w.victims, w.v1, w.v2)
	at := func(p, control fixture.Pod) receiver {
		r := podFrom(p, control)
		r.listen = hears(p, controlPort)
		return r
	}
	everywhere := []counter{w.drops(fixture.Node1, ""), w.drops(fixture.Node2, ""), w.rules(fixture.Node1), w.rules(fixture.Node2)}
	rows := []tenantService{
		{"another's service", "UDP to another tenant's service", netip.AddrPortFrom(victimService, port), at(w.v2, w.v1)},
		{"another's node port", "UDP to another tenant's node port of node2", netip.AddrPortFrom(node2, victimPort), at(w.v2, w.v1)},
		{"another's node port on the own node", "UDP to another tenant's node port of node1", netip.AddrPortFrom(node1, victimPort), at(w.v2, w.v1)},
		{"own service to another's pod", "UDP to an own service whose endpoint is another tenant's pod", netip.AddrPortFrom(toPod, port), at(w.v2, w.v1)},
		{"own service to another's pod on the own node", "UDP to an own service whose endpoint is another tenant's pod", netip.AddrPortFrom(toHere, port), at(w.v1, w.v2)},
		{"own node port of the own node to another's pod", "UDP to an own node port of node1 whose endpoint is another tenant's pod", netip.AddrPortFrom(node1, toHerePort), at(w.v1, w.v2)},
		{"own service to another's node port", "UDP to an own service whose endpoint is another tenant's node port of node2", netip.AddrPortFrom(toNode2, port), at(w.v2, w.v1)},
		{"own node port of the own node to another's node port", "UDP to an own node port of node1 whose endpoint is another tenant's node port of node2",
			netip.AddrPortFrom(node1, toNode2Port), at(w.v2, w.v1)},
		{"own node port of another node's tun0 to another's node port", "UDP to an own node port of node2's tun0 whose endpoint is another tenant's node port of node3",
			netip.AddrPortFrom(w.v2.Gateway(), toNode3Port), at(w.v2, w.v1)},
	}
	if !w.balanced() { // docs/security.md#a-tenant has the limit of services in the switch
		rows = append(rows, tenantService{
			"own node port of another node to another's node port", "UDP to an own node port of node2 whose endpoint is another tenant's node port of node3",
			netip.AddrPortFrom(node2, toNode3Port), at(w.v2, w.v1),
		})
	}
	for _, a := range rows {
		sizes := []int{0}
		if strings.HasPrefix(a.name, "another's") {
			sizes = append(sizes, 8)
		}
		for _, size := range sizes {
			name, sent := a.name, a.sent
			send := fromPod(w.a1, func(token []byte) [][]byte { return [][]byte{datagram(w.a1, a.dst, token)} })
			if size > 0 {
				name, sent = name+" in fragments", sent+" in fragments of 8 bytes"
				send = w.tiny(w.a1, a.dst, size)
			}
			t.Run(name, func(t *testing.T) {
				counters := append(w.untranslated(t, a.dst), everywhere...)
				w.try(t, attack{position: aTenant, sent: sent, send: send, at: []receiver{a.at}, counters: counters, lossy: size > 0})
			})
		}
	}
	t.Run("another's node port by tiny TCP fragments", func(t *testing.T) { testTinySYN(t, w, node2) })
}

// tiny returns a function that sends a datagram in fragments.
func (w *world) tiny(from fixture.Pod, dst netip.AddrPort, size int) func([]byte) error {
	return fromPod(from, func(token []byte) (frames [][]byte) {
		header := wire.IPv4{Src: from.Addr, Dst: dst.Addr(), Protocol: wire.ProtocolUDP, ID: w.id()}
		for _, f := range header.Fragments(wire.UDP(to(from.Addr), dst, token), size) {
			frames = append(frames, wire.Ethernet(nextHop(from, dst.Addr()), from.MAC, wire.TypeIPv4, f))
		}
		return frames
	})
}

// testTinySYN sends a SYN of which the first fragment has 8 bytes: ports, and no flags (RFC 1858).
func testTinySYN(t *testing.T, w *world, node netip.Addr) {
	_, port := w.nodePort(t, w.victims, "tcp-of-v2", fixture.ServicePort{Protocol: "TCP", Port: 5002, Target: fixture.HTTPPort}, w.v2.Addr)
	w.settle(t, w.victims, w.v1, w.v2)
	dst := netip.AddrPortFrom(node, port)
	segment := func(token []byte) []byte {
		return wire.TCPSegment(netip.AddrPortFrom(w.a1.Addr, 40000+w.id()%1000), dst, wire.TCPSYN, token)
	}
	send := fromPod(w.a1, func(token []byte) (frames [][]byte) {
		header := wire.IPv4{Src: w.a1.Addr, Dst: node, Protocol: wire.ProtocolTCP, ID: w.id()}
		for _, f := range header.Fragments(segment(token), 8) {
			frames = append(frames, wire.Ethernet(gatewayMAC(w.a1), w.a1.MAC, wire.TypeIPv4, f))
		}
		return frames
	})
	r := podFrom(w.v2, w.v1)
	w.try(t, attack{
		lossy: true, position: aTenant, sent: "a SYN to another tenant's node port in fragments of 8 bytes", send: send, at: []receiver{r},
		counters: []counter{w.drops(fixture.Node1, ""), w.drops(fixture.Node2, ""), w.rules(fixture.Node1), w.rules(fixture.Node2)},
	})
}
