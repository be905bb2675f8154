package openflow

// Classes of OXM headers (OpenFlow 1.4.1, 7.2.2.3, and enum ofp12_oxm_class of Open vSwitch).
const (
	classNXM0         = 0x0000 // NXM_OF_…
	classNXM1         = 0x0001 // NXM_NX_…
	classBasic        = 0x8000 // OXM_OF_…
	classPktReg       = 0x8001 // OXM_OF_PKT_REG…, since 1.5 a standard class
	classExperimenter = 0xffff // an experimenter id follows the header
)

// oxmHeader is the first 4 bytes of an OXM: class, field number, has-mask bit, length of what follows.
type oxmHeader uint32

// oxm is the header of a field without mask and length.
func oxm(class, number uint32) oxmHeader { return oxmHeader(class<<16 | number<<9) }

func (h oxmHeader) class() uint32 { return uint32(h) >> 16 }
func (h oxmHeader) number() int   { return int(h >> 9 & 0x7f) }
func (h oxmHeader) masked() bool  { return h&0x100 != 0 }
func (h oxmHeader) payload() int  { return int(h & 0xff) }

// with returns the header for a payload.
func (h oxmHeader) with(masked bool, payload int) oxmHeader {
	if masked {
		h |= 0x100
	}
	return h | oxmHeader(payload)
}

// A fieldInfo is what is known of a field: `man 7 ovs-fields`.
type fieldInfo struct {
	name     string // in matches and set_field
	alias    string // also taken in text
	nxName   string // in subfields, when it has one
	oxmName  string // in subfields, when nxName is empty
	nx, oxm  oxmHeader
	hasNX    bool
	hasOXM   bool
	size     uint8 // of the value on the wire, bytes
	bits     uint8 // of it that a subfield counts
	form     form
	maskable bool
	needs    prerequisite
}

// wire is the header that Open vSwitch puts into matches and set_field.
func (f *fieldInfo) wire() oxmHeader {
	if f.hasOXM {
		return f.oxm
	}
	return f.nx
}

// action is the header that Open vSwitch puts into Nicira's actions.
func (f *fieldInfo) action() oxmHeader {
	if f.hasNX {
		return f.nx
	}
	return f.oxm
}

// subfieldName is the name that goes with action.
func (f *fieldInfo) subfieldName() string {
	if f.hasNX {
		return f.nxName
	}
	return f.oxmName
}

