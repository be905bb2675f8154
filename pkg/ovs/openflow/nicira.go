package openflow

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// Conjunction makes the flow one clause of a conjunctive match (NXAST_CONJUNCTION). A packet that matches every clause then matches
// flows with conj_id equal to ID.
type Conjunction struct {
	ID     uint32
	Clause uint8 // 1 to Of
	Of     uint8 // 2 to 64
}

// Kind implements Action.
func (Conjunction) Kind() Kind { return KindConjunction }

func (a Conjunction) check() error {
	if a.Of < 2 || a.Of > 64 || a.Clause < 1 || a.Clause > a.Of {
		return fmt.Errorf("conjunction(%d,%d/%d): clauses are numbered 1 to n, and n is 2 to 64", a.ID, a.Clause, a.Of)
	}
	return nil
}

func (a Conjunction) appendWire(b []byte) ([]byte, error) {
	b = append(appendNicira(b, nxConjunction, 16), a.Clause-1, a.Of)
	return put32(b, a.ID), a.check()
}

func decodeConjunction(b []byte) (Action, bool) {
	if len(b) != 16 {
		return nil, false
	}
	a := Conjunction{Clause: b[10] + 1, Of: b[11], ID: u32(b[12:])}
	return a, a.check() == nil
}

func (a Conjunction) appendText(b []byte) []byte {
	b = strconv.AppendUint(append(b, "conjunction("...), uint64(a.ID), 10)
	b = strconv.AppendUint(append(b, ','), uint64(a.Clause), 10)
	b = strconv.AppendUint(append(b, '/'), uint64(a.Of), 10)
	return append(b, ')')
}

func parseConjunction(s string) (Action, error) {
	id, clauses, ok := strings.Cut(s, ",")
	clause, of, ok2 := strings.Cut(clauses, "/")
	if !ok || !ok2 {
		return nil, fmt.Errorf("conjunction(%s): write conjunction(ID,CLAUSE/CLAUSES)", s)
	}
	var n [3]uint64
	for i, digits := range []string{id, clause, of} {
		var err error
		if n[i], err = parseUint(strings.Trim(digits, " "), 32); err != nil {
			return nil, fmt.Errorf("conjunction(%s): %w", s, err)
		}
	}
	a := Conjunction{ID: uint32(n[0]), Clause: uint8(min(n[1], 255)), Of: uint8(min(n[2], 255))}
	return a, a.check()
}

// Note contains arbitrary bytes for people and programs that read the flow, and has no effect (NXAST_NOTE). On the wire it is padded with
// zeros to 6, 14, 22 … bytes; a switch returns the padding.
type Note struct {
	Data []byte
}

// noteFirst is the length of the shortest note in bytes; longer notes are a multiple of 8 bytes longer.
const noteFirst = 6

// NewNote returns a note with padding, so that it equals the note that a switch returns.
func NewNote(data []byte) Note {
	return Note{Data: append(make([]byte, 0, paddedNote(len(data))), data...)[:paddedNote(len(data))]}
}

func paddedNote(n int) int {
	if n <= noteFirst {
		return noteFirst
	}
	return noteFirst + roundUp8(n-noteFirst)
}

// Kind implements Action.
func (Note) Kind() Kind { return KindNote }

func (a Note) appendWire(b []byte) ([]byte, error) {
	start := len(b)
	b = append(appendNicira(b, nxNote, 0), a.Data...)
	b = zeros(b, paddedNote(len(a.Data))-len(a.Data))
	return endAction(b, start)
}

func (a Note) appendText(b []byte) []byte {
	b = append(b, "note:"...)
	for i := range paddedNote(len(a.Data)) {
		if i > 0 {
			b = append(b, '.')
		}
		var octet byte
		if i < len(a.Data) {
			octet = a.Data[i]
		}
		b = hex.AppendEncode(b, []byte{octet})
	}
	return b
}

func parseNote(s string) (Action, error) {
	data, err := hex.DecodeString(strings.ReplaceAll(s, ".", ""))
	if err != nil {
		return nil, fmt.Errorf("note:%s: write the bytes as 00.0a.ff", excerpt(s))
	}
	return NewNote(data), nil
}

// CheckPktLarger sets a bit if the packet is longer than Length (NXAST_CHECK_PKT_LARGER).
type CheckPktLarger struct {
	Length uint16   // bytes
	To     Subfield // 1 bit
}

// Kind implements Action.
func (CheckPktLarger) Kind() Kind { return KindCheckPktLarger }

func (a CheckPktLarger) check() error {
	if err := a.To.check(); err != nil {
		return err
	}
	if a.To.Width != 1 {
		return fmt.Errorf("check_pkt_larger: %s is not 1 bit", a.To)
	}
	return nil
}

func (a CheckPktLarger) appendWire(b []byte) ([]byte, error) {
	if err := a.check(); err != nil {
		return b, err
	}
	b = put16(appendNicira(b, nxCheckPktLarger, 24), a.Length)
	b = put32(put16(b, a.To.Offset), a.To.header())
	return zeros(b, 6), nil
}

func decodeCheckPktLarger(b []byte) (Action, bool) {
	if len(b) != 24 || !allZero(b[18:]) {
		return nil, false
	}
	to, ok := subfieldOf(u32(b[14:]), u16(b[12:]), 1)
	return CheckPktLarger{Length: u16(b[10:]), To: to}, ok
}

func (a CheckPktLarger) appendText(b []byte) []byte {
	b = strconv.AppendUint(append(b, "check_pkt_larger("...), uint64(a.Length), 10)
	return a.To.appendText(append(b, ")->"...))
}

func parseCheckPktLarger(w word) (Action, error) {
	to, ok := strings.CutPrefix(w.tail, "->")
	if !ok {
		return nil, fmt.Errorf("check_pkt_larger(%s)%s: write check_pkt_larger(BYTES)->FIELD[bit]", w.value, w.tail)
	}
	n, err := w.uint(16)
	if err != nil {
		return nil, err
	}
	dst, err := ParseSubfield(to)
	if err != nil {
		return nil, err
	}
	a := CheckPktLarger{Length: uint16(n), To: dst}
	return a, a.check()
}
