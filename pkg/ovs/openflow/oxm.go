package openflow

import (
	"fmt"
)

// Classes of OXM headers (OpenFlow 1.4.1, 7.2.2.3, and enum ofp12_oxm_class of Open vSwitch).
const (
	classNXM0         = 0x0000 // NXM_OF_…
	classNXM1         = 0x0001 // NXM_NX_…
	classBasic        = 0x8000 // OXM_OF_…
	classPktReg       = 0x8001 // OXM_OF_PKT_REG…
	classExperimenter = 0xffff // an experimenter id follows the header
)

// oxmHeader is the 4-byte header of an OXM TLV: class, field number, has-mask bit, payload length.
type oxmHeader uint32

// oxm returns the header of a field, without mask bit and length.
func oxm(class, number uint32) oxmHeader { return oxmHeader(class<<16 | number<<9) }

func (h oxmHeader) class() uint32 { return uint32(h) >> 16 }
func (h oxmHeader) number() int   { return int(h >> 9 & 0x7f) }
func (h oxmHeader) masked() bool  { return h&0x100 != 0 }
func (h oxmHeader) payload() int  { return int(h & 0xff) }

// with returns the header with mask bit and payload length.
func (h oxmHeader) with(masked bool, payload int) oxmHeader {
	if masked {
		h |= 0x100
	}
	return h | oxmHeader(payload)
}

// fieldInfo describes a field, see ovs-fields(7).
type fieldInfo struct {
	name     string // in matches and set_field
	alias    string // alternative name in text
	form     form
	size     uint8 // bytes of the value on the wire
	bits     uint8 // number of bits that subfields can address
	maskable bool
	needs    prerequisite
	nx       namedHeader // Nicira header; none for fields that only OpenFlow defines
	oxm      namedHeader // OpenFlow header; none for fields that only Nicira defines
}

// namedHeader is a header and its name in subfields.
type namedHeader struct {
	name   string // "": the field has no such header
	header oxmHeader
}

// wire returns the header that Open vSwitch uses in matches and set_field.
func (f *fieldInfo) wire() oxmHeader {
	if f.oxm.name != "" {
		return f.oxm.header
	}
	return f.nx.header
}

// action returns the header, with its name, that Open vSwitch uses in Nicira actions.
func (f *fieldInfo) action() namedHeader {
	if f.nx.name != "" {
		return f.nx
	}
	return f.oxm
}

func nxmOF(name string, n uint32) namedHeader {
	return namedHeader{"NXM_OF_" + name, oxm(classNXM0, n)}
}
func nxmNX(name string, n uint32) namedHeader {
	return namedHeader{"NXM_NX_" + name, oxm(classNXM1, n)}
}
func oxmOF(name string, n uint32) namedHeader {
	return namedHeader{"OXM_OF_" + name, oxm(classBasic, n)}
}

// Registers of 32, 64 and 128 bits, which are views of the same memory.
func reg32(n uint32) fieldInfo {
	return fieldInfo{fmt.Sprintf("reg%d", n), "", formHex, 4, 32, true, needsNothing, nxmNX(fmt.Sprintf("REG%d", n), n), namedHeader{}}
}

func reg64(n uint32) fieldInfo {
	header := namedHeader{fmt.Sprintf("OXM_OF_PKT_REG%d", n), oxm(classPktReg, n)}
	return fieldInfo{fmt.Sprintf("xreg%d", n), "", formHex, 8, 64, true, needsNothing, namedHeader{}, header}
}

func reg128(n uint32) fieldInfo {
	return fieldInfo{fmt.Sprintf("xxreg%d", n), "", formHex, 16, 128, true, needsNothing, nxmNX(fmt.Sprintf("XXREG%d", n), 111+n), namedHeader{}}
}

// fieldTable describes all fields.
var fieldTable = newFieldTable() //nolint:gochecknoglobals // immutable; every decoded field looks here

