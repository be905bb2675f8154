package openflow

import (
	"strconv"
)

// String returns the match as ovs-ofctl prints it (match_format in Open vSwitch's match.c); a match of all packets is "".
func (m Match) String() string { return string(m.appendText(make([]byte, 0, mostText))) }

// appendText appends the match without a separator before or after it.
func (m Match) appendText(b []byte) []byte {
	p := matchPrinter{b: b}
	m.expand(&p.fieldSet)
	return p.text()
}

type matchPrinter struct {
	fieldSet // by value, else it would be allocated on the heap
	b        []byte
}

// text appends the match without a separator before or after it.
func (p *matchPrinter) text() []byte {
	start := len(p.b)
	p.print()
	if len(p.b) > start {
		return p.b[:len(p.b)-1] // the last comma
	}
	return p.b
}

func (p *matchPrinter) print() {
	p.masked("pkt_mark", FieldPktMark)
	p.decimal("conj_id", FieldConjID)
	p.plain("ct_state", FieldCTState)
	p.decimal("ct_zone", FieldCTZone)
	p.masked("ct_mark", FieldCTMark)
	p.masked("ct_label", FieldCTLabel)
	p.plain("ct_nw_src", FieldCTNwSrc)
	p.plain("ct_nw_dst", FieldCTNwDst)
	p.plain("ct_ipv6_src", FieldCTIPv6Src)
	p.plain("ct_ipv6_dst", FieldCTIPv6Dst)
	p.decimal("ct_nw_proto", FieldCTNwProto)
	p.decimal("ct_tp_src", FieldCTTPSrc)
	p.decimal("ct_tp_dst", FieldCTTPDst)

	word, skipProto := p.protocol()
	if word != "" {
		p.b = append(append(p.b, word...), ',')
	}
	for id := p.next(FieldReg0); id < FieldReg0+numRegs; id = p.next(id + 1) {
		p.masked(fieldTable[id].name, id)
	}
	p.masked("tun_id", FieldTunID)
	p.plain("tun_src", FieldTunSrc)
	p.plain("tun_dst", FieldTunDst)
	p.plain("tun_ipv6_src", FieldTunIPv6Src)
	p.plain("tun_ipv6_dst", FieldTunIPv6Dst)
	p.plain("tun_flags", FieldTunFlags)
	p.masked("metadata", FieldMetadata)
	p.plain("in_port", FieldInPort)
	p.vlan()
	p.plain("dl_src", FieldEthSrc)
	p.plain("dl_dst", FieldEthDst)
	if word == "" && p.has(FieldEthType) {
		p.b = append(p.b, "dl_type=0x"...)
		p.b = append(appendPaddedHex(p.b, p.at(FieldEthType).Value.Lo, 4), ',')
	}
	p.network(skipProto)
	p.transport()
	if len(p.unknown) > 0 {
		p.b = append(appendUnknown(p.b, p.unknown), ',')
	}
}

func (p *matchPrinter) network(skipProto bool) {
	p.plain("ipv6_src", FieldIPv6Src)
	p.plain("ipv6_dst", FieldIPv6Dst)
	if p.has(FieldIPv6Label) {
		f := p.at(FieldIPv6Label)
		p.b = appendPaddedHex(append(p.b, "ipv6_label=0x"...), f.Value.Lo, 5)
		if !f.isExact() {
			p.b = appendPaddedHex(append(p.b, "/0x"...), f.Mask.Lo, 5)
		}
		p.b = append(p.b, ',')
	}
	p.plain("arp_spa", FieldARPSPA)
	p.plain("arp_tpa", FieldARPTPA)
	p.plain("nw_src", FieldIPSrc)
	p.plain("nw_dst", FieldIPDst)
	if !skipProto {
		p.decimal("nw_proto", FieldIPProto)
	}
	p.decimal("arp_op", FieldARPOp)
	p.plain("arp_sha", FieldARPSHA)
	p.plain("arp_tha", FieldARPTHA)
	if p.has(FieldIPDSCP) {
		p.b = strconv.AppendUint(append(p.b, "nw_tos="...), p.at(FieldIPDSCP).Value.Lo<<2, 10)
		p.b = append(p.b, ',')
	}
	p.decimal("nw_ecn", FieldIPECN)
	p.decimal("nw_ttl", FieldIPTTL)
	p.plain("nw_frag", FieldIPFrag)
}