// fieldTable is the registry of fields.
var fieldTable = [numFields]fieldInfo{ //nolint:gochecknoglobals // immutable; every decoded field looks here
	FieldConjID:     {name: "conj_id", nxName: "NXM_NX_CONJ_ID", nx: oxm(classNXM1, 37), hasNX: true, size: 4, bits: 32, form: formDecimal},
	FieldInPort:     {name: "in_port_oxm", oxmName: "OXM_OF_IN_PORT", oxm: oxm(classBasic, 0), hasOXM: true, size: 4, bits: 32, form: formPort},
	FieldEthSrc:     {name: "eth_src", alias: "dl_src", nxName: "NXM_OF_ETH_SRC", nx: oxm(classNXM0, 2), hasNX: true, oxmName: "OXM_OF_ETH_SRC", oxm: oxm(classBasic, 4), hasOXM: true, size: 6, bits: 48, form: formEth, maskable: true},
	FieldEthDst:     {name: "eth_dst", alias: "dl_dst", nxName: "NXM_OF_ETH_DST", nx: oxm(classNXM0, 1), hasNX: true, oxmName: "OXM_OF_ETH_DST", oxm: oxm(classBasic, 3), hasOXM: true, size: 6, bits: 48, form: formEth, maskable: true},
	FieldEthType:    {name: "eth_type", alias: "dl_type", nxName: "NXM_OF_ETH_TYPE", nx: oxm(classNXM0, 3), hasNX: true, oxmName: "OXM_OF_ETH_TYPE", oxm: oxm(classBasic, 5), hasOXM: true, size: 2, bits: 16, form: formHex},
	FieldVLANVID:    {name: "vlan_vid", oxmName: "OXM_OF_VLAN_VID", oxm: oxm(classBasic, 6), hasOXM: true, size: 2, bits: 12, form: formDecimal, maskable: true},
	FieldVLANPCP:    {name: "vlan_pcp", oxmName: "OXM_OF_VLAN_PCP", oxm: oxm(classBasic, 7), hasOXM: true, size: 1, bits: 3, form: formDecimal, needs: needsVLAN},
	FieldIPSrc:      {name: "ip_src", alias: "nw_src", nxName: "NXM_OF_IP_SRC", nx: oxm(classNXM0, 7), hasNX: true, oxmName: "OXM_OF_IPV4_SRC", oxm: oxm(classBasic, 11), hasOXM: true, size: 4, bits: 32, form: formIPv4, maskable: true, needs: needsIPv4},
	FieldIPDst:      {name: "ip_dst", alias: "nw_dst", nxName: "NXM_OF_IP_DST", nx: oxm(classNXM0, 8), hasNX: true, oxmName: "OXM_OF_IPV4_DST", oxm: oxm(classBasic, 12), hasOXM: true, size: 4, bits: 32, form: formIPv4, maskable: true, needs: needsIPv4},
	FieldIPv6Src:    {name: "ipv6_src", nxName: "NXM_NX_IPV6_SRC", nx: oxm(classNXM1, 19), hasNX: true, oxmName: "OXM_OF_IPV6_SRC", oxm: oxm(classBasic, 26), hasOXM: true, size: 16, bits: 128, form: formIPv6, maskable: true, needs: needsIPv6},
	FieldIPv6Dst:    {name: "ipv6_dst", nxName: "NXM_NX_IPV6_DST", nx: oxm(classNXM1, 20), hasNX: true, oxmName: "OXM_OF_IPV6_DST", oxm: oxm(classBasic, 27), hasOXM: true, size: 16, bits: 128, form: formIPv6, maskable: true, needs: needsIPv6},
	FieldIPFrag:     {name: "ip_frag", alias: "nw_frag", nxName: "NXM_NX_IP_FRAG", nx: oxm(classNXM1, 26), hasNX: true, size: 1, bits: 2, form: formFrag, maskable: true, needs: needsIP},
	FieldIPDSCP:     {name: "ip_dscp", oxmName: "OXM_OF_IP_DSCP", oxm: oxm(classBasic, 8), hasOXM: true, size: 1, bits: 6, form: formDecimal, needs: needsIP},
	FieldIPECN:      {name: "nw_ecn", alias: "ip_ecn", nxName: "NXM_NX_IP_ECN", nx: oxm(classNXM1, 28), hasNX: true, oxmName: "OXM_OF_IP_ECN", oxm: oxm(classBasic, 9), hasOXM: true, size: 1, bits: 2, form: formDecimal, needs: needsIP},
	FieldIPTTL:      {name: "nw_ttl", nxName: "NXM_NX_IP_TTL", nx: oxm(classNXM1, 29), hasNX: true, size: 1, bits: 8, form: formDecimal, needs: needsIP},
	FieldIPv6Label:  {name: "ipv6_label", nxName: "NXM_NX_IPV6_LABEL", nx: oxm(classNXM1, 27), hasNX: true, oxmName: "OXM_OF_IPV6_FLABEL", oxm: oxm(classBasic, 28), hasOXM: true, size: 4, bits: 20, form: formHex, maskable: true, needs: needsIPv6},
	FieldIPProto:    {name: "nw_proto", alias: "ip_proto", nxName: "NXM_OF_IP_PROTO", nx: oxm(classNXM0, 6), hasNX: true, oxmName: "OXM_OF_IP_PROTO", oxm: oxm(classBasic, 10), hasOXM: true, size: 1, bits: 8, form: formDecimal, needs: needsIP},
	FieldTCPSrc:     {name: "tcp_src", nxName: "NXM_OF_TCP_SRC", nx: oxm(classNXM0, 9), hasNX: true, oxmName: "OXM_OF_TCP_SRC", oxm: oxm(classBasic, 13), hasOXM: true, size: 2, bits: 16, form: formDecimal, maskable: true, needs: needsTCP},
	FieldTCPDst:     {name: "tcp_dst", nxName: "NXM_OF_TCP_DST", nx: oxm(classNXM0, 10), hasNX: true, oxmName: "OXM_OF_TCP_DST", oxm: oxm(classBasic, 14), hasOXM: true, size: 2, bits: 16, form: formDecimal, maskable: true, needs: needsTCP},
	FieldTCPFlags:   {name: "tcp_flags", nxName: "NXM_NX_TCP_FLAGS", nx: oxm(classNXM1, 34), hasNX: true, size: 2, bits: 12, form: formTCPFlags, maskable: true, needs: needsTCP},
	FieldUDPSrc:     {name: "udp_src", nxName: "NXM_OF_UDP_SRC", nx: oxm(classNXM0, 11), hasNX: true, oxmName: "OXM_OF_UDP_SRC", oxm: oxm(classBasic, 15), hasOXM: true, size: 2, bits: 16, form: formDecimal, maskable: true, needs: needsUDP},
	FieldUDPDst:     {name: "udp_dst", nxName: "NXM_OF_UDP_DST", nx: oxm(classNXM0, 12), hasNX: true, oxmName: "OXM_OF_UDP_DST", oxm: oxm(classBasic, 16), hasOXM: true, size: 2, bits: 16, form: formDecimal, maskable: true, needs: needsUDP},
	FieldSCTPSrc:    {name: "sctp_src", oxmName: "OXM_OF_SCTP_SRC", oxm: oxm(classBasic, 17), hasOXM: true, size: 2, bits: 16, form: formDecimal, maskable: true, needs: needsSCTP},
	FieldSCTPDst:    {name: "sctp_dst", oxmName: "OXM_OF_SCTP_DST", oxm: oxm(classBasic, 18), hasOXM: true, size: 2, bits: 16, form: formDecimal, maskable: true, needs: needsSCTP},
	FieldICMPType:   {name: "icmp_type", nxName: "NXM_OF_ICMP_TYPE", nx: oxm(classNXM0, 13), hasNX: true, oxmName: "OXM_OF_ICMPV4_TYPE", oxm: oxm(classBasic, 19), hasOXM: true, size: 1, bits: 8, form: formDecimal, needs: needsICMP},
	FieldICMPCode:   {name: "icmp_code", nxName: "NXM_OF_ICMP_CODE", nx: oxm(classNXM0, 14), hasNX: true, oxmName: "OXM_OF_ICMPV4_CODE", oxm: oxm(classBasic, 20), hasOXM: true, size: 1, bits: 8, form: formDecimal, needs: needsICMP},
	FieldICMPv6Type: {name: "icmpv6_type", nxName: "NXM_NX_ICMPV6_TYPE", nx: oxm(classNXM1, 21), hasNX: true, oxmName: "OXM_OF_ICMPV6_TYPE", oxm: oxm(classBasic, 29), hasOXM: true, size: 1, bits: 8, form: formDecimal, needs: needsICMPv6},
	FieldICMPv6Code: {name: "icmpv6_code", nxName: "NXM_NX_ICMPV6_CODE", nx: oxm(classNXM1, 22), hasNX: true, oxmName: "OXM_OF_ICMPV6_CODE", oxm: oxm(classBasic, 30), hasOXM: true, size: 1, bits: 8, form: formDecimal, needs: needsICMPv6},
	FieldNDTarget:   {name: "nd_target", nxName: "NXM_NX_ND_TARGET", nx: oxm(classNXM1, 23), hasNX: true, oxmName: "OXM_OF_IPV6_ND_TARGET", oxm: oxm(classBasic, 31), hasOXM: true, size: 16, bits: 128, form: formIPv6, maskable: true, needs: needsND},
	FieldNDSLL:      {name: "nd_sll", nxName: "NXM_NX_ND_SLL", nx: oxm(classNXM1, 24), hasNX: true, oxmName: "OXM_OF_IPV6_ND_SLL", oxm: oxm(classBasic, 32), hasOXM: true, size: 6, bits: 48, form: formEth, maskable: true, needs: needsNDSolicit},
	FieldNDTLL:      {name: "nd_tll", nxName: "NXM_NX_ND_TLL", nx: oxm(classNXM1, 25), hasNX: true, oxmName: "OXM_OF_IPV6_ND_TLL", oxm: oxm(classBasic, 33), hasOXM: true, size: 6, bits: 48, form: formEth, maskable: true, needs: needsNDAdvert},
	FieldARPOp:      {name: "arp_op", nxName: "NXM_OF_ARP_OP", nx: oxm(classNXM0, 15), hasNX: true, oxmName: "OXM_OF_ARP_OP", oxm: oxm(classBasic, 21), hasOXM: true, size: 2, bits: 16, form: formDecimal, needs: needsARP},
	FieldARPSPA:     {name: "arp_spa", nxName: "NXM_OF_ARP_SPA", nx: oxm(classNXM0, 16), hasNX: true, oxmName: "OXM_OF_ARP_SPA", oxm: oxm(classBasic, 22), hasOXM: true, size: 4, bits: 32, form: formIPv4, maskable: true, needs: needsARP},
	FieldARPTPA:     {name: "arp_tpa", nxName: "NXM_OF_ARP_TPA", nx: oxm(classNXM0, 17), hasNX: true, oxmName: "OXM_OF_ARP_TPA", oxm: oxm(classBasic, 23), hasOXM: true, size: 4, bits: 32, form: formIPv4, maskable: true, needs: needsARP},
	FieldARPSHA:     {name: "arp_sha", nxName: "NXM_NX_ARP_SHA", nx: oxm(classNXM1, 17), hasNX: true, oxmName: "OXM_OF_ARP_SHA", oxm: oxm(classBasic, 24), hasOXM: true, size: 6, bits: 48, form: formEth, maskable: true, needs: needsARP},
	FieldARPTHA:     {name: "arp_tha", nxName: "NXM_NX_ARP_THA", nx: oxm(classNXM1, 18), hasNX: true, oxmName: "OXM_OF_ARP_THA", oxm: oxm(classBasic, 25), hasOXM: true, size: 6, bits: 48, form: formEth, maskable: true, needs: needsARP},
	FieldTunID:      {name: "tun_id", alias: "tunnel_id", nxName: "NXM_NX_TUN_ID", nx: oxm(classNXM1, 16), hasNX: true, oxmName: "OXM_OF_TUNNEL_ID", oxm: oxm(classBasic, 38), hasOXM: true, size: 8, bits: 64, form: formHex, maskable: true},
	FieldTunSrc:     {name: "tun_src", nxName: "NXM_NX_TUN_IPV4_SRC", nx: oxm(classNXM1, 31), hasNX: true, size: 4, bits: 32, form: formIPv4, maskable: true},
	FieldTunDst:     {name: "tun_dst", nxName: "NXM_NX_TUN_IPV4_DST", nx: oxm(classNXM1, 32), hasNX: true, size: 4, bits: 32, form: formIPv4, maskable: true},
	FieldTunIPv6Src: {name: "tun_ipv6_src", nxName: "NXM_NX_TUN_IPV6_SRC", nx: oxm(classNXM1, 109), hasNX: true, size: 16, bits: 128, form: formIPv6, maskable: true},
	FieldTunIPv6Dst: {name: "tun_ipv6_dst", nxName: "NXM_NX_TUN_IPV6_DST", nx: oxm(classNXM1, 110), hasNX: true, size: 16, bits: 128, form: formIPv6, maskable: true},
	FieldTunFlags:   {name: "tun_flags", nxName: "NXM_NX_TUN_FLAGS", nx: oxm(classNXM1, 104), hasNX: true, size: 2, bits: 1, form: formTunFlags, maskable: true},
	FieldReg0:       {name: "reg0", nxName: "NXM_NX_REG0", nx: oxm(classNXM1, 0), hasNX: true, size: 4, bits: 32, form: formHex, maskable: true},
	fieldReg1:       {name: "reg1", nxName: "NXM_NX_REG1", nx: oxm(classNXM1, 1), hasNX: true, size: 4, bits: 32, form: formHex, maskable: true},
	fieldReg2:       {name: "reg2", nxName: "NXM_NX_REG2", nx: oxm(classNXM1, 2), hasNX: true, size: 4, bits: 32, form: formHex, maskable: true},
	fieldReg3:       {name: "reg3", nxName: "NXM_NX_REG3", nx: oxm(classNXM1, 3), hasNX: true, size: 4, bits: 32, form: formHex, maskable: true},
	fieldReg4:       {name: "reg4", nxName: "NXM_NX_REG4", nx: oxm(classNXM1, 4), hasNX: true, size: 4, bits: 32, form: formHex, maskable: true},
	fieldReg5:       {name: "reg5", nxName: "NXM_NX_REG5", nx: oxm(classNXM1, 5), hasNX: true, size: 4, bits: 32, form: formHex, maskable: true},
	fieldReg6:       {name: "reg6", nxName: "NXM_NX_REG6", nx: oxm(classNXM1, 6), hasNX: true, size: 4, bits: 32, form: formHex, maskable: true},
	fieldReg7:       {name: "reg7", nxName: "NXM_NX_REG7", nx: oxm(classNXM1, 7), hasNX: true, size: 4, bits: 32, form: formHex, maskable: true},
	fieldReg8:       {name: "reg8", nxName: "NXM_NX_REG8", nx: oxm(classNXM1, 8), hasNX: true, size: 4, bits: 32, form: formHex, maskable: true},
	fieldReg9:       {name: "reg9", nxName: "NXM_NX_REG9", nx: oxm(classNXM1, 9), hasNX: true, size: 4, bits: 32, form: formHex, maskable: true},
	fieldReg10:      {name: "reg10", nxName: "NXM_NX_REG10", nx: oxm(classNXM1, 10), hasNX: true, size: 4, bits: 32, form: formHex, maskable: true},
	fieldReg11:      {name: "reg11", nxName: "NXM_NX_REG11", nx: oxm(classNXM1, 11), hasNX: true, size: 4, bits: 32, form: formHex, maskable: true},
	fieldReg12:      {name: "reg12", nxName: "NXM_NX_REG12", nx: oxm(classNXM1, 12), hasNX: true, size: 4, bits: 32, form: formHex, maskable: true},
	fieldReg13:      {name: "reg13", nxName: "NXM_NX_REG13", nx: oxm(classNXM1, 13), hasNX: true, size: 4, bits: 32, form: formHex, maskable: true},
	fieldReg14:      {name: "reg14", nxName: "NXM_NX_REG14", nx: oxm(classNXM1, 14), hasNX: true, size: 4, bits: 32, form: formHex, maskable: true},
	fieldReg15:      {name: "reg15", nxName: "NXM_NX_REG15", nx: oxm(classNXM1, 15), hasNX: true, size: 4, bits: 32, form: formHex, maskable: true},
	FieldPktMark:    {name: "pkt_mark", nxName: "NXM_NX_PKT_MARK", nx: oxm(classNXM1, 33), hasNX: true, size: 4, bits: 32, form: formHex, maskable: true},
	FieldCTState:    {name: "ct_state", nxName: "NXM_NX_CT_STATE", nx: oxm(classNXM1, 105), hasNX: true, size: 4, bits: 32, form: formCTState, maskable: true},
	FieldCTZone:     {name: "ct_zone", nxName: "NXM_NX_CT_ZONE", nx: oxm(classNXM1, 106), hasNX: true, size: 2, bits: 16, form: formHex},
	FieldCTMark:     {name: "ct_mark", nxName: "NXM_NX_CT_MARK", nx: oxm(classNXM1, 107), hasNX: true, size: 4, bits: 32, form: formHex, maskable: true},
	FieldCTLabel:    {name: "ct_label", nxName: "NXM_NX_CT_LABEL", nx: oxm(classNXM1, 108), hasNX: true, size: 16, bits: 128, form: formHex, maskable: true},
	FieldCTNwSrc:    {name: "ct_nw_src", nxName: "NXM_NX_CT_NW_SRC", nx: oxm(classNXM1, 120), hasNX: true, size: 4, bits: 32, form: formIPv4, maskable: true, needs: needsCT},
	FieldCTNwDst:    {name: "ct_nw_dst", nxName: "NXM_NX_CT_NW_DST", nx: oxm(classNXM1, 121), hasNX: true, size: 4, bits: 32, form: formIPv4, maskable: true, needs: needsCT},
	FieldCTIPv6Src:  {name: "ct_ipv6_src", nxName: "NXM_NX_CT_IPV6_SRC", nx: oxm(classNXM1, 122), hasNX: true, size: 16, bits: 128, form: formIPv6, maskable: true, needs: needsCT},
	FieldCTIPv6Dst:  {name: "ct_ipv6_dst", nxName: "NXM_NX_CT_IPV6_DST", nx: oxm(classNXM1, 123), hasNX: true, size: 16, bits: 128, form: formIPv6, maskable: true, needs: needsCT},
	FieldCTNwProto:  {name: "ct_nw_proto", nxName: "NXM_NX_CT_NW_PROTO", nx: oxm(classNXM1, 119), hasNX: true, size: 1, bits: 8, form: formDecimal, needs: needsCT},
	FieldCTTPSrc:    {name: "ct_tp_src", nxName: "NXM_NX_CT_TP_SRC", nx: oxm(classNXM1, 124), hasNX: true, size: 2, bits: 16, form: formDecimal, maskable: true, needs: needsCT},
	FieldCTTPDst:    {name: "ct_tp_dst", nxName: "NXM_NX_CT_TP_DST", nx: oxm(classNXM1, 125), hasNX: true, size: 2, bits: 16, form: formDecimal, maskable: true, needs: needsCT},
	FieldMetadata:   {name: "metadata", oxmName: "OXM_OF_METADATA", oxm: oxm(classBasic, 2), hasOXM: true, size: 8, bits: 64, form: formHex, maskable: true},
	FieldInPort16:   {name: "in_port", nxName: "NXM_OF_IN_PORT", nx: oxm(classNXM0, 0), hasNX: true, size: 2, bits: 16, form: formPort},
	FieldVLANTCI:    {name: "vlan_tci", nxName: "NXM_OF_VLAN_TCI", nx: oxm(classNXM0, 4), hasNX: true, size: 2, bits: 16, form: formHex, maskable: true},
	FieldIPTOS:      {name: "nw_tos", nxName: "NXM_OF_IP_TOS", nx: oxm(classNXM0, 5), hasNX: true, size: 1, bits: 8, form: formDecimal, needs: needsIP},
	FieldXReg0:      {name: "xreg0", oxmName: "OXM_OF_PKT_REG0", oxm: oxm(classPktReg, 0), hasOXM: true, size: 8, bits: 64, form: formHex, maskable: true},
	fieldXReg1:      {name: "xreg1", oxmName: "OXM_OF_PKT_REG1", oxm: oxm(classPktReg, 1), hasOXM: true, size: 8, bits: 64, form: formHex, maskable: true},
	fieldXReg2:      {name: "xreg2", oxmName: "OXM_OF_PKT_REG2", oxm: oxm(classPktReg, 2), hasOXM: true, size: 8, bits: 64, form: formHex, maskable: true},
	fieldXReg3:      {name: "xreg3", oxmName: "OXM_OF_PKT_REG3", oxm: oxm(classPktReg, 3), hasOXM: true, size: 8, bits: 64, form: formHex, maskable: true},
	fieldXReg4:      {name: "xreg4", oxmName: "OXM_OF_PKT_REG4", oxm: oxm(classPktReg, 4), hasOXM: true, size: 8, bits: 64, form: formHex, maskable: true},
	fieldXReg5:      {name: "xreg5", oxmName: "OXM_OF_PKT_REG5", oxm: oxm(classPktReg, 5), hasOXM: true, size: 8, bits: 64, form: formHex, maskable: true},
	fieldXReg6:      {name: "xreg6", oxmName: "OXM_OF_PKT_REG6", oxm: oxm(classPktReg, 6), hasOXM: true, size: 8, bits: 64, form: formHex, maskable: true},
	fieldXReg7:      {name: "xreg7", oxmName: "OXM_OF_PKT_REG7", oxm: oxm(classPktReg, 7), hasOXM: true, size: 8, bits: 64, form: formHex, maskable: true},
	FieldXXReg0:     {name: "xxreg0", nxName: "NXM_NX_XXREG0", nx: oxm(classNXM1, 111), hasNX: true, size: 16, bits: 128, form: formHex, maskable: true},
	fieldXXReg1:     {name: "xxreg1", nxName: "NXM_NX_XXREG1", nx: oxm(classNXM1, 112), hasNX: true, size: 16, bits: 128, form: formHex, maskable: true},
	fieldXXReg2:     {name: "xxreg2", nxName: "NXM_NX_XXREG2", nx: oxm(classNXM1, 113), hasNX: true, size: 16, bits: 128, form: formHex, maskable: true},
	fieldXXReg3:     {name: "xxreg3", nxName: "NXM_NX_XXREG3", nx: oxm(classNXM1, 114), hasNX: true, size: 16, bits: 128, form: formHex, maskable: true},
}

