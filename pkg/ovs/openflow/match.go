package openflow

import (
	"fmt"
	"iter"
	"math/bits"
)

// A Match says which packets a flow is for. Its zero value matches all. Matches that mean the same are equal with ==, however they
// were written: a Match holds its canonical wire form, whose fields are sorted, without all-one masks, and in the one view (in_port in 32
// bits, vlan_vid and vlan_pcp, 32-bit registers) in which Open vSwitch gives them back.
type Match struct {
	oxm string // OXM TLVs of known fields in the order of FieldID, then those of unknown ones as they came
}

// NewMatch makes a match of fields. It is an error when fields contradict each other, when one takes no mask, or when a field lacks its
// prerequisite, without which Open vSwitch refuses the match.
func NewMatch(fields ...Field) (Match, error) {
	var s fieldSet
	for _, f := range fields {
		if err := s.add(f); err != nil {
			return Match{}, err
		}
	}
	if err := s.checkPrerequisites(); err != nil {
		return Match{}, err
	}
	return s.match(), nil
}

// Fields yields the known fields in the order of FieldID.
func (m Match) Fields() iter.Seq[Field] {
	return func(yield func(Field) bool) {
		previous := -1
		for rest := m.oxm; ; {
			f, n, ok := canonicalField(rest, previous)
			if !ok || !yield(f) {
				return
			}
			previous, rest = int(f.ID), rest[n:]
		}
	}
}

// Lookup returns the match's field id, and false when the match does not ask for it.
func (m Match) Lookup(id FieldID) (Field, bool) {
	for f := range m.Fields() {
		if f.ID == id {
			return f, true
		}
	}
	return Field{}, false
}

// matchTypeOXM is the only type of match since OpenFlow 1.2 (OpenFlow 1.4.1, 7.2.2.1, OFPMT_OXM).
const matchTypeOXM = 1

func (m Match) append(b []byte) ([]byte, error) {
	if len(m.oxm) > maxMessage-4 {
		return b, fmt.Errorf("a match of %d bytes is longer than its length field can state", len(m.oxm))
	}
	start := len(b)
	b = put16(b, matchTypeOXM)
	b = put16(b, uint16(4+len(m.oxm))) // without the padding
	b = append(b, m.oxm...)
	return pad8(b, start), nil
}

// decodeMatch decodes the match that b begins with.
func decodeMatch(b []byte) (m Match, rest []byte, err error) {
	if len(b) < 8 {
		return m, nil, short("match", len(b), 8)
	}
	n := int(u16(b[2:]))
	switch {
	case u16(b) != matchTypeOXM:
		return m, nil, fmt.Errorf("match of type %d, which OpenFlow 1.2 did away with", u16(b))
	case n < 4 || roundUp8(n) > len(b):
		return m, nil, fmt.Errorf("match of %d bytes where %d are left", n, len(b))
	}
	return canonicalMatch(b[4:n]), b[roundUp8(n):], nil
}

// canonicalMatch makes a match of OXM TLVs. What comes from Open vSwitch is nearly always canonical as it is.
func canonicalMatch(b []byte) Match {
	if isCanonical(b) {
		return Match{oxm: string(b)}
	}
	var s fieldSet
	for len(b) > 0 {
		n, ok := oxmLen(b)
		if !ok {
			s.unknown = append(s.unknown, b...)
			break
		}
		if f, _, ok := readField(b); !ok || s.add(f) != nil {
			s.unknown = append(s.unknown, b[:n]...)
		}
		b = b[n:]
	}
	return s.match()
}

// isCanonical reports whether the TLVs are what fieldSet.match would write.
func isCanonical(b []byte) bool {
	previous := -1
	for len(b) > 0 {
		f, n, ok := canonicalField(b, previous)
		if !ok {
			return false
		}
		previous, b = int(f.ID), b[n:]
	}
	return true
}

// canonicalField reads the TLV that b begins with, if it is as fieldSet.match writes it and its field comes after previous.
func canonicalField[T bytesOrString](b T, previous int) (f Field, n int, ok bool) {
	if n, ok = oxmLen(b); !ok {
		return f, 0, false
	}
	h := oxmHeader(valueOf(b[:4]).Lo)
	id := fieldOf(h)
	if id >= numMatchFields || int(id) <= previous || h&^0x1ff != fieldTable[id].wire() {
		return f, 0, false
	}
	size := id.size()
	switch {
	case !h.masked() && h.payload() == size:
		return Field{ID: id, Value: valueOf(b[4:n]), Mask: id.mask()}, n, true
	case h.masked() && h.payload() == 2*size && fieldTable[id].maskable:
		f = Field{ID: id, Value: valueOf(b[4 : 4+size]), Mask: valueOf(b[4+size : n])}
		return f, n, !f.Mask.isZero() && !f.isExact() && f == f.normal()
	}
	return f, 0, false
}

// oxmLen returns the length of the TLV that b begins with.
func oxmLen[T bytesOrString](b T) (int, bool) {
	if len(b) < 4 {
		return 0, false
	}
	n := 4 + int(b[3])
	return n, n <= len(b)
}

// tcpFlagsONF is tcp_flags as Open vSwitch gives it in OpenFlow 1.3 and 1.4: ONFOXM_ET_TCP_FLAGS.
const tcpFlagsONF = oxmHeader(classExperimenter<<16 | 42<<9)

