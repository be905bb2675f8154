package openflow

import (
	"fmt"
	"strconv"
	"strings"
)

// Load writes a number of up to 64 bits to a subfield (NXAST_REG_LOAD).
type Load struct {
	To    Subfield
	Value uint64
}

// Kind implements Action.
func (Load) Kind() Kind { return KindLoad }

func (a Load) check() error {
	if err := a.To.check(); err != nil {
		return err
	}
	if a.To.Width < 64 && a.Value>>a.To.Width != 0 {
		return fmt.Errorf("%#x does not fit into %s", a.Value, a.To)
	}
	return nil
}

// field returns the field of the equivalent SetField.
func (a Load) field() Field {
	return Field{ID: a.To.Field, Value: Value{Lo: a.Value}.shl(uint(a.To.Offset)), Mask: a.To.mask()}
}

func (a Load) appendWire(b []byte) ([]byte, error) {
	if err := a.check(); err != nil {
		return b, err
	}
	packed, err := a.To.packed()
	if err != nil {
		return b, err
	}
	b = put16(appendNicira(b, nxRegLoad, 24), packed)
	b = put32(b, a.To.header())
	return put64(b, a.Value), nil
}

func decodeRegLoad(b []byte) (Action, bool) {
	if len(b) != 24 {
		return nil, false
	}
	to, ok := packedSubfield(u32(b[12:]), u16(b[10:]))
	a := Load{To: to, Value: u64(b[16:])}
	return a, ok && a.check() == nil
}

func (a Load) appendText(b []byte) []byte {
	b = appendHex(append(b, "load:"...), Value{Lo: a.Value})
	return a.To.appendText(append(b, "->"...))
}

// parseLoad parses VALUE->SUBFIELD.
func parseLoad(s string) (Action, error) {
	value, to, ok := strings.Cut(s, "->")
	if !ok {
		return nil, fmt.Errorf("load:%s: write load:VALUE->FIELD[first..last]", s)
	}
	dst, err := ParseSubfield(to)
	if err != nil {
		return nil, fmt.Errorf("load:%s: %w", s, err)
	}
	v, err := parseValue(value, int(dst.Width))
	switch {
	case err != nil:
		return nil, fmt.Errorf("load:%s: %w", s, err)
	case dst.Width > maxPacked:
		return SetField{Field{ID: dst.Field, Value: v.shl(uint(dst.Offset)), Mask: dst.mask()}}, nil
	}
	return Load{To: dst, Value: v.Lo}, nil
}

// SetField sets the bits of a field that are in the mask (OFPAT_SET_FIELD; with a mask NXAST_REG_LOAD2).
type SetField struct {
	Field Field
}

// Kind implements Action.
func (SetField) Kind() Kind { return KindSetField }

func (a SetField) appendWire(b []byte) ([]byte, error) {
	f := a.Field
	switch {
	case f.ID >= numFields:
		return b, f.check()
	case f.Value.or(f.Mask).minus(f.ID.mask()) != Value{} || f.Mask.isZero():
		return b, fmt.Errorf("%s: value and mask must fit into %d bytes, and the mask must not be 0", f.ID, f.ID.size())
	}
	start := len(b)
	if f.isExact() {
		b = appendField(appendHeader(b, actionSetField, 0), fieldTable[f.ID].wire(), f)
	} else {
		b = appendField(appendNicira(b, nxRegLoad2, 0), fieldTable[f.ID].action().header, f)
	}
	return endAction(b, start)
}

// decodeSetField decodes a field with value and mask at offset at.
func decodeSetField(b []byte, at int) (Action, bool) {
	f, n, ok := readField(b[at:])
	if !ok || roundUp8(at+n) != len(b) || !allZero(b[at+n:]) || f.Mask.isZero() || f.Value != f.Value.and(f.Mask) {
		return nil, false
	}
	return SetField{f}, true
}

func (a SetField) appendText(b []byte) []byte {
	b = appendFieldValue(append(b, "set_field:"...), a.Field)
	return append(append(b, "->"...), a.Field.ID.String()...)
}

// parseSetField parses VALUE[/MASK]->FIELD.
func parseSetField(s string) (Action, error) {
	value, name, ok := strings.Cut(s, "->")
	if !ok {
		return nil, fmt.Errorf("set_field:%s: write set_field:VALUE->FIELD", s)
	}
	id, ok := fieldNames[name]
	if !ok {
		return nil, fmt.Errorf("set_field:%s: unknown field %q", s, name)
	}
	f, err := parseFieldValue(id, value)
	if err != nil {
		return nil, fmt.Errorf("set_field:%s: %w", s, err)
	}
	if f.Mask.isZero() {
		return nil, fmt.Errorf("set_field:%s: the mask must not be 0", s)
	}
	f.Value = f.Value.and(f.Mask)
	return SetField{f}, nil
}

// Move copies a subfield to another of the same width (NXAST_REG_MOVE).
type Move struct {
	From, To Subfield
}

// Kind implements Action.
func (Move) Kind() Kind { return KindMove }

