package datapath_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

// fragmentKinds are packets in fragments, of which the first do not contain the whole header of the transport protocol.
func fragmentKinds() []strange {
	syn := func(src, dst netip.AddrPort, tag []byte) []byte {
		return wire.TCPSegment(src, dst, wire.TCPSYN, text(tag))
	}
	// A header with 40 bytes of options, of which the first fragment contains four.
	long := func(src, dst netip.AddrPort, tag []byte) []byte {
		segment := wire.TCPSegment(src, dst, wire.TCPSYN, slices.Concat(bytes.Repeat([]byte{optionNOP}, 40), text(tag)))
		return withChecksum(src, dst, segment, func(s []byte) { s[12] = 15 << 4 })
	}
	tcp := func(size int, segment func(src, dst netip.AddrPort, tag []byte) []byte) func(src, dst netip.AddrPort, tag []byte) [][]byte {
		return func(src, dst netip.AddrPort, tag []byte) [][]byte {
			return header(src, dst, wire.ProtocolTCP).Fragments(segment(src, dst, tag), size)
		}
	}
	udp := func(size, length int) func(src, dst netip.AddrPort, tag []byte) [][]byte {
		return func(src, dst netip.AddrPort, tag []byte) [][]byte {
			return header(src, dst, wire.ProtocolUDP).Fragments(wire.UDP(src, dst, bytes.Repeat(tag, length/len(tag))), size)
		}
	}
	return []strange{
		{name: "TCP, first fragment of 8 bytes", packets: tcp(8, syn)},
		{name: "TCP, first fragment of 16 bytes", packets: tcp(16, syn)},
		{name: "TCP, first fragment of 24 bytes", packets: tcp(24, syn)},
		{name: "TCP, options in the second fragment", packets: tcp(24, long)},
		{name: "SCTP, first fragment of 8 bytes", packets: func(src, dst netip.AddrPort, tag []byte) [][]byte {
			return header(src, dst, wire.ProtocolSCTP).Fragments(wire.SCTP(src.Port(), dst.Port(), 0x3f, text(tag)), 8)
		}},
		{name: "UDP, fragments of 8 bytes", packets: udp(8, 48)},
		{name: "UDP, fragments of 1400 bytes", packets: udp(1400, 4000), usable: true},
		{name: "TCP, overlapping fragments", packets: func(src, dst netip.AddrPort, tag []byte) [][]byte {
			h, segment := header(src, dst, wire.ProtocolTCP), syn(src, dst, tag)
			admitted := syn(src, netip.AddrPortFrom(dst.Addr(), podPort), []byte("none"))
			h.More = true
			begin, again := h.Packet(admitted[:24]), h.Packet(segment[:24])
			h.Offset, h.More = 24, false
			return [][]byte{begin, again, h.Packet(segment[24:])}
		}, admitted: hasAdmittedPort},
	}
}

// hasAdmittedPort reports whether the frame belongs to a TCP segment to podPort. The kernel's tracker puts fragments together before policies are evaluated, and
// of two that begin a packet it takes the first: what is delivered has the port that was evaluated. All but the first fragment have no port.
func hasAdmittedPort(frame []byte) bool {
	const ethernet, ipv4 = 14, 20
	later := binary.BigEndian.Uint16(frame[ethernet+6:])&0x1fff != 0
	return later || binary.BigEndian.Uint16(frame[ethernet+ipv4+2:]) == podPort
}

// withChecksum changes a segment and computes its checksum.
func withChecksum(src, dst netip.AddrPort, segment []byte, change func([]byte)) []byte {
	change(segment)
	segment[16], segment[17] = 0, 0
	pseudo := slices.Concat(src.Addr().AsSlice(), dst.Addr().AsSlice(), []byte{0, wire.ProtocolTCP, byte(len(segment) >> 8), byte(len(segment))}, segment)
	sum := checksum(pseudo)
	segment[16], segment[17] = byte(sum>>8), byte(sum)
	return segment
}

// invalidKinds are packets that conntrack takes for invalid, or that open no connection.
func invalidKinds() []strange {
	segment := func(flags byte, change func([]byte) []byte) func(src, dst netip.AddrPort, tag []byte) [][]byte {
		return func(src, dst netip.AddrPort, tag []byte) [][]byte {
			s := wire.TCPSegment(src, dst, flags, text(tag))
			if change != nil {
				s = change(s)
			}
			return [][]byte{header(src, dst, wire.ProtocolTCP).Packet(s)}
		}
	}
	return []strange{
		{name: "SYN-ACK first", packets: segment(wire.TCPSYN|wire.TCPACK, nil)},
		{name: "ACK first", packets: segment(wire.TCPACK|wire.TCPPSH, nil)},
		{name: "RST first", packets: segment(tcpRST, nil)},
		{name: "no flags", packets: segment(0, nil)},
		{name: "SYN, FIN and RST", packets: segment(wire.TCPSYN|tcpFIN|tcpRST, nil)},
		{name: "TCP with a wrong checksum", packets: segment(wire.TCPSYN, func(s []byte) []byte { s[16] ^= 0xff; return s })},
		{name: "TCP header of 8 bytes", packets: segment(wire.TCPSYN, func(s []byte) []byte { s[12] = 2 << 4; return s })},
		{name: "TCP header longer than the packet", packets: segment(wire.TCPSYN, func(s []byte) []byte { s[12] = 15 << 4; return s[:32] })},
		{name: "8 bytes of TCP", packets: func(src, dst netip.AddrPort, tag []byte) [][]byte {
			s := wire.TCPSegment(src, dst, wire.TCPSYN, nil)
			return [][]byte{header(src, dst, wire.ProtocolTCP).Packet(slices.Concat(s[:4], tag))}
		}},
		{name: "UDP longer than the packet", packets: func(src, dst netip.AddrPort, tag []byte) [][]byte {
			d := wire.UDP(src, dst, text(tag))
			d[4] = 0xff
			return [][]byte{header(src, dst, wire.ProtocolUDP).Packet(d)}
		}},
	}
}

