package networkpolicy

import (
	"encoding/binary"
	"net/netip"
	"strconv"
)

// header has the addresses, the protocol and the destination port of an IP packet.
type header struct {
	source, destination netip.Addr
	protocol            uint8  // of IP
	port                uint16 // of the destination; 0: the protocol has none, or a fragment that is not the first
}

// IP protocols and IPv6 extension headers (IANA's Assigned Internet Protocol Numbers).
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

// name returns the protocol as in policies, or its number.
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

// EtherTypes (IEEE 802 Numbers).
const (
	typeIPv4       = 0x0800
	typeIPv6       = 0x86dd
	typeVLAN       = 0x8100 // IEEE 802.1Q
	typeServiceTag = 0x88a8 // IEEE 802.1ad
)

// readHeader parses the IP packet of an Ethernet frame with at most one VLAN tag, as the switch does; false if it has none. Fields beyond the end of the
// frame are zero.
func readHeader(frame []byte) (header, bool) {
	const ethernet, tag = 14, 4 // bytes
	if len(frame) < ethernet {
		return header{}, false
	}
	etherType, packet := binary.BigEndian.Uint16(frame[12:]), frame[ethernet:]
	if (etherType == typeVLAN || etherType == typeServiceTag) && len(packet) >= tag {
		etherType, packet = binary.BigEndian.Uint16(packet[2:]), packet[tag:]
	}
	switch etherType {
	case typeIPv4:
		return readIPv4(packet)
	case typeIPv6:
		return readIPv6(packet)
	}
	return header{}, false
}

// readIPv4 parses the header of RFC 791.
func readIPv4(b []byte) (header, bool) {
	const shortest = 20
	if len(b) < shortest || b[0]>>4 != 4 {
		return header{}, false
	}
	h := header{source: netip.AddrFrom4([4]byte(b[12:])), destination: netip.AddrFrom4([4]byte(b[16:])), protocol: b[9]}
	const offset = 0x1fff // fragment offset
	if n := int(b[0]&0xf) * 4; n >= shortest && n <= len(b) && binary.BigEndian.Uint16(b[6:])&offset == 0 {
		h.readPort(b[n:])
	}
	return h, true
}

// readIPv6 parses the header of RFC 8200 and the extension headers.
func readIPv6(b []byte) (header, bool) {
	const size, next = 40, 8 // of the header, and of the shortest extension header
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
			const offset = 0xfff8 // fragment offset
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

// readPort parses the destination port, which has the same offset in all protocols that have one.
func (h *header) readPort(b []byte) {
	switch h.protocol {
	case protocolTCP, protocolUDP, protocolSCTP:
		if len(b) >= 4 {
			h.port = binary.BigEndian.Uint16(b[2:])
		}
	}
}
