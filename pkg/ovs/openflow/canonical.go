package openflow

import (
	"encoding/binary"
	"fmt"
)

// Canonical returns bytes that are equal for instructions that do the same, whatever form they came in: load and set_field of the same
// bits; a copy_field of OpenFlow 1.5 and a move; a note and its padding; a NAT range of one address. They differ for all
// else, the order of actions included, and are no wire format.
func (in Instructions) Canonical() (string, error) {
	var buf [256]byte
	b, err := in.AppendCanonical(buf[:0])
	return string(b), err
}

// AppendCanonical appends what Canonical returns.
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
	return in.append(b, Version14)
}

// appendCanonicalList appends a list with its tag and length in front.
func appendCanonicalList(b []byte, tag byte, actions []Action) ([]byte, error) {
	if len(actions) == 0 {
		return b, nil
	}
	start := len(b)
	b = append(b, tag, 0, 0, 0, 0)
	for _, a := range actions {
		if a == nil {
			return b, fmt.Errorf("a nil action")
		}
		var err error
		if b, err = appendCanonical(b, a); err != nil {
			return b, fmt.Errorf("%s: %w", a.Kind(), err)
		}
	}
	binary.BigEndian.PutUint32(b[start+1:], uint32(len(b)-start))
	return b, nil
}

// canonicalSet is the type under which Load and SetField meet; the wire has no such action.
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
		return a.appendWire(b, Version14)
	case NAT:
		if a.Max == a.Min {
			a.Max = NAT{}.Max
		}
		if a.PortMax == a.PortMin {
			a.PortMax = 0
		}
		return a.appendWire(b, Version14)
	case CT:
		if err := a.check(); err != nil {
			return b, err
		}
		return appendCanonicalList(a.appendFixed(b), 'e', a.Exec)
	}
	return a.appendWire(b, Version14)
}

func appendCanonicalSet(b []byte, f Field) []byte {
	b = put16(b, canonicalSet)
	b = append(b, byte(f.ID))
	b = appendValue(b, f.Value.and(f.Mask), maxValue)
	return appendValue(b, f.Mask, maxValue)
}

// Canonical returns bytes that are equal for groups that do the same. Of bucket ids it keeps the order only, which is all that OpenFlow
// 1.4 has; a group's selection method counts where it is given.
func (g *Group) Canonical() (string, error) {
	b := append(put32(nil, g.ID), byte(g.Type))
	b, err := g.appendSelection(b)
	if err != nil {
		return "", err
	}
	for i := range g.Buckets {
		k := &g.Buckets[i]
		b = put32(put32(put16(append(b, 'b'), k.Weight), uint32(k.WatchPort)), k.WatchGroup)
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