func newFieldTable() *[numFields]fieldInfo {
	const exact, masks = false, true
	none := namedHeader{}
	table := &[numFields]fieldInfo{
		FieldInPort:     {"in_port_oxm", "", formPort, 4, 32, exact, needsNothing, none, oxmOF("IN_PORT", 0)},
		FieldEthSrc:     {"eth_src", "dl_src", formEth, 6, 48, masks, needsNothing, nxmOF("ETH_SRC", 2), oxmOF("ETH_SRC", 4)},
		FieldEthDst:     {"eth_dst", "dl_dst", formEth, 6, 48, masks, needsNothing, nxmOF("ETH_DST", 1), oxmOF("ETH_DST", 3)},
		FieldEthType:    {"eth_type", "dl_type", formHex, 2, 16, exact, needsNothing, nxmOF("ETH_TYPE", 3), oxmOF("ETH_TYPE", 5)},
		FieldVLANVID:    {"vlan_vid", "", formDecimal, 2, 12, masks, needsNothing, none, oxmOF("VLAN_VID", 6)},
		FieldVLANPCP:    {"vlan_pcp", "", formDecimal, 1, 3, exact, needsVLAN, none, oxmOF("VLAN_PCP", 7)},
		FieldIPSrc:      {"ip_src", "nw_src", formIPv4, 4, 32, masks, needsIPv4, nxmOF("IP_SRC", 7), oxmOF("IPV4_SRC", 11)},
		FieldIPDst:      {"ip_dst", "nw_dst", formIPv4, 4, 32, masks, needsIPv4, nxmOF("IP_DST", 8), oxmOF("IPV4_DST", 12)},
		FieldIPv6Src:    {"ipv6_src", "", formIPv6, 16, 128, masks, needsIPv6, nxmNX("IPV6_SRC", 19), oxmOF("IPV6_SRC", 26)},
		FieldIPv6Dst:    {"ipv6_dst", "", formIPv6, 16, 128, masks, needsIPv6, nxmNX("IPV6_DST", 20), oxmOF("IPV6_DST", 27)},
		FieldIPFrag:     {"ip_frag", "nw_frag", formFrag, 1, 2, masks, needsIP, nxmNX("IP_FRAG", 26), none},
		FieldIPDSCP:     {"ip_dscp", "", formDecimal, 1, 6, exact, needsIP, none, oxmOF("IP_DSCP", 8)},
		FieldIPECN:      {"nw_ecn", "ip_ecn", formDecimal, 1, 2, exact, needsIP, nxmNX("IP_ECN", 28), oxmOF("IP_ECN", 9)},
		FieldIPTTL:      {"nw_ttl", "", formDecimal, 1, 8, exact, needsIP, nxmNX("IP_TTL", 29), none},
		FieldIPv6Label:  {"ipv6_label", "", formHex, 4, 20, masks, needsIPv6, nxmNX("IPV6_LABEL", 27), oxmOF("IPV6_FLABEL", 28)},
		FieldIPProto:    {"nw_proto", "ip_proto", formDecimal, 1, 8, exact, needsIP, nxmOF("IP_PROTO", 6), oxmOF("IP_PROTO", 10)},
		FieldTCPSrc:     {"tcp_src", "", formDecimal, 2, 16, masks, needsTCP, nxmOF("TCP_SRC", 9), oxmOF("TCP_SRC", 13)},
		FieldTCPDst:     {"tcp_dst", "", formDecimal, 2, 16, masks, needsTCP, nxmOF("TCP_DST", 10), oxmOF("TCP_DST", 14)},
		FieldTCPFlags:   {"tcp_flags", "", formTCPFlags, 2, 12, masks, needsTCP, nxmNX("TCP_FLAGS", 34), none},
		FieldUDPSrc:     {"udp_src", "", formDecimal, 2, 16, masks, needsUDP, nxmOF("UDP_SRC", 11), oxmOF("UDP_SRC", 15)},
		FieldUDPDst:     {"udp_dst", "", formDecimal, 2, 16, masks, needsUDP, nxmOF("UDP_DST", 12), oxmOF("UDP_DST", 16)},
		FieldSCTPSrc:    {"sctp_src", "", formDecimal, 2, 16, masks, needsSCTP, none, oxmOF("SCTP_SRC", 17)},
		FieldSCTPDst:    {"sctp_dst", "", formDecimal, 2, 16, masks, needsSCTP, none, oxmOF("SCTP_DST", 18)},
		FieldICMPType:   {"icmp_type", "", formDecimal, 1, 8, exact, needsICMP, nxmOF("ICMP_TYPE", 13), oxmOF("ICMPV4_TYPE", 19)},
		FieldICMPCode:   {"icmp_code", "", formDecimal, 1, 8, exact, needsICMP, nxmOF("ICMP_CODE", 14), oxmOF("ICMPV4_CODE", 20)},
		FieldICMPv6Type: {"icmpv6_type", "", formDecimal, 1, 8, exact, needsICMPv6, nxmNX("ICMPV6_TYPE", 21), oxmOF("ICMPV6_TYPE", 29)},
		FieldICMPv6Code: {"icmpv6_code", "", formDecimal, 1, 8, exact, needsICMPv6, nxmNX("ICMPV6_CODE", 22), oxmOF("ICMPV6_CODE", 30)},
		FieldNDTarget:   {"nd_target", "", formIPv6, 16, 128, masks, needsND, nxmNX("ND_TARGET", 23), oxmOF("IPV6_ND_TARGET", 31)},
		FieldNDSLL:      {"nd_sll", "", formEth, 6, 48, masks, needsNDSolicit, nxmNX("ND_SLL", 24), oxmOF("IPV6_ND_SLL", 32)},
		FieldNDTLL:      {"nd_tll", "", formEth, 6, 48, masks, needsNDAdvert, nxmNX("ND_TLL", 25), oxmOF("IPV6_ND_TLL", 33)},
		FieldARPOp:      {"arp_op", "", formDecimal, 2, 16, exact, needsARP, nxmOF("ARP_OP", 15), oxmOF("ARP_OP", 21)},
		FieldARPSPA:     {"arp_spa", "", formIPv4, 4, 32, masks, needsARP, nxmOF("ARP_SPA", 16), oxmOF("ARP_SPA", 22)},
		FieldARPTPA:     {"arp_tpa", "", formIPv4, 4, 32, masks, needsARP, nxmOF("ARP_TPA", 17), oxmOF("ARP_TPA", 23)},
		FieldARPSHA:     {"arp_sha", "", formEth, 6, 48, masks, needsARP, nxmNX("ARP_SHA", 17), oxmOF("ARP_SHA", 24)},
		FieldARPTHA:     {"arp_tha", "", formEth, 6, 48, masks, needsARP, nxmNX("ARP_THA", 18), oxmOF("ARP_THA", 25)},
		FieldInPort16:   {"in_port", "", formPort, 2, 16, exact, needsNothing, nxmOF("IN_PORT", 0), none},
		FieldVLANTCI:    {"vlan_tci", "", formHex, 2, 16, masks, needsNothing, nxmOF("VLAN_TCI", 4), none},
		FieldIPTOS:      {"nw_tos", "", formDecimal, 1, 8, exact, needsIP, nxmOF("IP_TOS", 5), none},
	}
	addMetadata(table)
	return table
}

