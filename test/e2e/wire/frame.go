package wire

import (
	"encoding/binary"
	"hash/crc32"
	"net"
	"net/netip"
)

// Ethernet types (IEEE 802).
const (
	TypeIPv4 = 0x0800
	TypeARP  = 0x0806
	TypeVLAN = 0x8100
	TypeIPv6 = 0x86dd
)

// IP protocols (IANA).
const (
	ProtocolICMP = 1
	ProtocolTCP  = 6
	ProtocolUDP  = 17
	ProtocolSCTP = 132
)

// ARP operations (RFC 826).
const (
	ARPRequest = 1
	ARPReply   = 2
)

// Broadcast is Ethernet's address of everybody.
func Broadcast() net.HardwareAddr { return net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff} }

// Ethernet makes a frame.
func Ethernet(dst, src net.HardwareAddr, etherType uint16, payload []byte) []byte {
	frame := append(append([]byte{}, dst...), src...)
	frame = binary.BigEndian.AppendUint16(frame, etherType)
	return append(frame, payload...)
}

// VLAN makes the payload of a frame of TypeVLAN.
func VLAN(id, etherType uint16, payload []byte) []byte {
	tag := binary.BigEndian.AppendUint16(nil, id)
	return append(binary.BigEndian.AppendUint16(tag, etherType), payload...)
}

// ARP is an ARP packet for Ethernet and IPv4.
type ARP struct {
	Operation uint16
	SenderMAC net.HardwareAddr
	SenderIP  netip.Addr
	TargetMAC net.HardwareAddr
	TargetIP  netip.Addr
}

// Packet is the payload of a frame of TypeARP. Receivers ignore the trailer, by which a capture knows it again.
func (a ARP) Packet(trailer []byte) []byte {
	target := a.TargetMAC
	if target == nil {
		target = make(net.HardwareAddr, 6)
	}
	p := []byte{0, 1, 8, 0, 6, 4} // Ethernet, IPv4, and the lengths of their addresses
	p = binary.BigEndian.AppendUint16(p, a.Operation)
	p = append(append(p, a.SenderMAC...), a.SenderIP.AsSlice()...)
	p = append(append(p, target...), a.TargetIP.AsSlice()...)
	return append(p, trailer...)
}

// IPv4 is a header.
type IPv4 struct {
	Src, Dst netip.Addr
	Protocol byte
	DSCP     byte // RFC 2474
	ID       uint16
	Offset   int // of a fragment, in bytes
	More     bool
	Options  []byte // in a multiple of 4 bytes
}

// Packet is the packet with that payload.
func (h IPv4) Packet(payload []byte) []byte {
	const more = 0x2000
	length := 20 + len(h.Options)
	p := []byte{0x40 | byte(length/4), h.DSCP << 2} // above ECN
	p = binary.BigEndian.AppendUint16(p, uint16(length+len(payload)))
	p = binary.BigEndian.AppendUint16(p, h.ID)
	flags := uint16(h.Offset / 8)
	if h.More {
		flags |= more
	}
	p = binary.BigEndian.AppendUint16(p, flags)
	p = append(p, 64, h.Protocol, 0, 0)
	p = append(append(p, h.Src.AsSlice()...), h.Dst.AsSlice()...)
	p = append(p, h.Options...)
	binary.BigEndian.PutUint16(p[10:], checksum(p))
	return append(p, payload...)
}

// Fragments is the packet in pieces with at most size bytes of payload each, which must be a multiple of 8.
func (h IPv4) Fragments(payload []byte, size int) [][]byte {
	var all [][]byte
	for offset := 0; offset < len(payload); offset += size {
		end := min(offset+size, len(payload))
		h.Offset, h.More = offset, end < len(payload)
		all = append(all, h.Packet(payload[offset:end]))
	}
	return all
}

// UDP is a datagram: the payload of an IPv4 packet of ProtocolUDP.
func UDP(src, dst netip.AddrPort, payload []byte) []byte {
	d := binary.BigEndian.AppendUint16(nil, src.Port())
	d = binary.BigEndian.AppendUint16(d, dst.Port())
	d = binary.BigEndian.AppendUint16(d, uint16(8+len(payload)))
	d = append(append(d, 0, 0), payload...)
	sum := checksumWithAddrs(src.Addr(), dst.Addr(), ProtocolUDP, d)
	if sum == 0 {
		sum = 0xffff // RFC 768: 0 means none
	}
	binary.BigEndian.PutUint16(d[6:], sum)
	return d
}

