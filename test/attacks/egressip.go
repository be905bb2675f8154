package attacks

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/lab"
)

// egressOwner is a namespace with an egress IP that node1 hosts, and its pods on the first two nodes.
type egressOwner struct {
	*world
	ip     netip.Addr
	vnid   uint32
	e1, e2 fixture.Pod
}

// testEgressIPs has others than the namespace use its egress IP, or reach its pods by it.
func testEgressIPs(t *testing.T, w *world) {
	o := w.newEgressOwner(t)
	t.Run("Ethernet destination of an egress IP", o.testEthernet)
	t.Run("forged source", o.testForgedSource)
	t.Run("VXLAN", o.testVXLAN)
	t.Run("unsolicited packets", o.testUnsolicited)
	t.Run("pods as clients", o.testPodClients)
	t.Run("ICMP errors", o.testErrors)
	t.Run("ARP", o.testARP)
}

func (w *world) newEgressOwner(t *testing.T) *egressOwner {
	t.Helper()
	o := &egressOwner{world: w, ip: netip.MustParseAddr("172.31.0.230")}
	namespace := w.Namespace(t)
	for _, p := range []wanted{{&o.e1, namespace, "e1", fixture.Node1}, {&o.e2, namespace, "e2", fixture.Node2}} {
		object := fixture.Netexec(p.name, p.node)
		object.Spec.Containers[0].ReadinessProbe = nil
		w.Create(t, namespace, object)
	}
	o.e1, o.e2 = w.Ready(t, namespace, "e1"), w.Ready(t, namespace, "e2")
	var err error
	if o.vnid, err = w.VNID(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	host := func(ctx context.Context, ips string) error {
		patch := fmt.Appendf(nil, `{"egressIPs":%s}`, ips)
		_, err := w.Network.NetworkV1().HostSubnets().Patch(ctx, fixture.Node1, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
	t.Cleanup(func() {
		if err := host(context.WithoutCancel(t.Context()), "null"); err != nil {
			t.Error(err)
		}
	})
	ips := fmt.Sprintf("[%q]", o.ip)
	if err := host(t.Context(), ips); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Network.NetworkV1().NetNamespaces().Patch(t.Context(), namespace, types.MergePatchType, fmt.Appendf(nil, `{"egressIPs":%s}`, ips), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, p := range []fixture.Pod{o.e1, o.e2} {
		w.heard(t, o.outsideBy(p))
		fixture.Meet(t, p.NetNS, lab.OutsideAddr())
	}
	return o
}

// sourced is a capture of the packets with a source.
type sourced struct {
	listener
	source netip.Addr
}

// Frames returns the packets with the text and the source.
func (s sourced) Frames(text []byte) [][]byte {
	return slices.DeleteFunc(s.listener.Frames(text), func(f []byte) bool {
		const header, source = 14, 12 // the length of Ethernet's header, and the place of the source in that of IPv4
		return len(f) < header+source+4 || !slices.Equal(f[header+source:][:4], s.source.AsSlice())
	})
}

// outsideBy is the host outside as a receiver of packets with the egress IP as their source; the control comes from a pod of the owner.
func (o *egressOwner) outsideBy(control fixture.Pod) receiver {
	return receiver{
		name: "the host outside, with source " + o.ip.String(),
		listen: func() (listener, error) {
			l, err := captures(o.outside.NetNS, "eth0")()
			return sourced{l, o.ip}, err
		},
		control: sendsUDP(control.NetNS, to(lab.OutsideAddr())),
	}
}

// ownerReceivers are the owner's pods.
func (o *egressOwner) ownerReceivers() []receiver {
	return []receiver{podFrom(o.e1, o.e2), podFrom(o.e2, o.e1)}
}

// testEthernet has pods of another tenant send to outside with the MAC by which nodes send each other the packets of an egress IP.
func (o *egressOwner) testEthernet(t *testing.T) {
	for _, a := range []struct{ from, control fixture.Pod }{{o.a1, o.e1}, {o.a2, o.e2}} {
		t.Run(a.from.Node, func(t *testing.T) {
			o.try(t, attack{
				position: aTenant, sent: "UDP to a host outside with the egress IP's MAC as its Ethernet destination",
				send: fromPod(a.from, func(token []byte) [][]byte {
					packet := wire.UDPPacket(to(a.from.Addr), to(lab.OutsideAddr()), token)
					return [][]byte{wire.Ethernet(fixture.MACOf(o.ip), a.from.MAC, wire.TypeIPv4, packet)}
				}),
				// The packet leaves as one of a namespace without egress IPs.
				at: []receiver{o.outsideBy(a.control)}, counters: []counter{o.flows(a.from.Node, "101", "reg11=0,")},
			})
		})
	}
}

// testForgedSource has pods send with the egress IP as their source: of another tenant, and of the owner.
func (o *egressOwner) testForgedSource(t *testing.T) {
	for _, from := range []fixture.Pod{o.a1, o.a2, o.e1} {
		t.Run(from.Name, func(t *testing.T) {
			o.try(t, attack{
				position: aPod, sent: "UDP with the egress IP as its source, to a host outside, a node and a pod", packets: 4,
				send: fromPod(from, func(token []byte) (frames [][]byte) {
					for _, mac := range []net.HardwareAddr{gatewayMAC(from), fixture.MACOf(o.ip)} {
						frames = append(frames, wire.Ethernet(mac, from.MAC, wire.TypeIPv4, wire.UDPPacket(to(o.ip), to(lab.OutsideAddr()), token)))
					}
					for _, dst := range []netip.Addr{o.Addr(t, fixture.Node2), o.v1.Addr} {
						frames = append(frames, wire.Ethernet(nextHop(from, dst), from.MAC, wire.TypeIPv4, wire.UDPPacket(to(o.ip), to(dst), token)))
					}
					return frames
				}),
				at: []receiver{o.outsideBy(o.e1), podFrom(o.v1, o.v2)}, counters: []counter{o.drops(from.Node, "20")},
			})
		})
	}
}

// testVXLAN has machines that may not send the owner's packets send node1 VXLAN as the owner's node does.
func (o *egressOwner) testVXLAN(t *testing.T) {
	node1 := o.Addr(t, fixture.Node1)
	inner := func(source netip.Addr) func([]byte) [][]byte {
		return func(token []byte) [][]byte {
			return [][]byte{wire.Ethernet(fixture.MACOf(o.ip), fixture.MACOf(source), wire.TypeIPv4, wire.UDPPacket(to(source), to(lab.OutsideAddr()), token))}
		}
	}
	dropped := []counter{o.drops(fixture.Node1, "0"), o.drops(fixture.Node1, "10"), o.rules(fixture.Node1)}
	for _, a := range []struct {
		name, position string
		send           func([]byte) error
	}{
		{"stranger", underlay, vtep(o.outside.NetNS, node1, o.vnid, inner(o.e2.Addr))},
		{"stranger with VNI 0", underlay, vtep(o.outside.NetNS, node1, 0, inner(o.e2.Addr))},
		{"pod of another node", aNode, vtep(o.node2.NetNS, node1, o.vnid, inner(o.v3.Addr))},
		{"pod of the receiving node", aNode, vtep(o.node2.NetNS, node1, o.vnid, inner(o.e1.Addr))},
		{"egress IP inside", aNode, vtep(o.node2.NetNS, node1, o.vnid, inner(o.ip))},
		{"host outside inside", aNode, vtep(o.node2.NetNS, node1, o.vnid, inner(outsideAddr()))},
	} {
		t.Run(a.name, func(t *testing.T) {
			o.try(t, attack{
				position: a.position, sent: "VXLAN to the node of an egress IP with its MAC as the inner destination", send: a.send,
				at: []receiver{o.outsideBy(o.e2)}, counters: dropped,
			})
		})
	}
	t.Run("pod", func(t *testing.T) {
		dst := netip.AddrPortFrom(node1, vxlanPort)
		o.try(t, attack{
			position: aPod, sent: "VXLAN from a pod to the node of an egress IP with its MAC as the inner destination",
			send: fromPod(o.a2, func(token []byte) [][]byte {
				payload := wire.VXLAN(o.vnid, inner(o.e2.Addr)(token)[0])
				return [][]byte{wire.Ethernet(gatewayMAC(o.a2), o.a2.MAC, wire.TypeIPv4, wire.UDPPacket(netip.AddrPortFrom(o.a2.Addr, 50000), dst, payload))}
			}),
			at: []receiver{o.outsideBy(o.e2)}, counters: []counter{o.drops(fixture.Node2, "20", "tp_dst=4789")},
		})
	})
}

// strangers are packets to the egress IP that belong to no connection of its pods, from a source: TCP with each of the flags, UDP, VXLAN, and a ping.
func (o *egressOwner) strangers(source netip.Addr, token []byte, allFlags ...byte) (packets [][]byte) {
	src := netip.AddrPortFrom(source, controlPort)
	for _, port := range []uint16{fixture.HTTPPort, kubeletPort, vxlanPort} {
		dst := netip.AddrPortFrom(o.ip, port)
		for _, flags := range allFlags {
			packets = append(packets, wire.IPv4{Src: source, Dst: o.ip, Protocol: wire.ProtocolTCP}.Packet(wire.TCPSegment(src, dst, flags, token)))
		}
		packets = append(packets, wire.UDPPacket(src, dst, token))
	}
	forged := wire.VXLAN(o.vnid, wire.Ethernet(o.e1.MAC, o.e2.MAC, wire.TypeIPv4, wire.UDPPacket(to(o.e2.Addr), to(o.e1.Addr), token)))
	packets = append(packets, wire.UDPPacket(src, netip.AddrPortFrom(o.ip, vxlanPort), forged))
	return append(packets, wire.IPv4{Src: source, Dst: o.ip, Protocol: wire.ProtocolICMP}.Packet(wire.ICMPEcho(token)))
}

// kubeletPort is one on which every node listens.
const kubeletPort = 10250

// testUnsolicited has a host outside open connections to the egress IP, and send parts of connections that no pod has opened.
func (o *egressOwner) testUnsolicited(t *testing.T) {
	source, node1 := outsideAddr(), o.Addr(t, fixture.Node1)
	flags := []byte{wire.TCPSYN, wire.TCPSYN | wire.TCPACK, wire.TCPACK | wire.TCPPSH, 0x04 | wire.TCPACK}
	o.try(t, attack{
		position: underlay, sent: "SYN, SYN-ACK, data and RST, UDP, VXLAN and a ping to the egress IP", packets: len(o.strangers(source, nil, flags...)),
		send: inject(o.outside.NetNS, "eth0", func(token []byte) (frames [][]byte) {
			for _, packet := range o.strangers(source, token, flags...) {
				frames = append(frames, wire.Ethernet(nodeMAC(node1), nodeMAC(source), wire.TypeIPv4, packet))
			}
			return frames
		}),
		at: o.ownerReceivers(), counters: []counter{o.drops(fixture.Node1, "102"), o.rules(fixture.Node1)},
	})
}

// testPodClients has pods of another tenant, on the node of the egress IP and on another one, open connections to it.
func (o *egressOwner) testPodClients(t *testing.T) {
	for _, from := range []fixture.Pod{o.a1, o.a2} {
		t.Run(from.Node, func(t *testing.T) {
			o.try(t, attack{
				position: aTenant, sent: "SYN, UDP, VXLAN and a ping to the egress IP from " + from.Node,
				packets: len(o.strangers(from.Addr, nil, wire.TCPSYN)),
				send: fromPod(from, func(token []byte) (frames [][]byte) {
					for _, packet := range o.strangers(from.Addr, token, wire.TCPSYN) {
						frames = append(frames, wire.Ethernet(gatewayMAC(from), from.MAC, wire.TypeIPv4, packet))
					}
					return frames
				}),
				at: o.ownerReceivers(), counters: []counter{
					o.drops(fixture.Node1, "102"), o.drops(from.Node, "20"), o.rules(fixture.Node1), o.rules(fixture.Node2),
				},
			})
		})
	}
}

// testErrors has a host outside send ICMP errors to the egress IP that quote packets which did not leave with it: of a connection that does not exist, and of a
// live one by the address of its pod.
func (o *egressOwner) testErrors(t *testing.T) {
	const livePort, otherPort = 33005, 33006
	node1, outside := o.Addr(t, fixture.Node1), netip.AddrPortFrom(lab.OutsideAddr(), livePort)
	kinds := [][2]byte{{3, 1}, {3, 3}, {3, 4}, {11, 0}, {12, 0}}
	for name, quoted := range map[string]netip.AddrPort{
		"connection that does not exist": netip.AddrPortFrom(o.ip, otherPort),
		"address of the owner's pod":     netip.AddrPortFrom(o.e1.Addr, livePort),
		"pod of another tenant":          netip.AddrPortFrom(o.v1.Addr, livePort),
	} {
		t.Run(name, func(t *testing.T) {
			live := fromPod(o.e1, func([]byte) [][]byte {
				packet := wire.UDPPacket(netip.AddrPortFrom(o.e1.Addr, livePort), outside, []byte("live"))
				return [][]byte{wire.Ethernet(gatewayMAC(o.e1), o.e1.MAC, wire.TypeIPv4, packet)}
			})
			quoting := inject(o.outside.NetNS, "eth0", func(token []byte) (frames [][]byte) {
				for _, kind := range kinds {
					header := wire.IPv4{Src: outsideAddr(), Dst: o.ip, Protocol: wire.ProtocolICMP}
					packet := header.Packet(wire.ICMPError(kind[0], kind[1], wire.UDPPacket(quoted, outside, token)))
					frames = append(frames, wire.Ethernet(nodeMAC(node1), nodeMAC(outsideAddr()), wire.TypeIPv4, packet))
				}
				return frames
			})
			o.try(t, attack{
				position: underlay, sent: fmt.Sprintf("%d ICMP errors to the egress IP that quote %s", len(kinds), quoted), packets: len(kinds),
				send: func(token []byte) error {
					if err := live(token); err != nil {
						return err
					}
					return quoting(token)
				},
				at: append(o.ownerReceivers(), podFrom(o.v1, o.v2)), counters: []counter{o.drops(fixture.Node1, "102"), o.rules(fixture.Node1)},
			})
		})
	}
}

// testARP has pods of another tenant and of the owner announce the egress IP, and ask for it with data.
func (o *egressOwner) testARP(t *testing.T) {
	for _, from := range []fixture.Pod{o.a1, o.e1} {
		claims := func(token []byte) (frames [][]byte) {
			for _, mac := range []net.HardwareAddr{from.MAC, fixture.MACOf(o.ip)} {
				for _, operation := range []uint16{wire.ARPRequest, wire.ARPReply} {
					p := wire.ARP{Operation: operation, SenderMAC: mac, SenderIP: o.ip, TargetMAC: wire.Broadcast(), TargetIP: o.ip}
					frames = append(frames, wire.Ethernet(wire.Broadcast(), from.MAC, wire.TypeARP, p.Packet(token)))
				}
			}
			return frames
		}
		asks := func(token []byte) [][]byte {
			p := wire.ARP{Operation: wire.ARPRequest, SenderMAC: from.MAC, SenderIP: from.Addr, TargetIP: o.ip}
			return [][]byte{
				wire.Ethernet(wire.Broadcast(), from.MAC, wire.TypeARP, p.Packet(token)),
				wire.Ethernet(fixture.MACOf(o.ip), from.MAC, wire.TypeARP, p.Packet(token)),
			}
		}
		tun0 := receiver{name: "tun0 of node1", listen: captures(o.node1.NetNS, "tun0"), control: sendsUDP(o.v1.NetNS, to(lab.OutsideAddr()))}
		at := append(o.victimReceivers(), podFrom(o.e2, o.e1), tun0)
		t.Run("announced by "+from.Name, func(t *testing.T) {
			o.try(t, attack{
				position: aPod, sent: "gratuitous ARP of the egress IP", packets: 4, send: fromPod(from, claims), at: at, counters: []counter{o.drops(fixture.Node1, "20")},
			})
		})
		t.Run("asked for by "+from.Name, func(t *testing.T) {
			o.try(t, attack{
				position: aPod, sent: "ARP requests for the egress IP", packets: 2, send: fromPod(from, asks), at: at,
				counters: []counter{o.flows(fixture.Node1, "51", "arp"), o.drops(fixture.Node1, "")},
			})
		})
	}
}
