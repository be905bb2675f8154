package openflow

import (
	"fmt"
	"iter"
)

// Match is the match of a flow. Its zero value matches all packets. Equivalent matches are equal with ==: a Match holds the
// canonical wire form, in which fields are sorted, all-one masks are left out, and each field has the view in which Open vSwitch
// returns it (in_port in 32 bits, vlan_vid and vlan_pcp, 32-bit registers).
type Match struct {
	oxm string // OXM TLVs of supported fields in the order of FieldID, then those of unsupported ones as they arrived
}

// Fields yields the supported fields in the order of FieldID.
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

// Lookup returns the field of the match with this ID, and false if the match does not contain it.
func (m Match) Lookup(id FieldID) (Field, bool) {
	for f := range m.Fields() {
		if f.ID == id {
			return f, true
		}
	}
	return Field{}, false
}

// matchTypeOXM is the only match type since OpenFlow 1.2 (OpenFlow 1.4.1, 7.2.2.1, OFPMT_OXM).
const matchTypeOXM = 1

func (m Match) append(b []byte) ([]byte, error) {
	if len(m.oxm) > maxMessage-4 {
		return b, fmt.Errorf("match of %d bytes exceeds its 16-bit length field", len(m.oxm))
	}
	start := len(b)
	b = put16(b, matchTypeOXM)
	b = put16(b, uint16(4+len(m.oxm))) // without the padding
	b = append(b, m.oxm...)
	return pad8(b, start), nil
}

// decodeMatch decodes the match at the beginning of b.
func decodeMatch(b []byte) (m Match, rest []byte, err error) {
	if len(b) < 8 {
		return m, nil, short("match", len(b), 8)
	}
	n := int(u16(b[2:]))
	switch {
	case u16(b) != matchTypeOXM:
		return m, nil, fmt.Errorf("match type %d is not OXM", u16(b))
	case n < 4 || roundUp8(n) > len(b):
		return m, nil, fmt.Errorf("match length %d exceeds the %d bytes left", n, len(b))
	}
	return canonicalMatch(b[4:n]), b[roundUp8(n):], nil
}

// canonicalMatch returns the match of a list of OXM TLVs. The fast path applies to nearly all matches that Open vSwitch sends.
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

// isCanonical reports whether fieldSet.match would return the same bytes.
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

// canonicalField decodes the TLV at the beginning of b if it is in canonical form and its field is after previous.
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

// oxmLen returns the length of the TLV at the beginning of b.
func oxmLen[T bytesOrString](b T) (int, bool) {
	if len(b) < 4 {
		return 0, false
	}
	n := 4 + int(b[3])
	return n, n <= len(b)
}

// tcpFlagsONF is ONFOXM_ET_TCP_FLAGS, the form of tcp_flags that Open vSwitch sends in OpenFlow 1.3 and 1.4.
const tcpFlagsONF = oxmHeader(classExperimenter<<16 | 42<<9)

// readField decodes the TLV at the beginning of b and returns its length n. ok is false if the TLV is invalid or its field unsupported.
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

// appendField appends a field as a TLV.
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

// expand adds the fields of the match to the set.
func (m Match) expand(s *fieldSet) {
	rest, previous := m.oxm, -1
	for {
		f, n, ok := canonicalField(rest, previous)
		if !ok {
			break
		}
		s.set(f)
		previous, rest = int(f.ID), rest[n:]
	}
	s.unknown = append(s.unknown, rest...)
}
