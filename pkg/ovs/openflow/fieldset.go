package openflow

import (
	"fmt"
	"math/bits"
)

// fieldSet is a match as a set of fields. It is small, because every flow that is parsed or printed needs one.
type fieldSet struct {
	present [2]uint64             // bitmap of the fields in the set
	index   [numMatchFields]uint8 // of the fields in few and, from len(few) on, more
	n       uint8
	few     [8]Field
	more    []Field
	unknown []byte
}

func (s *fieldSet) has(id FieldID) bool { return s.present[id/64]>>(id%64)&1 != 0 }

// at returns a field of the set.
func (s *fieldSet) at(id FieldID) *Field {
	i := int(s.index[id])
	if i < len(s.few) {
		return &s.few[i]
	}
	return &s.more[i-len(s.few)]
}

// get returns the field with this ID; its value and mask are 0 if it is not in the set.
func (s *fieldSet) get(id FieldID) Field {
	if !s.has(id) {
		return Field{ID: id}
	}
	return *s.at(id)
}

// set adds or replaces a field.
func (s *fieldSet) set(f Field) {
	if s.has(f.ID) {
		*s.at(f.ID) = f
		return
	}
	s.index[f.ID] = s.n
	s.present[f.ID/64] |= 1 << (f.ID % 64)
	if int(s.n) < len(s.few) {
		s.few[s.n] = f
	} else {
		s.more = append(s.more, f)
	}
	s.n++
}

// exact returns the value of a field that is matched exactly.
func (s *fieldSet) exact(id FieldID) (uint64, bool) {
	if !s.has(id) {
		return 0, false
	}
	f := s.at(id)
	return f.Value.Lo, f.Mask == id.mask()
}

// add adds a field to the set, converted to the fields of a match if it is an alternative view of them.
func (s *fieldSet) add(f Field) error {
	if err := f.check(); err != nil {
		return err
	}
	return s.insert(f)
}

// insert is add without the check of the field itself.
func (s *fieldSet) insert(f Field) error {
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

// addRegs splits a wide register into n registers of 32 bits, most significant first.
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

// Bits of the VLAN TCI. In vlan_vid, vlanPresent is OFPVID_PRESENT.
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
		return nil // a packet without a tag has no priority
	case mask&vlanPCP != vlanPCP:
		return fmt.Errorf("vlan_tci: the mask %#04x covers a part of the priority, which OpenFlow cannot match", mask)
	}
	return s.put(Num(FieldVLANPCP, uint64(tci>>13)))
}

// put adds a match field. If the field is in the set, the masks are combined, and common bits must have equal values.
func (s *fieldSet) put(f Field) error {
	f = f.normal()
	if f.Mask.isZero() {
		return nil
	}
	if s.has(f.ID) {
		old := s.at(f.ID)
		common := old.Mask.and(f.Mask)
		if old.Value.and(common) != f.Value.and(common) {
			return fmt.Errorf("%s is specified twice with contradicting values", f.ID)
		}
		f.Value, f.Mask = f.Value.or(old.Value), f.Mask.or(old.Mask)
		f = f.normal()
	}
	s.set(f)
	return nil
}

// next returns the first field of the set from id on, or noField.
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
		b = appendField(b, fieldTable[id].wire(), *s.at(id))
	}
	return Match{oxm: string(append(b, s.unknown...))}
}
