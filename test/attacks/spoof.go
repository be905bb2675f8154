package attacks

import (
	"context"
	"encoding/binary"
	"maps"
	"net"
	"net/netip"
	"testing"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

// typeQinQ is IEEE 802.1ad's outer tag.
const typeQinQ = 0x88a8

// testSpoofing has a pod send with addresses that are not its own, and what no pod has to send.
func testSpoofing(t *testing.T, w *world) {
	t.Run("IP", func(t *testing.T) {
		sources := []netip.Addr{
			w.v1.Addr, w.v2.Addr, w.a2.Addr, w.a1.Gateway(), w.a2.Gateway(), w.Addr(t, fixture.Node1), w.Addr(t, fixture.Node2),
			netip.MustParseAddr("192.0.2.99"),
		}
		w.tryFrames(t, "UDP from addresses of pods, gateways, nodes and the world", w.drops(fixture.Node1, "20"), func(dst fixture.Pod, token []byte) (frames [][]byte) {
			for _, source := range sources {
				if source != dst.Addr {
					frames = append(frames, wire.Ethernet(dst.MAC, w.a1.MAC, wire.TypeIPv4, wire.UDPPacket(to(source), to(dst.Addr), token)))
				}
			}
			return frames
		})
	})
	macs := []net.HardwareAddr{w.v1.MAC, gatewayMAC(w.a1), {0x0a, 0x58, 10, 99, 99, 99}, {0x0e, 0x58, 10, 128, 0, 1}}
	t.Run("MAC", func(t *testing.T) {
		w.tryFrames(t, "UDP with MACs of a pod, a gateway, no pod and a node's mark", w.drops(fixture.Node1, "20"), func(dst fixture.Pod, token []byte) (frames [][]byte) {
			for _, mac := range macs {
				frames = append(frames, wire.Ethernet(dst.MAC, mac, wire.TypeIPv4, wire.UDPPacket(to(w.a1.Addr), to(dst.Addr), token)))
			}
			return frames
		})
	})
	t.Run("tagged", func(t *testing.T) {
		w.tryFrames(t, "802.1Q frames with own and others' addresses", w.eitherDrops(), func(dst fixture.Pod, token []byte) (frames [][]byte) {
			for _, source := range []netip.Addr{w.a1.Addr, w.v1.Addr} {
				for _, vlan := range []uint16{0, 1, 7, 4095} {
					packet := wire.UDPPacket(to(source), to(dst.Addr), token)
					frames = append(frames, wire.Ethernet(dst.MAC, w.a1.MAC, wire.TypeVLAN, wire.VLAN(vlan, wire.TypeIPv4, packet)))
				}
			}
			return frames
		})
	})
	t.Run("QinQ", func(t *testing.T) {
		w.tryFrames(t, "frames with two tags, 802.1ad and 802.1Q outside", w.drops(fixture.Node1, ""), func(dst fixture.Pod, token []byte) (frames [][]byte) {
			inner := wire.VLAN(7, wire.TypeIPv4, wire.UDPPacket(to(w.a1.Addr), to(dst.Addr), token))
			for _, outer := range []uint16{typeQinQ, wire.TypeVLAN} {
				frames = append(frames, wire.Ethernet(dst.MAC, w.a1.MAC, outer, wire.VLAN(8, wire.TypeVLAN, inner)))
			}
			return frames
		})
	})
	t.Run("IPv6 router advertisement", func(t *testing.T) { w.tryICMPv6(t, "router advertisements", routerAdvertisement) })
	t.Run("IPv6 neighbour advertisement", func(t *testing.T) { w.tryICMPv6(t, "neighbour advertisements", neighbourAdvertisement) })
	t.Run("DHCP", func(t *testing.T) { testDHCP(t, w) })
}

// eitherDrops counts the drops of the first two nodes.
func (w *world) eitherDrops() counter {
	one, two := w.drops(fixture.Node1, ""), w.drops(fixture.Node2, "")
	return func(ctx context.Context) (map[string]uint64, error) {
		all, err := one(ctx)
		if err != nil {
			return nil, err
		}
		more, err := two(ctx)
		maps.Copy(all, more)
		return all, err
	}
}

// tryFrames has pod a1 send frames to the victims.
func (w *world) tryFrames(t *testing.T, sent string, counted counter, frames func(dst fixture.Pod, token []byte) [][]byte) {
	t.Helper()
	all := func(token []byte) [][]byte { return append(frames(w.v1, token), frames(w.v2, token)...) }
	w.try(t, attack{
		position: aPod, sent: sent, packets: len(all(nil)),
		send: fromPod(w.a1, all), at: w.victimReceivers(), counters: []counter{counted},
	})
}

// Types of ICMPv6 (RFC 4861).
const (
	protocolICMPv6         = 58
	routerAdvertisement    = 134
	neighbourAdvertisement = 136
)

// tryICMPv6 sends a message of neighbour discovery to all nodes of the link and to the victims.
func (w *world) tryICMPv6(t *testing.T, sent string, kind byte) {
	t.Helper()
	source, all := netip.MustParseAddr("fe80::858:a80:5"), netip.MustParseAddr("ff02::1")
	w.tryFrames(t, sent, w.drops(fixture.Node1, "0", "priority=0"), func(dst fixture.Pod, token []byte) [][]byte {
		packet := icmpv6(source, all, kind, token)
		return [][]byte{
			wire.Ethernet(net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, w.a1.MAC, wire.TypeIPv6, packet),
			wire.Ethernet(dst.MAC, w.a1.MAC, wire.TypeIPv6, packet),
		}
	})
}

// icmpv6 is an IPv6 packet with a message of ICMPv6, without a checksum: no receiver must get it, so none verifies it.
func icmpv6(src, dst netip.Addr, kind byte, payload []byte) []byte {
	message := append([]byte{kind, 0, 0, 0, 0, 0, 0, 0}, payload...)
	p := []byte{0x60, 0, 0, 0}
	p = binary.BigEndian.AppendUint16(p, uint16(len(message)))
	p = append(p, protocolICMPv6, 255)
	p = append(append(p, src.AsSlice()...), dst.AsSlice()...)
	return append(p, message...)
}

// testDHCP has a pod ask for an address, and offer one, to everybody.
func testDHCP(t *testing.T, w *world) {
	everybody := netip.AddrFrom4([4]byte{255, 255, 255, 255})
	client, server := uint16(68), uint16(67)
	ask := func(token []byte) []byte {
		packet := wire.UDPPacket(netip.AddrPortFrom(netip.IPv4Unspecified(), client), netip.AddrPortFrom(everybody, server), token)
		return wire.Ethernet(wire.Broadcast(), w.a1.MAC, wire.TypeIPv4, packet)
	}
	t.Run("discover", func(t *testing.T) {
		w.try(t, attack{
			position: aPod, sent: "DHCPDISCOVER to everybody", send: fromPod(w.a1, func(token []byte) [][]byte { return [][]byte{ask(token)} }),
			at: append(w.victimReceivers(), w.hostOf(w.node1)), counters: []counter{w.drops(fixture.Node1, "20")},
		})
	})
	t.Run("offer", func(t *testing.T) {
		offer := func(token []byte) [][]byte {
			packet := wire.UDPPacket(netip.AddrPortFrom(w.a1.Addr, server), netip.AddrPortFrom(everybody, client), token)
			return [][]byte{wire.Ethernet(wire.Broadcast(), w.a1.MAC, wire.TypeIPv4, packet)}
		}
		w.try(t, attack{position: aPod, sent: "DHCPOFFER from its own address to everybody", send: fromPod(w.a1, offer), at: w.victimReceivers()})
	})
}

// hostOf is a node's tun0 as a receiver, without a control.
func (w *world) hostOf(m fixture.Machine) receiver {
	return receiver{name: "tun0 of " + m.Name, listen: captures(m.NetNS, "tun0")}
}
