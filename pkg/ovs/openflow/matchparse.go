package openflow

import (
	"fmt"
)

// ParseMatch reads a match as ovs-ofctl takes and prints it. What Open vSwitch would silently drop or refuse is an error: a field
// without its prerequisite, a field given twice with different values, an unknown field.
func ParseMatch(text string) (Match, error) {
	var buf [mostWords]word
	words := buf[:0]
	for rest := text; ; {
		w, r, err := nextWord(rest)
		if err != nil {
			return Match{}, fmt.Errorf("match %q: %w", excerpt(text), err)
		}
		if w.key == "" {
			break
		}
		words = append(words, w)
		rest = r
	}
	m, err := parseMatch(words)
	if err != nil {
		return Match{}, fmt.Errorf("match %q: %w", excerpt(text), err)
	}
	return m, nil
}

// mostWords is how many words nearly every match has room in.
const mostWords = 12

// matchParser makes sense of a match's words, several times over: nw_src and tp_dst mean different fields in different
// protocols, whose word may come last.
type matchParser struct {
	set fieldSet
}

// The order in which words have to be understood.
const (
	passEthType = iota
	passProto
	passRest
	numPasses
)

func parseMatch(words []word) (Match, error) {
	var p matchParser
	for pass := range numPasses {
		for _, w := range words {
			if passOf(w) != pass {
				continue
			}
			if err := p.word(w); err != nil {
				return Match{}, err
			}
		}
	}
	if err := p.set.checkPrerequisites(); err != nil {
		return Match{}, err
	}
	m := p.set.match()
	if len(p.set.unknown) > 0 {
		m = canonicalMatch([]byte(m.oxm)) // unknown(…) may have spelt known fields
	}
	return m, nil
}

func passOf(w word) int {
	switch {
	case w.form == 0 || w.key == "dl_type" || w.key == "eth_type":
		return passEthType
	case w.key == "nw_proto" || w.key == "ip_proto":
		return passProto
	}
	return passRest
}

func (p *matchParser) word(w word) error {
	switch {
	case w.form == 0:
		return p.protocol(w.key)
	case w.key == unknownWord && w.form == '(':
		raw, err := w.unknownBytes()
		p.set.unknown = append(p.set.unknown, raw...)
		return err
	case w.form != '=':
		return fmt.Errorf("%q is not a field with a value", w.key)
	}
	switch w.key {
	case "in_port":
		return p.value(FieldInPort, w.value)
	case "nw_src", "ip_src":
		return p.value(p.arpOr(FieldARPSPA, FieldIPSrc), w.value)
	case "nw_dst", "ip_dst":
		return p.value(p.arpOr(FieldARPTPA, FieldIPDst), w.value)
	case "nw_proto", "ip_proto":
		return p.value(p.arpOr(FieldARPOp, FieldIPProto), w.value)
	case "tp_src", "tp_dst":
		return p.port(w)
	case "icmp_type":
		return p.value(p.ipv6Or(FieldICMPv6Type, FieldICMPType), w.value)
	case "icmp_code":
		return p.value(p.ipv6Or(FieldICMPv6Code, FieldICMPCode), w.value)
	case "nw_tos":
		return p.tos(w)
	case "dl_vlan":
		return p.vlan(w)
	case "dl_vlan_pcp":
		if err := p.set.addTCI(vlanPresent, vlanPresent); err != nil {
			return err
		}
		return p.value(FieldVLANPCP, w.value)
	}
	id, ok := fieldNames[w.key]
	if !ok {
		return fmt.Errorf("the field %q is not one that this package knows", w.key)
	}
	return p.value(id, w.value)
}

func (p *matchParser) value(id FieldID, s string) error {
	f, err := parseFieldValue(id, s)
	if err != nil {
		return err
	}
	return p.set.addOnce(f)
}

// addOnce is add for a field of a text, where a second mention has to be a repetition.
func (s *fieldSet) addOnce(f Field) error {
	if f.ID < numMatchFields && s.has(f.ID) && f.ID != FieldVLANVID {
		if f.normal() != s.fields[f.ID] {
			return fmt.Errorf("%s is given twice, with different values", f.ID)
		}
		return nil
	}
	return s.add(f)
}

func (p *matchParser) protocol(name string) error {
	for _, w := range protocolWords() {
		if w.word != name {
			continue
		}
		if err := p.set.addOnce(Num(FieldEthType, w.eth)); err != nil {
			return err
		}
		if w.ip == 0 {
			return nil
		}
		return p.set.addOnce(Num(FieldIPProto, w.ip))
	}
	return fmt.Errorf("%q is neither a protocol that this package knows nor a field with a value", name)
}

func (p *matchParser) arpOr(arp, other FieldID) FieldID {
	if p.set.satisfies(needsARP) {
		return arp
	}
	return other
}

func (p *matchParser) ipv6Or(v6, other FieldID) FieldID {
	if p.set.satisfies(needsIPv6) {
		return v6
	}
	return other
}

// port reads tp_src or tp_dst.
func (p *matchParser) port(w word) error {
	src, ok := p.set.transportSrc()
	if !ok {
		return fmt.Errorf("%s needs tcp, udp or sctp in the match", w.key)
	}
	if w.key == "tp_dst" {
		src++
	}
	return p.value(src, w.value)
}

// transportSrc returns the field that tp_src means in this match; the one after it is tp_dst.
func (s *fieldSet) transportSrc() (FieldID, bool) {
	switch {
	case s.satisfies(needsTCP):
		return FieldTCPSrc, true
	case s.satisfies(needsUDP):
		return FieldUDPSrc, true
	case s.satisfies(needsSCTP):
		return FieldSCTPSrc, true
	}
	return 0, false
}

func (p *matchParser) tos(w word) error {
	n, err := w.uint(8)
	if err != nil {
		return err
	}
	if n&3 != 0 {
		return fmt.Errorf("nw_tos=%d: the lower two bits are nw_ecn's", n)
	}
	return p.set.addOnce(Num(FieldIPDSCP, n>>2))
}

// vlanNone is how dl_vlan says "no tag" (OFP_VLAN_NONE of OpenFlow 1.0).
const vlanNone = 0xffff

func (p *matchParser) vlan(w word) error {
	n, err := w.uint(16)
	switch {
	case err != nil:
		return err
	case n == vlanNone:
		return p.set.addTCI(0, vlanVID|vlanPresent)
	case n > vlanVID:
		return fmt.Errorf("dl_vlan=%d: a VLAN ID has 12 bits", n)
	}
	return p.set.addTCI(uint16(n)|vlanPresent, vlanVID|vlanPresent)
}
