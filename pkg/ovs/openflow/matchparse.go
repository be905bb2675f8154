package openflow

import (
	"fmt"
)

// ParseMatch parses the match of a flow to be added, in the syntax that ovs-ofctl accepts or prints. A field without its prerequisite, a
// field with two different values and an unknown field are errors, even where Open vSwitch ignores them. ParseFlow parses also matches that
// only existing flows may have (see checkStrict).
func ParseMatch(text string) (Match, error) {
	var p matchParser
	if err := p.parseStrict(text); err != nil {
		return Match{}, fmt.Errorf("match %q: %w", excerpt(text), err)
	}
	return p.set.match(), nil
}

// MatchText returns ParseMatch(text).String(), in less time.
func MatchText(text string) (string, error) {
	var p matchParser
	if err := p.parseStrict(text); err != nil {
		return "", fmt.Errorf("match %q: %w", excerpt(text), err)
	}
	printer := matchPrinter{fieldSet: p.set, b: make([]byte, 0, mostText)}
	return string(printer.text()), nil
}

// Initial capacities for the words of a match and its text; few matches need more.
const (
	mostWords = 8
	mostText  = 128
)

// matchParser parses the words of a match in several passes: nw_src and tp_dst denote different fields for different protocols, and the
// protocol may follow them.
type matchParser struct {
	set fieldSet
}

// pass is the pass in which a word is parsed.
type pass uint8

const (
	passEthType pass = iota
	passProto
	passRest
)

func (p *matchParser) parseStrict(text string) error {
	var buf [mostWords]word
	words := buf[:0]
	for {
		w, rest, err := nextWord(text)
		if err != nil {
			return err
		}
		if w.key == "" {
			break
		}
		words = append(words, w)
		text = rest
	}
	if err := p.parse(words); err != nil {
		return err
	}
	return p.set.checkStrict()
}

// parseMatch parses any match that a flow of the switch may have.
func parseMatch(words []word) (Match, error) {
	var p matchParser
	if err := p.parse(words); err != nil {
		return Match{}, err
	}
	m := p.set.match()
	if len(p.set.unknown) > 0 {
		m = canonicalMatch([]byte(m.oxm)) // unknown(…) may contain supported fields
	}
	return m, nil
}

func (p *matchParser) parse(words []word) error {
	for i := range words {
		words[i].pass = passOf(&words[i])
	}
	for pass := passEthType; pass <= passRest; pass++ {
		for i := range words {
			if words[i].pass != pass {
				continue
			}
			if err := p.word(&words[i]); err != nil {
				return err
			}
		}
	}
	return p.set.checkPrerequisites()
}

func passOf(w *word) pass {
	switch {
	case w.form == 0 || w.key == "dl_type" || w.key == "eth_type":
		return passEthType
	case w.key == "nw_proto" || w.key == "ip_proto":
		return passProto
	}
	return passRest
}

func (p *matchParser) word(w *word) error {
	switch {
	case w.form == 0:
		return p.protocol(w.key)
	case w.key == unknownWord && w.form == '(':
		raw, err := w.unknownBytes()
		p.set.unknown = append(p.set.unknown, raw...)
		return err
	case w.form != '=':
		return fmt.Errorf("%q: not a field with a value", w.key)
	}
	switch w.key {
	case "in_port":
		if w.value == goLocal {
			return p.set.addOnce(Num(FieldInPort, uint64(PortLocal)))
		}
		return p.value(FieldInPort, w.value)
	case "nw_src", "ip_src":
		return p.value(p.arpOr(FieldARPSPA, FieldIPSrc), w.value)
	case "nw_dst", "ip_dst":
		return p.value(p.arpOr(FieldARPTPA, FieldIPDst), w.value)
	case "nw_proto", "ip_proto":
		return p.ipProto(w)
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
		return fmt.Errorf("unknown field %q", w.key)
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

// goLocal is LOCAL as go-openvswitch writes it (its PortLOCAL).
const goLocal = "-1"

// addOnce adds a valid field of a text; a repeated field must have the same value. A mask of 0 adds nothing.
func (s *fieldSet) addOnce(f Field) error {
	if f.Mask.isZero() {
		return nil
	}
	if f.ID < numMatchFields && s.has(f.ID) && f.ID != FieldVLANVID {
		if f.normal() != *s.at(f.ID) {
			return fmt.Errorf("%s is specified twice with different values", f.ID)
		}
		return nil
	}
	return s.insert(f)
}

func (p *matchParser) protocol(name string) error {
	for i := range protocolWords {
		w := &protocolWords[i]
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
	return fmt.Errorf("%q: not a known protocol or a field with a value", name)
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

// ipProto parses nw_proto, which has 8 bits even if it denotes arp_op.
func (p *matchParser) ipProto(w *word) error {
	f, err := parseFieldValue(FieldIPProto, w.value)
	if err != nil {
		return err
	}
	if p.set.satisfies(needsARP) {
		f = Num(FieldARPOp, f.Value.Lo)
	}
	return p.set.addOnce(f)
}

// port parses tp_src or tp_dst.
func (p *matchParser) port(w *word) error {
	src, ok := p.set.transportSrc()
	if !ok {
		if f, err := parseFieldValue(FieldTCPSrc, w.value); err == nil && f.Mask.isZero() {
			return nil
		}
		return fmt.Errorf("%s needs tcp, udp or sctp in the match", w.key)
	}
	if w.key == "tp_dst" {
		src++
	}
	return p.value(src, w.value)
}

// transportSrc returns the field that tp_src denotes in this match; the next FieldID is that of tp_dst.
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

func (p *matchParser) tos(w *word) error {
	f, err := parseFieldValue(FieldIPTOS, w.value)
	if err != nil {
		return err
	}
	if f.Value.Lo&3 != 0 {
		return fmt.Errorf("nw_tos=%d: the lower two bits belong to nw_ecn", f.Value.Lo)
	}
	return p.set.addOnce(Num(FieldIPDSCP, f.Value.Lo>>2))
}

// vlanNone is the dl_vlan that matches untagged packets (OFP_VLAN_NONE of OpenFlow 1.0).
const vlanNone = 0xffff

func (p *matchParser) vlan(w *word) error {
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
