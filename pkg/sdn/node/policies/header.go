package policies

import (
	"encoding/binary"
	"net/netip"
	"strconv"
)

// header is who a packet is from, and what it is for.
type header struct {
	source, destination netip.Addr
	protocol            uint8  // of IP
	port                uint16 // at the destination; 0 where the protocol has none, and in a fragment that is not the first
}

// Protocols of IP (IANA's Assigned Internet Protocol Numbers).
const (
	protocolICMP   = 1
	protocolTCP    = 6
	protocolUDP    = 17
	protocolICMPv6 = 58
	protocolSCTP   = 132

	headerHopByHop   = 0
	headerRouting    = 43
	headerFragment   = 44
	headerDestOption = 60
)

// name is the protocol as policies write it.
func (h header) name() string {
	switch h.protocol {
	case protocolTCP:
		return "TCP"
	case protocolUDP:
		return "UDP"
	case protocolSCTP:
		return "SCTP"
	case protocolICMP, protocolICMPv6:
		return "ICMP"
	}
	return strconv.Itoa(int(h.protocol))
}

// readHeader reads the packet in an Ethernet frame without a tag, as pods send them; false if it is no IP. What a packet is too short
// for is zero.
func readHeader(frame []byte) (header, bool) {
	const ethernet = 14 // bytes
	if len(frame) < ethernet {
		return header{}, false
	}
	packet := frame[ethernet:]
	switch binary.BigEndian.Uint16(frame[12:]) {
	case 0x0800:
		return readIPv4(packet)
	case 0x86dd:
		return readIPv6(packet)
	}
	return header{}, false
}

// readIPv4 reads RFC 791's header.
func readIPv4(b []byte) (header, bool) {
	const shortest = 20
	if len(b) < shortest || b[0]>>4 != 4 {
		return header{}, false
	}
	h := header{source: netip.AddrFrom4([4]byte(b[12:])), destination: netip.AddrFrom4([4]byte(b[16:])), protocol: b[9]}
	const offset = 0x1fff // in the datagram
	if n := int(b[0]&0xf) * 4; n >= shortest && n <= len(b) && binary.BigEndian.Uint16(b[6:])&offset == 0 {
		h.readPort(b[n:])
	}
	return h, true
}

// readIPv6 reads RFC 8200's header, and those between it and the payload.
func readIPv6(b []byte) (header, bool) {
	const size, next = 40, 8 // of the header, and the least of those that follow
	if len(b) < size || b[0]>>4 != 6 {
		return header{}, false
	}
	h := header{source: netip.AddrFrom16([16]byte(b[8:])), destination: netip.AddrFrom16([16]byte(b[24:])), protocol: b[6]}
	for b = b[size:]; len(b) >= next; {
		n := next
		switch h.protocol {
		case headerHopByHop, headerRouting, headerDestOption:
			n += int(b[1]) * 8
		case headerFragment:
			const offset = 0xfff8
			if binary.BigEndian.Uint16(b[2:])&offset != 0 {
				h.protocol = b[0]
				return h, true
			}
		default:
			h.readPort(b)
			return h, true
		}
		h.protocol, b = b[0], b[min(n, len(b)):]
	}
	return h, true
}

// readPort reads the destination port, which is in the same place in all that have one.
func (h *header) readPort(b []byte) {
	switch h.protocol {
	case protocolTCP, protocolUDP, protocolSCTP:
		if len(b) >= 4 {
			h.port = binary.BigEndian.Uint16(b[2:])
		}
	}
}
