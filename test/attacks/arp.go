package attacks

import (
	"net"
	"net/netip"
	"testing"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

// testARP has a pod lie in ARP, and carry data in it.
func testARP(t *testing.T, w *world) {
	type claim struct {
		sender fixture.Pod // whose MAC is inside
		ip     netip.Addr
	}
	lies := []claim{{w.a1, w.a1.Gateway()}, {w.a1, w.a2.Gateway()}, {w.a1, w.v1.Addr}, {w.a1, w.v2.Addr}, {w.a1, w.Addr(t, fixture.Node1)}, {w.v1, w.a1.Addr}}
	packets := func(operation uint16, tag bool) func(dst fixture.Pod, token []byte) [][]byte {
		return func(dst fixture.Pod, token []byte) (frames [][]byte) {
			for _, lie := range lies {
				p := wire.ARP{Operation: operation, SenderMAC: lie.sender.MAC, SenderIP: lie.ip, TargetMAC: dst.MAC, TargetIP: dst.Addr}.Packet(token)
				for _, mac := range []net.HardwareAddr{wire.Broadcast(), dst.MAC} {
					if tag {
						frames = append(frames, wire.Ethernet(mac, w.a1.MAC, wire.TypeVLAN, wire.VLAN(5, wire.TypeARP, p)))
					} else {
						frames = append(frames, wire.Ethernet(mac, w.a1.MAC, wire.TypeARP, p))
					}
				}
			}
			return frames
		}
	}
	t.Run("spoofed requests", func(t *testing.T) {
		w.tryFrames(t, "ARP requests as gateways, pods and the node", w.drops(fixture.Node1, "20"), packets(wire.ARPRequest, false))
	})
	t.Run("spoofed replies", func(t *testing.T) {
		w.tryFrames(t, "ARP replies as gateways, pods and the node", w.drops(fixture.Node1, "20"), packets(wire.ARPReply, false))
	})
	t.Run("spoofed tagged", func(t *testing.T) {
		w.tryFrames(t, "tagged ARP replies as gateways, pods and the node", w.drops(fixture.Node1, ""), packets(wire.ARPReply, true))
	})
	t.Run("data", func(t *testing.T) {
		send := func(token []byte) (frames [][]byte) {
			for _, dst := range []fixture.Pod{w.v1, w.v2} {
				for _, operation := range []uint16{wire.ARPRequest, wire.ARPReply} {
					p := wire.ARP{Operation: operation, SenderMAC: w.a1.MAC, SenderIP: w.a1.Addr, TargetMAC: dst.MAC, TargetIP: dst.Addr}.Packet(token)
					for _, mac := range []net.HardwareAddr{wire.Broadcast(), dst.MAC} {
						frames = append(frames, wire.Ethernet(mac, w.a1.MAC, wire.TypeARP, p))
					}
				}
			}
			return frames
		}
		w.try(t, attack{
			position: aPod, sent: "data in ARP requests and replies to another tenant's pods on its node and on another", packets: 8, send: fromPod(w.a1, send),
			at: w.victimReceivers(), counters: []counter{w.flows(fixture.Node1, "51", "arp"), w.drops(fixture.Node1, "20")},
		})
	})
	t.Run("gratuitous", func(t *testing.T) {
		send := func(token []byte) (frames [][]byte) {
			for _, operation := range []uint16{wire.ARPRequest, wire.ARPReply} {
				p := wire.ARP{Operation: operation, SenderMAC: w.a1.MAC, SenderIP: w.a1.Addr, TargetMAC: wire.Broadcast(), TargetIP: w.a1.Addr}
				frames = append(frames, wire.Ethernet(wire.Broadcast(), w.a1.MAC, wire.TypeARP, p.Packet(token)))
			}
			return frames
		}
		w.try(t, attack{
			position: aPod, sent: "gratuitous ARP of its own address", packets: 2, send: fromPod(w.a1, send),
			at: w.victimReceivers(), counters: []counter{w.flows(fixture.Node1, "", "arp")},
		})
	})
}