// addMetadata adds the fields that are not part of the packet.
func addMetadata(table *[numFields]fieldInfo) {
	const exact, masks = false, true
	none := namedHeader{}
	for id, info := range map[FieldID]fieldInfo{
		FieldConjID:     {"conj_id", "", formDecimal, 4, 32, exact, needsNothing, nxmNX("CONJ_ID", 37), none},
		FieldTunID:      {"tun_id", "tunnel_id", formHex, 8, 64, masks, needsNothing, nxmNX("TUN_ID", 16), oxmOF("TUNNEL_ID", 38)},
		FieldTunSrc:     {"tun_src", "", formIPv4, 4, 32, masks, needsNothing, nxmNX("TUN_IPV4_SRC", 31), none},
		FieldTunDst:     {"tun_dst", "", formIPv4, 4, 32, masks, needsNothing, nxmNX("TUN_IPV4_DST", 32), none},
		FieldTunIPv6Src: {"tun_ipv6_src", "", formIPv6, 16, 128, masks, needsNothing, nxmNX("TUN_IPV6_SRC", 109), none},
		FieldTunIPv6Dst: {"tun_ipv6_dst", "", formIPv6, 16, 128, masks, needsNothing, nxmNX("TUN_IPV6_DST", 110), none},
		FieldTunFlags:   {"tun_flags", "", formTunFlags, 2, 1, masks, needsNothing, nxmNX("TUN_FLAGS", 104), none},
		FieldPktMark:    {"pkt_mark", "", formHex, 4, 32, masks, needsNothing, nxmNX("PKT_MARK", 33), none},
		FieldCTState:    {"ct_state", "", formCTState, 4, 32, masks, needsNothing, nxmNX("CT_STATE", 105), none},
		FieldCTZone:     {"ct_zone", "", formHex, 2, 16, exact, needsNothing, nxmNX("CT_ZONE", 106), none},
		FieldCTMark:     {"ct_mark", "", formHex, 4, 32, masks, needsNothing, nxmNX("CT_MARK", 107), none},
		FieldCTLabel:    {"ct_label", "", formHex, 16, 128, masks, needsNothing, nxmNX("CT_LABEL", 108), none},
		FieldCTNwSrc:    {"ct_nw_src", "", formIPv4, 4, 32, masks, needsCT, nxmNX("CT_NW_SRC", 120), none},
		FieldCTNwDst:    {"ct_nw_dst", "", formIPv4, 4, 32, masks, needsCT, nxmNX("CT_NW_DST", 121), none},
		FieldCTIPv6Src:  {"ct_ipv6_src", "", formIPv6, 16, 128, masks, needsCT, nxmNX("CT_IPV6_SRC", 122), none},
		FieldCTIPv6Dst:  {"ct_ipv6_dst", "", formIPv6, 16, 128, masks, needsCT, nxmNX("CT_IPV6_DST", 123), none},
		FieldCTNwProto:  {"ct_nw_proto", "", formDecimal, 1, 8, exact, needsCT, nxmNX("CT_NW_PROTO", 119), none},
		FieldCTTPSrc:    {"ct_tp_src", "", formDecimal, 2, 16, masks, needsCT, nxmNX("CT_TP_SRC", 124), none},
		FieldCTTPDst:    {"ct_tp_dst", "", formDecimal, 2, 16, masks, needsCT, nxmNX("CT_TP_DST", 125), none},
		FieldMetadata:   {"metadata", "", formHex, 8, 64, masks, needsNothing, none, oxmOF("METADATA", 2)},
	} {
		table[id] = info
	}
	for n := range FieldID(numRegs) {
		table[FieldReg0+n] = reg32(uint32(n))
	}
	for n := range FieldID(numRegs / 2) {
		table[FieldXReg0+n] = reg64(uint32(n))
	}
	for n := range FieldID(numRegs / 4) {
		table[FieldXXReg0+n] = reg128(uint32(n))
	}
}