// readField reads the TLV that b begins with, whose length is n. ok is false when the TLV is broken or its field is not known.
func readField[T bytesOrString](b T) (f Field, n int, ok bool) {
	if n, ok = oxmLen(b); !ok {
		return f, 0, false
	}
	h := oxmHeader(valueOf(b[:4]).Lo)
	f.ID = fieldOf(h)
	payload := b[4:n]
	if h&^0x1ff == tcpFlagsONF && len(payload) >= 4 && valueOf(payload[:4]).Lo == experimenterONF {
		f.ID, payload = FieldTCPFlags, payload[4:]
	}
	if f.ID >= noField {
		return f, n, false
	}
	size := f.ID.size()
	switch {
	case !h.masked() && len(payload) == size:
		f.Value, f.Mask = valueOf(payload), f.ID.mask()
	case h.masked() && len(payload) == 2*size:
		f.Value, f.Mask = valueOf(payload[:size]), valueOf(payload[size:])
	default:
		return f, n, false
	}
	return f, n, true
}

// appendField writes a field as TLV.
func appendField(b []byte, h oxmHeader, f Field) []byte {
	size := f.ID.size()
	if f.isExact() {
		b = put32(b, uint32(h.with(false, size)))
		return appendValue(b, f.Value, size)
	}
	b = put32(b, uint32(h.with(true, 2*size)))
	b = appendValue(b, f.Value.and(f.Mask), size)
	return appendValue(b, f.Mask, size)
}

// fieldSet is a match taken apart.
type fieldSet struct {
	fields  [numMatchFields]Field
	present [2]uint64 // bit map of the fields that are there
	unknown []byte
}

func (s *fieldSet) has(id FieldID) bool { return s.present[id/64]>>(id%64)&1 != 0 }

// exact returns the value of a field that the match gives as a whole.
func (s *fieldSet) exact(id FieldID) (uint64, bool) {
	return s.fields[id].Value.Lo, s.has(id) && s.fields[id].isExact()
}

// add adds a field, split into the fields of a match when it is another view of them.
func (s *fieldSet) add(f Field) error {
	if err := f.check(); err != nil {
		return err
	}
	switch id := f.ID; {
	case id < numMatchFields:
		return s.put(f)
	case id == FieldInPort16:
		return s.put(Num(FieldInPort, uint64(port16(uint16(f.Value.Lo)))))
	case id == FieldIPTOS:
		return s.put(Num(FieldIPDSCP, f.Value.Lo>>2))
	case id == FieldVLANTCI:
		return s.addTCI(uint16(f.Value.Lo), uint16(f.Mask.Lo))
	case id >= FieldXXReg0:
		return s.addRegs(FieldReg0+4*(id-FieldXXReg0), 4, f)
	}
	return s.addRegs(FieldReg0+2*(f.ID-FieldXReg0), 2, f)
}

// addRegs splits a wide register into n of 32 bits, of which the first has the highest bits.
func (s *fieldSet) addRegs(first FieldID, n int, f Field) error {
	for i := range n {
		shift := uint(32 * (n - 1 - i))
		reg := Field{ID: first + FieldID(i), Value: f.Value.shr(shift).and(ones(32)), Mask: f.Mask.shr(shift).and(ones(32))}
		if err := s.put(reg); err != nil {
			return err
		}
	}
	return nil
}

// Bits of a VLAN TCI. In vlan_vid, vlanPresent is OFPVID_PRESENT.
const (
	vlanVID     = 0x0fff
	vlanPresent = 0x1000
	vlanPCP     = 0xe000
)

func (s *fieldSet) addTCI(tci, mask uint16) error {
	vid := Field{ID: FieldVLANVID, Value: Value{Lo: uint64(tci & (vlanVID | vlanPresent))}, Mask: Value{Lo: uint64(mask & (vlanVID | vlanPresent))}}
	if err := s.put(vid); err != nil {
		return err
	}
	switch {
	case mask&vlanPCP == 0 || mask&vlanPresent != 0 && tci&vlanPresent == 0:
		return nil // a packet without a tag has no priority either
	case mask&vlanPCP != vlanPCP:
		return fmt.Errorf("vlan_tci: the mask %#04x covers a part of the priority, which OpenFlow can't say", mask)
	}
	return s.put(Num(FieldVLANPCP, uint64(tci>>13)))
}

// put adds a field of a match. A second mention may add bits, and must agree in those that are there.
func (s *fieldSet) put(f Field) error {
	f = f.normal()
	if f.Mask.isZero() {
		return nil
	}
	if s.has(f.ID) {
		old := s.fields[f.ID]
		common := old.Mask.and(f.Mask)
		if old.Value.and(common) != f.Value.and(common) {
			return fmt.Errorf("%s is given twice, with values that contradict each other", f.ID)
		}
		f.Value, f.Mask = f.Value.or(old.Value), f.Mask.or(old.Mask)
		f = f.normal()
	}
	s.fields[f.ID] = f
	s.present[f.ID/64] |= 1 << (f.ID % 64)
	return nil
}

// next returns the first field from id on, noField when there is none.
func (s *fieldSet) next(id FieldID) FieldID {
	for ; id < numMatchFields; id = id/64*64 + 64 {
		if word := s.present[id/64] >> (id % 64); word != 0 {
			return id + FieldID(bits.TrailingZeros64(word))
		}
	}
	return noField
}

func (s *fieldSet) match() Match {
	var buf [192]byte
	b := buf[:0]
	for id := s.next(0); id != noField; id = s.next(id + 1) {
		b = appendField(b, fieldTable[id].wire(), s.fields[id])
	}
	return Match{oxm: string(append(b, s.unknown...))}
}

// expand takes a match apart.
func (m Match) expand(s *fieldSet) {
	rest, previous := m.oxm, -1
	for {
		f, n, ok := canonicalField(rest, previous)
		if !ok {
			break
		}
		s.fields[f.ID] = f
		s.present[f.ID/64] |= 1 << (f.ID % 64)
		previous, rest = int(f.ID), rest[n:]
	}
	s.unknown = append(s.unknown, rest...)
}
