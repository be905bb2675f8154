package ovs

import (
	"strconv"
	"strings"
)

// fieldID numbers the match fields in the order in which Open vSwitch prints them (match_format in its match.c), so that a
// canonical match reads like the line of dump-flows.
type fieldID int

const (
	fieldPktMark fieldID = iota
	fieldConjID
	fieldCTState
	fieldCTZone
	fieldCTMark
	fieldProtocol // the word that stands for dl_type and nw_proto: ip, tcp6, arp …
	fieldReg0
	fieldTunID fieldID = iota + maxReg // reg1 to reg15 lie between
	fieldTunSrc
	fieldTunDst
	fieldTunIPv6Src
	fieldTunIPv6Dst
	fieldMetadata
	fieldInPort
	fieldDLSrc
	fieldDLDst
	fieldDLType
	fieldNWSrc
	fieldNWDst
	fieldARPSPA
	fieldARPTPA
	fieldIPv6Src
	fieldIPv6Dst
	fieldIPv6Label
	fieldNWProto
	fieldARPOp
	fieldARPSHA
	fieldARPTHA
	fieldNWTOS
	fieldNWECN
	fieldNWTTL
	fieldNWFrag
	fieldICMPType
	fieldICMPCode
	fieldNDTarget
	fieldNDSLL
	fieldNDTLL
	fieldTPSrc
	fieldTPDst
	fieldTCPFlags
	numFields
)

// A field is what is known of one match field.
type field struct {
	id    fieldID
	name  string // as Open vSwitch prints it
	form  form
	bits  int   // of an integer
	needs needs // what the match must say of the packet before this field means anything
}

// form is how a field's value is written.
type form int

const (
	formDecimal       form = iota // no mask
	formMaskedDecimal             // hexadecimal when masked
	formHex                       // with or without mask
	formTOS
	formMAC
	formMaskedMAC
	formIPv4
	formIPv6
	formPort
	formFrag
	formCTState
	formTCPFlags
)

// needs is a field's prerequisite. Open vSwitch silently drops a field without it, which widens the match.
type needs int

const (
	needsNothing needs = iota
	needsARP
	needsIPv4 // or ARP, where nw_src means arp_spa
	needsIPv6
	needsIP // of either family
	needsTransport
	needsTCP
	needsUDP
	needsSCTP
	needsICMP
	needsICMPv6
)

func (n needs) String() string {
	switch n {
	case needsARP:
		return "arp"
	case needsIPv4:
		return "ip"
	case needsIPv6:
		return "ipv6"
	case needsIP:
		return "ip or ipv6"
	case needsTransport:
		return "tcp, udp or sctp"
	case needsTCP:
		return "tcp"
	case needsUDP:
		return "udp"
	case needsSCTP:
		return "sctp"
	case needsICMP:
		return "icmp or icmp6"
	case needsICMPv6:
		return "icmp6"
	}
	return "nothing"
}