// datagram is an ordinary packet.
func datagram(src, dst netip.AddrPort, tag []byte) [][]byte {
	return [][]byte{wire.UDPPacket(src, dst, text(tag))}
}

// tagKinds are tagged frames.
func tagKinds() []strange {
	var kinds []strange
	for _, id := range []uint16{0, 1, 7, 4095} {
		kinds = append(kinds, strange{name: fmt.Sprintf("VLAN %d", id), packets: datagram, frame: func(packet []byte) (uint16, []byte) {
			return wire.TypeVLAN, wire.VLAN(id, wire.TypeIPv4, packet)
		}})
	}
	for _, outer := range []uint16{wire.TypeVLAN, typeQinQ} {
		kinds = append(kinds, strange{name: fmt.Sprintf("VLAN 7 in %#x", outer), packets: datagram, frame: func(packet []byte) (uint16, []byte) {
			return outer, wire.VLAN(8, wire.TypeVLAN, wire.VLAN(7, wire.TypeIPv4, packet))
		}})
	}
	return kinds
}

// optionKinds are packets with options of IP, which Open vSwitch can't match. The gateway is a router that obeys source routes.
func optionKinds(gateway, receiver netip.Addr) []strange {
	with := func(options ...byte) func(src, dst netip.AddrPort, tag []byte) [][]byte {
		return func(src, dst netip.AddrPort, tag []byte) [][]byte {
			h := header(src, dst, wire.ProtocolUDP)
			h.Options = options
			return [][]byte{h.Packet(wire.UDP(src, dst, text(tag)))}
		}
	}
	// A packet to a router, and from there to the receiver.
	via := func(kind byte) func(src, dst netip.AddrPort, tag []byte) [][]byte {
		return func(src, dst netip.AddrPort, tag []byte) [][]byte {
			h := wire.IPv4{Src: src.Addr(), Dst: gateway, Protocol: wire.ProtocolUDP, Options: slices.Concat([]byte{optionNOP, kind, 7, 4}, dst.Addr().AsSlice())}
			return [][]byte{h.Packet(wire.UDP(src, dst, text(tag)))}
		}
	}
	route := slices.Concat([]byte{optionNOP, optionLooseRoute, 7, 4}, receiver.AsSlice())
	return []strange{
		{name: "IP options: nothing", packets: with(optionNOP, optionNOP, optionNOP, optionNOP), usable: true},
		{name: "IP options: nothing, 40 bytes", packets: with(bytes.Repeat([]byte{optionNOP}, 40)...), usable: true},
		{name: "IP options: record route", packets: with(optionNOP, optionRecordRoute, 7, 4, 0, 0, 0, 0), usable: true},
		{name: "IP options: timestamp", packets: with(optionTimestamp, 8, 5, 0, 0, 0, 0, 0), usable: true},
		{name: "IP options: router alert", packets: with(optionRouterAlert, 4, 0, 0), usable: true},
		{name: "IP options: malformed", packets: with(optionRecordRoute, 99, 4, 0)},
		{name: "loose source route to the receiver", packets: with(route...)},
		{name: "loose source route by the gateway", packets: via(optionLooseRoute)},
		{name: "strict source route by the gateway", packets: via(optionStrictRoute)},
		{name: "TCP behind options", packets: func(src, dst netip.AddrPort, tag []byte) [][]byte {
			h := header(src, dst, wire.ProtocolTCP)
			h.Options = bytes.Repeat([]byte{optionNOP}, 40)
			return [][]byte{h.Packet(wire.TCPSegment(src, dst, wire.TCPSYN, text(tag)))}
		}, usable: true},
	}
}

// errorKinds are ICMP errors that quote live connections of others: unreachable by host, port and size, too old, and malformed.
func (s *strangers) errorKinds() []strange {
	quoted := func(from, to *datapath.Pod, port uint16) [2]netip.AddrPort {
		return [2]netip.AddrPort{netip.AddrPortFrom(from.Addr, port), netip.AddrPortFrom(to.Addr, port)}
	}
	var kinds []strange
	for _, ends := range [][2]netip.AddrPort{
		quoted(s.friend, s.victim, friendsPort), quoted(s.victim, s.friend, friendsPort),
		quoted(s.friend, s.victim, victimsPort), quoted(s.victim, s.friend, victimsPort),
	} {
		for _, kind := range [][2]byte{{3, 1}, {3, 3}, {3, 4}, {11, 0}, {12, 0}} {
			kinds = append(kinds, strange{
				name: fmt.Sprintf("ICMP %d/%d about %s to %s", kind[0], kind[1], ends[0], ends[1]),
				packets: func(src, dst netip.AddrPort, tag []byte) [][]byte {
					packet := wire.UDPPacket(ends[0], ends[1], text(tag))
					return [][]byte{header(src, dst, wire.ProtocolICMP).Packet(wire.ICMPError(kind[0], kind[1], packet))}
				},
			})
		}
	}
	return kinds
}
