package openflow

import (
	"fmt"
	"strconv"
	"strings"
)

// Subfield is a range of a field's bits: Width bits from bit Offset on, bit 0 being the lowest. The zero Subfield is none.
type Subfield struct {
	Field  FieldID
	Offset uint16
	Width  uint16
}

// Whole returns the subfield of all bits of a field.
func Whole(id FieldID) Subfield { return Subfield{Field: id, Width: uint16(id.Bits())} }

func (s Subfield) isNone() bool { return s.Width == 0 }

// mask returns the mask of the subfield's bits.
func (s Subfield) mask() Value { return ones(int(s.Width)).shl(uint(s.Offset)) }

func (s Subfield) check() error {
	switch {
	case s.Field >= numFields:
		return fmt.Errorf("field %d does not exist", uint8(s.Field))
	case s.isNone():
		return fmt.Errorf("subfield of %s has a width of 0 bits", s.Field)
	case int(s.Offset)+int(s.Width) > 8*s.Field.size():
		return fmt.Errorf("%s has no bits %d to %d", s.Field, s.Offset, int(s.Offset)+int(s.Width)-1)
	}
	return nil
}

// header returns the OXM header of the field in Nicira actions.
func (s Subfield) header() uint32 { return fieldHeader(s.Field) }

func fieldHeader(id FieldID) uint32 {
	return uint32(fieldTable[id].action().header.with(false, id.size()))
}

// subfieldOf returns the subfield of a header and a range of bits; ok is false if the field is unsupported or too short.
func subfieldOf(header uint32, offset, width uint16) (s Subfield, ok bool) {
	h := oxmHeader(header)
	s = Subfield{Field: fieldOf(h), Offset: offset, Width: width}
	if s.Field >= noField || h.masked() || h.payload() != s.Field.size() || s.check() != nil {
		return Subfield{}, false
	}
	return s, true
}

// maxPacked is the maximum width of a subfield whose offset and width are encoded in 16 bits (ofs_nbits in struct nx_action_reg_load).
const maxPacked = 64

// packed encodes offset and width in 16 bits.
func (s Subfield) packed() (uint16, error) {
	if s.Width > maxPacked || s.Offset >= 1<<10 {
		return 0, fmt.Errorf("%s: the action takes at most %d bits", s, maxPacked)
	}
	return s.Offset<<6 | (s.Width - 1), nil
}

// packedSubfield is the inverse of packed.
func packedSubfield(header uint32, packed uint16) (Subfield, bool) {
	return subfieldOf(header, packed>>6, packed&0x3f+1)
}

func (s Subfield) String() string { return string(s.appendText(nil)) }

// appendText appends NAME[], NAME[bit] or NAME[first..last], as mf_format_subfield does.
func (s Subfield) appendText(b []byte) []byte {
	b = append(b, fieldTable[s.Field].action().name...)
	b = append(b, '[')
	switch {
	case s.Offset == 0 && int(s.Width) == s.Field.Bits():
	case s.Width == 1:
		b = strconv.AppendUint(b, uint64(s.Offset), 10)
	default:
		b = strconv.AppendUint(b, uint64(s.Offset), 10)
		b = append(b, ".."...)
		b = strconv.AppendUint(b, uint64(s.Offset)+uint64(s.Width)-1, 10)
	}
	return append(b, ']')
}

// ParseSubfield parses NAME, NAME[], NAME[bit] or NAME[first..last]; the name is NXM_…, OXM_… or the one used in matches.
func ParseSubfield(text string) (Subfield, error) {
	name, bits, bracket := strings.Cut(text, "[")
	id, ok := fieldNames[name]
	if !ok {
		return Subfield{}, fmt.Errorf("unknown field %q", excerpt(name))
	}
	s := Whole(id)
	if !bracket {
		return s, nil
	}
	bits, closed := strings.CutSuffix(bits, "]")
	if !closed {
		return Subfield{}, fmt.Errorf("%q: write bits as [], [bit] or [first..last]", excerpt(text))
	}
	if bits == "" {
		return s, nil
	}
	first, last, isRange := strings.Cut(bits, "..")
	if !isRange {
		last = first
	}
	from, err := strconv.ParseUint(first, 10, 10)
	to, err2 := strconv.ParseUint(last, 10, 10)
	if err != nil || err2 != nil || to < from {
		return Subfield{}, fmt.Errorf("%q: write bits as [], [bit] or [first..last]", excerpt(text))
	}
	s.Offset, s.Width = uint16(from), uint16(to-from+1)
	return s, s.check()
}