// lookupField finds a field by any of the names that ovs-ofctl takes for it. The fields are those in use; what is missing is
// refused rather than compared wrongly.
func lookupField(name string) (field, bool) {
	switch name {
	case "pkt_mark":
		return field{fieldPktMark, name, formHex, 32, needsNothing}, true
	case "conj_id":
		return field{fieldConjID, name, formDecimal, 32, needsNothing}, true
	case "ct_state":
		return field{fieldCTState, name, formCTState, 0, needsNothing}, true
	case "ct_zone":
		return field{fieldCTZone, name, formDecimal, 16, needsNothing}, true
	case "ct_mark":
		return field{fieldCTMark, name, formHex, 32, needsNothing}, true
	case "tun_id", "tunnel_id":
		return field{fieldTunID, "tun_id", formHex, 64, needsNothing}, true
	case "tun_src":
		return field{fieldTunSrc, name, formIPv4, 0, needsNothing}, true
	case "tun_dst":
		return field{fieldTunDst, name, formIPv4, 0, needsNothing}, true
	case "tun_ipv6_src":
		return field{fieldTunIPv6Src, name, formIPv6, 0, needsNothing}, true
	case "tun_ipv6_dst":
		return field{fieldTunIPv6Dst, name, formIPv6, 0, needsNothing}, true
	case "metadata":
		return field{fieldMetadata, name, formHex, 64, needsNothing}, true
	case "in_port":
		return field{fieldInPort, name, formPort, 16, needsNothing}, true
	case "dl_src", "eth_src":
		return field{fieldDLSrc, "dl_src", formMaskedMAC, 0, needsNothing}, true
	case "dl_dst", "eth_dst":
		return field{fieldDLDst, "dl_dst", formMaskedMAC, 0, needsNothing}, true
	case "dl_type", "eth_type":
		return field{fieldDLType, "dl_type", formDecimal, 16, needsNothing}, true
	case "nw_src", "ip_src":
		return field{fieldNWSrc, "nw_src", formIPv4, 0, needsIPv4}, true
	case "nw_dst", "ip_dst":
		return field{fieldNWDst, "nw_dst", formIPv4, 0, needsIPv4}, true
	case "arp_spa":
		return field{fieldARPSPA, name, formIPv4, 0, needsARP}, true
	case "arp_tpa":
		return field{fieldARPTPA, name, formIPv4, 0, needsARP}, true
	case "ipv6_src":
		return field{fieldIPv6Src, name, formIPv6, 0, needsIPv6}, true
	case "ipv6_dst":
		return field{fieldIPv6Dst, name, formIPv6, 0, needsIPv6}, true
	case "nw_proto", "ip_proto":
		return field{fieldNWProto, "nw_proto", formDecimal, 8, needsIP}, true
	case "arp_op":
		return field{fieldARPOp, name, formDecimal, 16, needsARP}, true
	case "arp_sha":
		return field{fieldARPSHA, name, formMaskedMAC, 0, needsARP}, true
	case "arp_tha":
		return field{fieldARPTHA, name, formMaskedMAC, 0, needsARP}, true
	case "nw_tos":
		return field{fieldNWTOS, name, formTOS, 8, needsIP}, true
	case "nw_ecn", "ip_ecn":
		return field{fieldNWECN, "nw_ecn", formDecimal, 2, needsIP}, true
	case "nw_ttl":
		return field{fieldNWTTL, name, formDecimal, 8, needsIP}, true
	case "nw_frag", "ip_frag":
		return field{fieldNWFrag, "nw_frag", formFrag, 0, needsIP}, true
	case "icmp_type":
		return field{fieldICMPType, name, formDecimal, 8, needsICMP}, true
	case "icmp_code":
		return field{fieldICMPCode, name, formDecimal, 8, needsICMP}, true
	case "icmpv6_type":
		return field{fieldICMPType, "icmp_type", formDecimal, 8, needsICMPv6}, true
	case "icmpv6_code":
		return field{fieldICMPCode, "icmp_code", formDecimal, 8, needsICMPv6}, true
	case "tp_src":
		return field{fieldTPSrc, name, formMaskedDecimal, 16, needsTransport}, true
	case "tp_dst":
		return field{fieldTPDst, name, formMaskedDecimal, 16, needsTransport}, true
	case "tcp_src":
		return field{fieldTPSrc, "tp_src", formMaskedDecimal, 16, needsTCP}, true
	case "tcp_dst":
		return field{fieldTPDst, "tp_dst", formMaskedDecimal, 16, needsTCP}, true
	case "udp_src":
		return field{fieldTPSrc, "tp_src", formMaskedDecimal, 16, needsUDP}, true
	case "udp_dst":
		return field{fieldTPDst, "tp_dst", formMaskedDecimal, 16, needsUDP}, true
	case "sctp_src":
		return field{fieldTPSrc, "tp_src", formMaskedDecimal, 16, needsSCTP}, true
	case "sctp_dst":
		return field{fieldTPDst, "tp_dst", formMaskedDecimal, 16, needsSCTP}, true
	case "tcp_flags":
		return field{fieldTCPFlags, name, formTCPFlags, 12, needsTCP}, true
	}
	if n, ok := strings.CutPrefix(name, "reg"); ok {
		reg, err := strconv.ParseUint(n, 10, 8)
		if err == nil && reg <= maxReg && n == strconv.FormatUint(reg, 10) {
			return field{fieldReg0 + fieldID(reg), name, formHex, 32, needsNothing}, true
		}
	}
	return field{}, false
}