// noField stands for a header that is not in the registry.
const noField = numFields

// fieldNumbers finds a field by the class and number of either of its headers.
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

// oxmTCPFlags15 is OXM_OF_TCP_FLAGS, the third form of tcp_flags: what Open vSwitch gives back in OpenFlow 1.5.
const oxmTCPFlags15 = 42

func indexNumbers() *numberIndex {
	x := &numberIndex{}
	for c := range x {
		for n := range x[c] {
			x[c][n] = noField
		}
	}
	for id := range fieldTable {
		f := &fieldTable[id]
		if f.hasNX {
			x.row(f.nx.class())[f.nx.number()] = FieldID(id)
		}
		if f.hasOXM {
			x.row(f.oxm.class())[f.oxm.number()] = FieldID(id)
		}
	}
	x.row(classBasic)[oxmTCPFlags15] = FieldTCPFlags
	return x
}

// fieldOf returns the field of a header, noField when it is unknown. It does not look at mask and length.
func fieldOf(h oxmHeader) FieldID {
	row := fieldNumbers.row(h.class())
	if row == nil {
		return noField
	}
	return row[h.number()]
}

// fieldNames finds a field by any of its names.
var fieldNames = indexNames() //nolint:gochecknoglobals // immutable index of fieldTable

func indexNames() map[string]FieldID {
	x := make(map[string]FieldID, 3*int(numFields))
	for id, f := range fieldTable {
		for _, name := range []string{f.name, f.alias, f.nxName, f.oxmName} {
			if name != "" {
				x[name] = FieldID(id)
			}
		}
	}
	return x
}