// Flags of TCP (RFC 9293).
const (
	TCPSYN = 0x02
	TCPPSH = 0x08
	TCPACK = 0x10
)

// TCP is a segment without data: the payload of an IPv4 packet of ProtocolTCP.
func TCP(src, dst netip.AddrPort, flags byte) []byte { return TCPSegment(src, dst, flags, nil) }

// TCPSegment is TCP with data.
func TCPSegment(src, dst netip.AddrPort, flags byte, payload []byte) []byte {
	const words, window = 5, 1 << 10 // of the header; what the sender would take
	s := binary.BigEndian.AppendUint16(nil, src.Port())
	s = binary.BigEndian.AppendUint16(s, dst.Port())
	s = append(s, 0, 0, 0, 1, 0, 0, 0, 0, words<<4, flags) // numbers of this byte, and of the other end's next one
	s = binary.BigEndian.AppendUint16(s, window)
	s = append(append(s, 0, 0, 0, 0), payload...)
	binary.BigEndian.PutUint16(s[16:], checksumWithAddrs(src.Addr(), dst.Addr(), ProtocolTCP, s))
	return s
}

// checksumWithAddrs is that of a segment with the header that TCP and UDP pretend to have.
func checksumWithAddrs(src, dst netip.Addr, protocol byte, segment []byte) uint16 {
	pseudo := append(append([]byte{}, src.AsSlice()...), dst.AsSlice()...)
	pseudo = append(pseudo, 0, protocol)
	pseudo = binary.BigEndian.AppendUint16(pseudo, uint16(len(segment)))
	return checksum(append(pseudo, segment...))
}

// UDPPacket is a whole IPv4 packet with a datagram.
func UDPPacket(src, dst netip.AddrPort, payload []byte) []byte {
	return IPv4{Src: src.Addr(), Dst: dst.Addr(), Protocol: ProtocolUDP}.Packet(UDP(src, dst, payload))
}

// SCTP is a packet with one chunk (RFC 9260): the payload of an IPv4 packet of ProtocolSCTP.
func SCTP(srcPort, dstPort uint16, chunkType byte, chunk []byte) []byte {
	p := binary.BigEndian.AppendUint16(nil, srcPort)
	p = binary.BigEndian.AppendUint16(p, dstPort)
	p = append(p, 0, 0, 0, 1, 0, 0, 0, 0) // verification tag, checksum
	p = append(p, chunkType, 0)
	p = binary.BigEndian.AppendUint16(p, uint16(4+len(chunk)))
	p = append(p, chunk...)
	for len(p)%4 != 0 {
		p = append(p, 0)
	}
	binary.LittleEndian.PutUint32(p[8:], crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)))
	return p
}

// VXLAN is the payload of a datagram to a VTEP (RFC 7348).
func VXLAN(vni uint32, frame []byte) []byte {
	const vniIsValid = 0x08
	p := []byte{vniIsValid, 0, 0, 0}
	return append(binary.BigEndian.AppendUint32(p, vni<<8), frame...)
}

func icmpEcho(kind byte, id, number uint16, payload []byte) []byte {
	m := []byte{kind, 0, 0, 0}
	m = binary.BigEndian.AppendUint16(m, id)
	m = binary.BigEndian.AppendUint16(m, number)
	m = append(m, payload...)
	binary.BigEndian.PutUint16(m[2:], checksum(m))
	return m
}

// ICMPEcho is an echo request: the payload of an IPv4 packet of ProtocolICMP.
func ICMPEcho(payload []byte) []byte { return icmpEcho(icmpEchoRequest, 1, 1, payload) }

// ICMPError is a message about a packet, which it quotes: the payload of an IPv4 packet of ProtocolICMP.
func ICMPError(kind, code byte, quoted []byte) []byte {
	m := append([]byte{kind, code, 0, 0, 0, 0, 0, 0}, quoted...)
	binary.BigEndian.PutUint16(m[2:], checksum(m))
	return m
}

// checksum is the Internet's (RFC 1071).
func checksum(data []byte) uint16 {
	var sum uint32
	for len(data) > 1 {
		sum += uint32(binary.BigEndian.Uint16(data))
		data = data[2:]
	}
	if len(data) == 1 {
		sum += uint32(data[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
