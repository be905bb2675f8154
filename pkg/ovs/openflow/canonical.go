package openflow

import (
	"encoding/binary"
	"fmt"
)

// Canonical returns bytes that are equal for equivalent instructions, whatever their form: load and set_field of the same bits, a
// note with and without padding, a NAT range of one address and that address. Any other
// difference, the order of actions included, gives different bytes. The result is not a wire format.
func (in Instructions) Canonical() (string, error) {
	var buf [256]byte
	b, err := in.AppendCanonical(buf[:0])
	return string(b), err
}

// AppendCanonical appends the bytes that Canonical returns.
func (in Instructions) AppendCanonical(b []byte) ([]byte, error) {
	start := len(b)
	b, err := appendCanonicalList(b, 'a', in.Apply)
	if err != nil {
		return b[:start], err
	}
	if b, err = appendCanonicalList(b, 'w', in.Write); err != nil {
		return b[:start], err
	}
	in.Apply, in.Write = nil, nil
	in.Metadata.Value &= in.Metadata.Mask
	return in.append(b)
}

// appendCanonicalList appends the list, preceded by a tag and the length.
func appendCanonicalList(b []byte, tag byte, actions []Action) ([]byte, error) {
	if len(actions) == 0 {
		return b, nil
	}
	start := len(b)
	b = append(b, tag, 0, 0, 0, 0)
	for _, a := range actions {
		if a == nil {
			return b, fmt.Errorf("nil action")
		}
		var err error
		if b, err = appendCanonical(b, a); err != nil {
			return b, fmt.Errorf("%s: %w", a.Kind(), err)
		}
	}
	binary.BigEndian.PutUint32(b[start+1:], uint32(len(b)-start))
	return b, nil
}

// canonicalSet is the action type of both Load and SetField in canonical bytes. No action on the wire has it.
const canonicalSet = 0xfffe

func appendCanonical(b []byte, a Action) ([]byte, error) {
	switch a := a.(type) {
	case Load:
		if err := a.check(); err != nil {
			return b, err
		}
		return appendCanonicalSet(b, a.field()), nil
	case SetField:
		return appendCanonicalSet(b, a.Field), a.Field.ID.check()
	case Output:
		if a.Port != PortController {
			a.MaxLen = 0
		}
		return a.appendWire(b)
	case NAT:
		if a.Max == a.Min {
			a.Max = NAT{}.Max
		}
		if a.PortMax == a.PortMin {
			a.PortMax = 0
		}
		return a.appendWire(b)
	case CT:
		if err := a.check(); err != nil {
			return b, err
		}
		return appendCanonicalList(a.appendFixed(b), 'e', a.Exec)
	}
	return a.appendWire(b)
}

func appendCanonicalSet(b []byte, f Field) []byte {
	b = put16(b, canonicalSet)
	b = append(b, byte(f.ID))
	b = appendValue(b, f.Value.and(f.Mask), maxValue)
	return appendValue(b, f.Mask, maxValue)
}

// Canonical returns bytes that are equal for equivalent groups.
func (g *Group) Canonical() (string, error) {
	b := append(put32(nil, g.ID), byte(g.Type))
	for i := range g.Buckets {
		k := &g.Buckets[i]
		b = put32(put32(put16(append(b, 'b'), k.Weight), uint32(k.WatchPort)), k.WatchGroup)
		var err error
		if b, err = appendCanonicalList(b, 'a', k.Actions); err != nil {
			return "", fmt.Errorf("bucket %d: %w", i, err)
		}
	}
	return string(b), nil
}

func (id FieldID) check() error {
	if id >= numFields {
		return fmt.Errorf("field %d does not exist", uint8(id))
	}
	return nil
}
