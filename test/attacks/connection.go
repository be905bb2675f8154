package attacks

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

// testConnections has a pod send what looks like a part of a connection, to a pod whose policy does not admit it.
func testConnections(t *testing.T, w *world) {
	at := []receiver{podFrom(w.server, w.friend)}
	dropped := []counter{w.drops(fixture.Node1, "83"), w.drops(fixture.Node1, "80")}
	for _, a := range []struct {
		name, sent string
		flags      byte
	}{
		{"SYN-ACK first", "a SYN-ACK, to which no SYN belongs", wire.TCPSYN | wire.TCPACK},
		{"mid-stream", "a segment with data of a connection that was never opened", wire.TCPACK | wire.TCPPSH},
		{"RST", "a RST of a connection that was never opened", 0x04 | wire.TCPACK},
		{"no flags", "a segment without flags", 0},
	} {
		t.Run(a.name, func(t *testing.T) {
			ports := [][2]uint16{{40001, fixture.HTTPPort}, {80, 40002}, {80, fixture.HTTPPort}, {40003, 40004}}
			w.try(t, attack{
				position: aPod, sent: a.sent + ", by ports of clients and of servers", packets: len(ports), at: at, counters: dropped,
				send: fromPod(w.enemy, func(token []byte) (frames [][]byte) {
					for _, p := range ports {
						src, dst := netip.AddrPortFrom(w.enemy.Addr, p[0]), netip.AddrPortFrom(w.server.Addr, p[1])
						header := wire.IPv4{Src: src.Addr(), Dst: dst.Addr(), Protocol: wire.ProtocolTCP}
						packet := header.Packet(wire.TCPSegment(src, dst, a.flags, token))
						frames = append(frames, wire.Ethernet(w.server.MAC, w.enemy.MAC, wire.TypeIPv4, packet))
					}
					return frames
				}),
			})
		})
	}
	t.Run("ICMP error with a live tuple", func(t *testing.T) { testLiveTuple(t, w, at) })
	t.Run("tiny fragments", func(t *testing.T) {
		w.try(t, attack{
			position: aPod, sent: "UDP in fragments of 8 bytes", send: w.tiny(w.enemy, to(w.server.Addr), 8), at: at,
			counters: []counter{w.drops(fixture.Node1, ""), w.drops(fixture.Node2, "")},
		})
	})
}

// testLiveTuple has a pod send ICMP errors about packets of connections between others, which conntrack takes for related to them.
func testLiveTuple(t *testing.T, w *world, at []receiver) {
	// The friend has a connection to the server, and the server one to the friend.
	talk := func(from, dst fixture.Pod, port uint16) error {
		return fromPod(from, func([]byte) [][]byte {
			return [][]byte{wire.Ethernet(dst.MAC, from.MAC, wire.TypeIPv4,
				wire.UDPPacket(netip.AddrPortFrom(from.Addr, port), netip.AddrPortFrom(dst.Addr, port), []byte("live")))}
		})(nil)
	}
	kinds := [][2]byte{{3, 1}, {3, 3}, {3, 4}, {11, 0}, {12, 0}} // unreachable by host, port and size, too old, malformed
	frames := func(token []byte, port uint16) (all [][]byte) {
		for _, kind := range kinds {
			quoted := wire.UDPPacket(netip.AddrPortFrom(w.server.Addr, port), netip.AddrPortFrom(w.friend.Addr, port), token)
			header := wire.IPv4{Src: w.enemy.Addr, Dst: w.server.Addr, Protocol: wire.ProtocolICMP}
			all = append(all, wire.Ethernet(w.server.MAC, w.enemy.MAC, wire.TypeIPv4, header.Packet(wire.ICMPError(kind[0], kind[1], quoted))))
		}
		return all
	}
	for i, c := range []struct {
		what string
		open [2]fixture.Pod
	}{{"the friend's", [2]fixture.Pod{w.friend, w.server}}, {"the server's", [2]fixture.Pod{w.server, w.friend}}} {
		what, open, port := c.what, c.open, uint16(33103+i)
		t.Run(what, func(t *testing.T) {
			w.try(t, attack{
				position: aPod, sent: fmt.Sprintf("%d ICMP errors that quote %s live connection", len(kinds), what), packets: len(kinds),
				send: func(token []byte) error {
					if err := talk(open[0], open[1], port); err != nil {
						return err
					}
					if err := talk(open[1], open[0], port); err != nil {
						return err
					}
					return fromPod(w.enemy, func(token []byte) [][]byte { return frames(token, port) })(token)
				},
				at: at, counters: []counter{w.drops(fixture.Node1, ""), w.drops(fixture.Node2, "")},
			})
		})
	}
}