// noField is the result of a lookup that finds no field.
const noField = numFields

// fieldNumbers maps the class and number of OXM headers to fields.
var fieldNumbers = indexNumbers() //nolint:gochecknoglobals // immutable index of fieldTable; every decoded field looks here

type numberIndex [4][128]FieldID

func (x *numberIndex) row(class uint32) *[128]FieldID {
	switch class {
	case classNXM0:
		return &x[0]
	case classNXM1:
		return &x[1]
	case classBasic:
		return &x[2]
	case classPktReg:
		return &x[3]
	}
	return nil
}

func indexNumbers() *numberIndex {
	x := &numberIndex{}
	for c := range x {
		for n := range x[c] {
			x[c][n] = noField
		}
	}
	for id := range fieldTable {
		f := &fieldTable[id]
		for _, h := range []namedHeader{f.nx, f.oxm} {
			if h.name != "" {
				x.row(h.header.class())[h.header.number()] = FieldID(id)
			}
		}
	}
	return x
}

// fieldOf returns the field of a header, or noField. It ignores the mask bit and the length.
func fieldOf(h oxmHeader) FieldID {
	row := fieldNumbers.row(h.class())
	if row == nil {
		return noField
	}
	return row[h.number()]
}

// fieldNames maps all names of the fields to fields.
var fieldNames = indexNames() //nolint:gochecknoglobals // immutable index of fieldTable

func indexNames() map[string]FieldID {
	x := make(map[string]FieldID, 3*int(numFields))
	for id := range fieldTable {
		f := &fieldTable[id]
		for _, name := range []string{f.name, f.alias, f.nx.name, f.oxm.name} {
			if name != "" {
				x[name] = FieldID(id)
			}
		}
	}
	return x
}