func (a Move) check() error {
	if err := a.From.check(); err != nil {
		return err
	}
	if err := a.To.check(); err != nil {
		return err
	}
	if a.From.Width != a.To.Width {
		return fmt.Errorf("%s has %d bits, %s has %d", a.From, a.From.Width, a.To, a.To.Width)
	}
	return nil
}

func (a Move) appendWire(b []byte) ([]byte, error) {
	if err := a.check(); err != nil {
		return b, err
	}
	b = appendNicira(b, nxRegMove, 24)
	b = put16(put16(put16(b, a.From.Width), a.From.Offset), a.To.Offset)
	return put32(put32(b, a.From.header()), a.To.header()), nil
}

func decodeRegMove(b []byte) (Action, bool) {
	if len(b) != 24 {
		return nil, false
	}
	width := u16(b[10:])
	from, ok := subfieldOf(u32(b[16:]), u16(b[12:]), width)
	to, ok2 := subfieldOf(u32(b[20:]), u16(b[14:]), width)
	return Move{From: from, To: to}, ok && ok2
}

func (a Move) appendText(b []byte) []byte {
	b = a.From.appendText(append(b, "move:"...))
	return a.To.appendText(append(b, "->"...))
}

// parseMove parses SUBFIELD->SUBFIELD.
func parseMove(s string) (Move, error) {
	from, to, ok := strings.Cut(s, "->")
	if !ok {
		return Move{}, fmt.Errorf("move:%s: write move:FIELD[…]->FIELD[…]", s)
	}
	var a Move
	var err error
	if a.From, err = ParseSubfield(from); err == nil {
		a.To, err = ParseSubfield(to)
	}
	if err == nil {
		err = a.check()
	}
	if err != nil {
		return a, fmt.Errorf("move:%s: %w", s, err)
	}
	return a, nil
}

// PushVLAN adds a VLAN tag (OFPAT_PUSH_VLAN).
type PushVLAN struct {
	EtherType uint16 // 0x8100 or 0x88a8
}

// Kind implements Action.
func (PushVLAN) Kind() Kind { return KindPushVLAN }

func (a PushVLAN) appendWire(b []byte) ([]byte, error) {
	return zeros(put16(appendHeader(b, actionPushVLAN, 8), a.EtherType), 2), nil
}

func (a PushVLAN) appendText(b []byte) []byte {
	return appendPaddedHex(append(b, "push_vlan:0x"...), uint64(a.EtherType), 4)
}

// PopVLAN removes the outer VLAN tag (OFPAT_POP_VLAN).
type PopVLAN struct{}

// Kind implements Action.
func (PopVLAN) Kind() Kind { return KindPopVLAN }

func (PopVLAN) appendWire(b []byte) ([]byte, error) {
	return zeros(appendHeader(b, actionPopVLAN, 8), 4), nil
}

func (PopVLAN) appendText(b []byte) []byte { return append(b, "pop_vlan"...) }

// PushMPLS adds an MPLS label (OFPAT_PUSH_MPLS).
type PushMPLS struct {
	EtherType uint16 // 0x8847 or 0x8848
}

// Kind implements Action.
func (PushMPLS) Kind() Kind { return KindPushMPLS }

func (a PushMPLS) appendWire(b []byte) ([]byte, error) {
	return zeros(put16(appendHeader(b, actionPushMPLS, 8), a.EtherType), 2), nil
}

func (a PushMPLS) appendText(b []byte) []byte {
	return appendPaddedHex(append(b, "push_mpls:0x"...), uint64(a.EtherType), 4)
}

// PopMPLS removes the outer MPLS label (OFPAT_POP_MPLS).
type PopMPLS struct {
	EtherType uint16 // of the packet without the label
}

// Kind implements Action.
func (PopMPLS) Kind() Kind { return KindPopMPLS }

func (a PopMPLS) appendWire(b []byte) ([]byte, error) {
	return zeros(put16(appendHeader(b, actionPopMPLS, 8), a.EtherType), 2), nil
}

func (a PopMPLS) appendText(b []byte) []byte {
	return appendPaddedHex(append(b, "pop_mpls:0x"...), uint64(a.EtherType), 4)
}

// SetTTL sets the IP TTL or hop limit (OFPAT_SET_NW_TTL).
type SetTTL struct {
	TTL uint8
}

// Kind implements Action.
func (SetTTL) Kind() Kind { return KindSetTTL }

func (a SetTTL) appendWire(b []byte) ([]byte, error) {
	return zeros(append(appendHeader(b, actionSetTTL, 8), a.TTL), 3), nil
}

func (a SetTTL) appendText(b []byte) []byte {
	return strconv.AppendUint(append(b, "mod_nw_ttl:"...), uint64(a.TTL), 10)
}

// DecTTL decrements the IP TTL or hop limit and drops the packet if it expires (OFPAT_DEC_NW_TTL).
type DecTTL struct{}

// Kind implements Action.
func (DecTTL) Kind() Kind { return KindDecTTL }

func (DecTTL) appendWire(b []byte) ([]byte, error) {
	return zeros(appendHeader(b, actionDecTTL, 8), 4), nil
}

func (DecTTL) appendText(b []byte) []byte { return append(b, "dec_ttl"...) }