func (p *matchPrinter) transport() {
	p.decimal("icmp_type", FieldICMPType)
	p.decimal("icmp_code", FieldICMPCode)
	p.decimal("icmp_type", FieldICMPv6Type)
	p.decimal("icmp_code", FieldICMPv6Code)
	p.plain("nd_target", FieldNDTarget)
	p.plain("nd_sll", FieldNDSLL)
	p.plain("nd_tll", FieldNDTLL)
	for _, id := range []FieldID{FieldTCPSrc, FieldUDPSrc, FieldSCTPSrc} {
		p.decimal("tp_src", id)
	}
	for _, id := range []FieldID{FieldTCPDst, FieldUDPDst, FieldSCTPDst} {
		p.decimal("tp_dst", id)
	}
	p.plain("tcp_flags", FieldTCPFlags)
}

func (p *matchPrinter) plain(name string, id FieldID) {
	if p.has(id) {
		p.b = append(append(p.b, name...), '=')
		p.b = append(appendFieldValue(p.b, *p.at(id)), ',')
	}
}

// masked prints a field in hexadecimal.
func (p *matchPrinter) masked(name string, id FieldID) {
	if !p.has(id) {
		return
	}
	f := p.at(id)
	p.b = appendHex(append(append(p.b, name...), '='), f.Value)
	if !f.isExact() {
		p.b = appendHex(append(p.b, '/'), f.Mask)
	}
	p.b = append(p.b, ',')
}

// decimal prints an exact field in decimal and a masked one in hexadecimal.
func (p *matchPrinter) decimal(name string, id FieldID) {
	if !p.has(id) {
		return
	}
	f := p.at(id)
	p.b = append(append(p.b, name...), '=')
	if f.isExact() {
		p.b = strconv.AppendUint(p.b, f.Value.Lo, 10)
	} else {
		p.b = appendHexPrefixed(p.b, f.Value)
		p.b = appendHexPrefixed(append(p.b, '/'), f.Mask)
	}
	p.b = append(p.b, ',')
}

// vlan prints vlan_vid and vlan_pcp as dl_vlan and dl_vlan_pcp if these represent the match completely, and as vlan_tci otherwise.
func (p *matchPrinter) vlan() {
	if !p.has(FieldVLANVID) && !p.has(FieldVLANPCP) {
		return
	}
	vid, pcp := p.get(FieldVLANVID), p.get(FieldVLANPCP)
	tci := vid.Value.Lo | pcp.Value.Lo<<13
	mask := vid.Mask.Lo&(vlanVID|vlanPresent) | pcp.Mask.Lo<<13&vlanPCP
	vidMask, pcpMask := mask&vlanVID, mask&vlanPCP
	if tci&mask&vlanPresent != 0 && (vidMask == 0 || vidMask == vlanVID) && vidMask|pcpMask != 0 {
		if vidMask != 0 {
			p.b = strconv.AppendUint(append(p.b, "dl_vlan="...), tci&vlanVID, 10)
			p.b = append(p.b, ',')
		}
		if pcpMask != 0 {
			p.b = strconv.AppendUint(append(p.b, "dl_vlan_pcp="...), tci>>13, 10)
			p.b = append(p.b, ',')
		}
		return
	}
	p.b = appendPaddedHex(append(p.b, "vlan_tci=0x"...), tci, 4)
	if mask != 0xffff {
		p.b = appendPaddedHex(append(p.b, "/0x"...), mask, 4)
	}
	p.b = append(p.b, ',')
}

// protocolWord is a protocol's keyword and the dl_type and nw_proto that it represents; ip 0 is any nw_proto.
type protocolWord struct {
	word    string
	eth, ip uint64
}

// protocolWords contains the keywords, those with an nw_proto first.
var protocolWords = [...]protocolWord{ //nolint:gochecknoglobals // immutable; every flow that is parsed or printed needs it
	{"icmp", ethIPv4, ipICMP},
	{"tcp", ethIPv4, ipTCP},
	{"udp", ethIPv4, ipUDP},
	{"sctp", ethIPv4, ipSCTP},
	{"icmp6", ethIPv6, ipICMPv6},
	{"tcp6", ethIPv6, ipTCP},
	{"udp6", ethIPv6, ipUDP},
	{"sctp6", ethIPv6, ipSCTP},
	{"ip", ethIPv4, 0},
	{"ipv6", ethIPv6, 0},
	{"arp", ethARP, 0},
	{"rarp", ethRARP, 0},
}

// protocol returns the keyword of the match's protocol, and whether it includes nw_proto.
func (p *matchPrinter) protocol() (word string, withProto bool) {
	eth, ok := p.exact(FieldEthType)
	if !ok {
		return "", false
	}
	proto, hasProto := p.exact(FieldIPProto)
	for i := range protocolWords {
		w := &protocolWords[i]
		if w.eth == eth && (w.ip == 0 || hasProto && w.ip == proto) {
			return w.word, w.ip != 0
		}
	}
	return "", false
}
