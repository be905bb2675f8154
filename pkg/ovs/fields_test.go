package ovs

import (
	"fmt"
	"strings"
)

// form is the syntax of a field's value.
type form int

const (
	formDecimal       form = iota // accepts no mask
	formMaskedDecimal             // in hexadecimal if masked
	formHex                       // with or without a mask
	formTOS
	formMAC
	formIPv4
	formIPv6
	formPort
	formFrag
	formCTState
	formTCPFlags
)

// needs is a field's prerequisite.
type needs int

const (
	needsNothing needs = iota
	needsARP
	needsIPv4 // or ARP, for which nw_src is arp_spa
	needsIPv6
	needsIP // IPv4 or IPv6
	needsTransport
	needsTCP
	needsUDP
	needsSCTP
	needsICMP
	needsICMPv6
)

// field describes a match field for the tests, independently of package openflow.
type field struct {
	names string // that ovs-ofctl accepts
	kind  string // two fields of one kind exclude each other
	form  form
	bits  int // of an integer field
	needs needs
}

// testFields returns all fields of the tests except those of the protocol.
func testFields() []field {
	fields := []field{
		{"pkt_mark", "", formHex, 32, needsNothing},
		{"conj_id", "", formDecimal, 32, needsNothing},
		{"ct_state", "", formCTState, 0, needsNothing},
		{"ct_zone", "", formDecimal, 16, needsNothing},
		{"ct_mark", "", formHex, 32, needsNothing},
		{"tun_id tunnel_id", "tun_id", formHex, 64, needsNothing},
		{"tun_src", "", formIPv4, 0, needsNothing},
		{"tun_dst", "", formIPv4, 0, needsNothing},
		{"tun_ipv6_src", "", formIPv6, 0, needsNothing},
		{"tun_ipv6_dst", "", formIPv6, 0, needsNothing},
		{"metadata", "", formHex, 64, needsNothing},
		{"in_port", "", formPort, 16, needsNothing},
		{"dl_src eth_src", "dl_src", formMAC, 0, needsNothing},
		{"dl_dst eth_dst", "dl_dst", formMAC, 0, needsNothing},
		{"nw_src ip_src", "nw_src", formIPv4, 0, needsIPv4},
		{"nw_dst ip_dst", "nw_dst", formIPv4, 0, needsIPv4},
		{"arp_spa", "", formIPv4, 0, needsARP},
		{"arp_tpa", "", formIPv4, 0, needsARP},
		{"ipv6_src", "", formIPv6, 0, needsIPv6},
		{"ipv6_dst", "", formIPv6, 0, needsIPv6},
		{"arp_op", "", formDecimal, 8, needsARP}, // ovs-ofctl uses eight bits
		{"arp_sha", "", formMAC, 0, needsARP},
		{"arp_tha", "", formMAC, 0, needsARP},
		{"nw_tos", "", formTOS, 8, needsIP},
		{"nw_ecn ip_ecn", "nw_ecn", formDecimal, 2, needsIP},
		{"nw_ttl", "", formDecimal, 8, needsIP},
		{"nw_frag ip_frag", "nw_frag", formFrag, 0, needsIP},
		{"icmp_type", "icmp_type", formDecimal, 8, needsICMP},
		{"icmp_code", "icmp_code", formDecimal, 8, needsICMP},
		{"icmpv6_type", "icmp_type", formDecimal, 8, needsICMPv6},
		{"icmpv6_code", "icmp_code", formDecimal, 8, needsICMPv6},
		{"tp_src", "tp_src", formMaskedDecimal, 16, needsTransport},
		{"tp_dst", "tp_dst", formMaskedDecimal, 16, needsTransport},
		{"tcp_src", "tp_src", formMaskedDecimal, 16, needsTCP},
		{"tcp_dst", "tp_dst", formMaskedDecimal, 16, needsTCP},
		{"udp_src", "tp_src", formMaskedDecimal, 16, needsUDP},
		{"udp_dst", "tp_dst", formMaskedDecimal, 16, needsUDP},
		{"sctp_src", "tp_src", formMaskedDecimal, 16, needsSCTP},
		{"sctp_dst", "tp_dst", formMaskedDecimal, 16, needsSCTP},
		{"tcp_flags", "", formTCPFlags, 12, needsTCP},
	}
	for n := range maxReg + 1 {
		fields = append(fields, field{fmt.Sprintf("reg%d", n), "", formHex, 32, needsNothing})
	}
	var named []field // one per name
	for _, fd := range fields {
		for name := range strings.FieldsSeq(fd.names) {
			f := fd
			if f.names = name; f.kind == "" {
				f.kind = name
			}
			named = append(named, f)
		}
	}
	return named
}

const (
	ethIPv4 = 0x0800
	ethARP  = 0x0806
	ethRARP = 0x8035
	ethIPv6 = 0x86dd
)

// protocol is a keyword and the dl_type and nw_proto that it represents; ip is -1 if nw_proto may be any.
type protocol struct {
	word string
	eth  int
	ip   int
}

// protocols returns the keywords and a protocol without one.
func protocols() []protocol {
	return []protocol{
		{"icmp", ethIPv4, protoICMP},
		{"tcp", ethIPv4, protoTCP},
		{"udp", ethIPv4, protoUDP},
		{"sctp", ethIPv4, protoSCTP},
		{"icmp6", ethIPv6, protoICMPv6},
		{"tcp6", ethIPv6, protoTCP},
		{"udp6", ethIPv6, protoUDP},
		{"sctp6", ethIPv6, protoSCTP},
		{"ip", ethIPv4, -1},
		{"ipv6", ethIPv6, -1},
		{"arp", ethARP, -1},
		{"rarp", ethRARP, -1},
		{},
	}
}

// satisfies reports whether a match of the protocol may contain a field with this prerequisite; later is set for nw_frag=later.
func (p protocol) satisfies(n needs, later bool) bool {
	ip := p.eth == ethIPv4 || p.eth == ethIPv6
	switch n {
	case needsARP:
		return p.eth == ethARP || p.eth == ethRARP
	case needsIPv4:
		return p.eth == ethIPv4
	case needsIPv6:
		return p.eth == ethIPv6
	case needsIP:
		return ip
	case needsTransport:
		return !later && (p.ip == protoTCP || p.ip == protoUDP || p.ip == protoSCTP)
	case needsTCP:
		return !later && p.ip == protoTCP
	case needsUDP:
		return !later && p.ip == protoUDP
	case needsSCTP:
		return !later && p.ip == protoSCTP
	case needsICMP:
		return !later && (p.ip == protoICMP || p.ip == protoICMPv6)
	case needsICMPv6:
		return !later && p.ip == protoICMPv6
	}
	return true
}

// isTransport reports whether later fragments lack the field.
func (n needs) isTransport() bool { return n >= needsTransport }
