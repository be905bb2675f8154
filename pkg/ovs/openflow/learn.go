package openflow

import (
	"fmt"
)

// Learn adds or refreshes a flow that is built from the current packet (NXAST_LEARN, NXAST_LEARN2).
type Learn struct {
	Table          uint8
	Priority       uint16
	Cookie         uint64
	IdleTimeout    uint16 // seconds, 0: none
	HardTimeout    uint16
	FinIdleTimeout uint16 // after a TCP FIN or RST
	FinHardTimeout uint16
	SendFlowRem    bool
	DeleteLearned  bool     // delete the learned flows together with the flow that has this action
	Limit          uint32   // maximum number of flows of this cookie in the table, 0: no limit
	Result         Subfield // bit that is set to whether the flow was learned; none: not written
	Specs          []LearnSpec
}

// LearnSpec is a match field or an action of the learned flow.
type LearnSpec struct {
	To    LearnTo
	Dst   Subfield // not for LearnOutput
	Src   Subfield // of the current packet; none: Value
	Value Value
}

// LearnTo is the type of a LearnSpec.
type LearnTo uint8

// Types of LearnSpec.
const (
	LearnMatch  LearnTo = iota // the learned flow matches Dst against the bits of Src
	LearnLoad                  // the learned flow loads the bits of Src into Dst
	LearnOutput                // the learned flow outputs to the port in Src
)

// Flags and layout of struct nx_action_learn and flow_mod_spec.
const (
	learnSendFlowRem   = 1
	learnDeleteLearned = 2
	learnWriteResult   = 4

	learnLen  = 32 // without specs
	learn2Len = 40

	specImmediate = 1 << 13
	specToShift   = 11
	specWidth     = 0x3ff
)

// Kind implements Action.
func (Learn) Kind() Kind { return KindLearn }

func (a Learn) check() error {
	if a.Table == CurrentTable {
		return fmt.Errorf("learn cannot add flows to table %d", a.Table)
	}
	if !a.Result.isNone() {
		if err := a.Result.check(); err != nil {
			return err
		}
		if a.Result.Width != 1 {
			return fmt.Errorf("result_dst: %s is not 1 bit", a.Result)
		}
	}
	for _, s := range a.Specs {
		if err := s.check(); err != nil {
			return err
		}
	}
	return nil
}

func (s LearnSpec) check() error {
	immediate := s.Src.isNone()
	if !immediate {
		if err := s.Src.check(); err != nil {
			return err
		}
	}
	switch {
	case s.To == LearnOutput && (immediate || !s.Dst.isNone()):
		return fmt.Errorf("output takes a field only")
	case s.To == LearnOutput:
		return nil
	case s.To > LearnOutput:
		return fmt.Errorf("invalid spec type %d", s.To)
	}
	if err := s.Dst.check(); err != nil {
		return err
	}
	switch {
	case immediate && s.Value.len() > int(s.Dst.Width):
		return fmt.Errorf("the value does not fit into %s", s.Dst)
	case !immediate && s.Src.Width != s.Dst.Width:
		return fmt.Errorf("%s has %d bits, %s has %d", s.Src, s.Src.Width, s.Dst, s.Dst.Width)
	}
	return nil
}

func (a Learn) flags() uint16 {
	var flags uint16
	if a.SendFlowRem {
		flags |= learnSendFlowRem
	}
	if a.DeleteLearned {
		flags |= learnDeleteLearned
	}
	if !a.Result.isNone() {
		flags |= learnWriteResult
	}
	return flags
}

func (a Learn) appendWire(b []byte) ([]byte, error) {
	if err := a.check(); err != nil {
		return b, err
	}
	start := len(b)
	second := a.Limit != 0 || !a.Result.isNone()
	subtype := uint16(nxLearn)
	if second {
		subtype = nxLearn2
	}
	b = appendNicira(b, subtype, 0)
	b = put16(put16(put16(b, a.IdleTimeout), a.HardTimeout), a.Priority)
	b = put16(put64(b, a.Cookie), a.flags())
	b = append(b, a.Table, 0)
	b = put16(put16(b, a.FinIdleTimeout), a.FinHardTimeout)
	if second {
		b = zeros(put16(put32(b, a.Limit), a.Result.Offset), 2)
	}
	if !a.Result.isNone() {
		b = put32(b, a.Result.header())
	}
	for _, s := range a.Specs {
		b = s.appendWire(b)
	}
	return endAction(b, start)
}

func (s LearnSpec) appendWire(b []byte) []byte {
	width := s.Dst.Width
	if s.To == LearnOutput {
		width = s.Src.Width
	}
	head := width | uint16(s.To)<<specToShift
	if s.Src.isNone() {
		b = put16(b, head|specImmediate)
		b = appendValue(b, s.Value, immediateLen(int(width)))
	} else {
		b = put16(b, head)
		b = put16(put32(b, s.Src.header()), s.Src.Offset)
	}
	if s.To != LearnOutput {
		b = put16(put32(b, s.Dst.header()), s.Dst.Offset)
	}
	return b
}

// immediateLen returns the length in bytes of an immediate value of width bits: a multiple of 2.
func immediateLen(width int) int { return (width + 15) / 16 * 2 }

func decodeLearn(b []byte) (Action, bool) {
	second := u16(b[8:]) == nxLearn2
	if len(b) < learnLen || second && len(b) < learn2Len {
		return nil, false
	}
	flags := u16(b[24:])
	a := Learn{
		IdleTimeout: u16(b[10:]), HardTimeout: u16(b[12:]), Priority: u16(b[14:]), Cookie: u64(b[16:]), Table: b[26],
		FinIdleTimeout: u16(b[28:]), FinHardTimeout: u16(b[30:]),
		SendFlowRem: flags&learnSendFlowRem != 0, DeleteLearned: flags&learnDeleteLearned != 0,
	}
	rest, known := b[learnLen:], uint16(learnSendFlowRem|learnDeleteLearned)
	if second {
		known |= learnWriteResult
		a.Limit = u32(rest)
		offset := u16(rest[4:])
		if !allZero(rest[6:8]) {
			return nil, false
		}
		rest = rest[learn2Len-learnLen:]
		if flags&learnWriteResult != 0 {
			var ok bool
			if len(rest) < 4 {
				return nil, false
			}
			if a.Result, ok = subfieldOf(u32(rest), offset, 1); !ok {
				return nil, false
			}
			rest = rest[4:]
		}
	}
	if flags&^known != 0 || b[27] != 0 {
		return nil, false
	}
	for len(rest) >= 2 && u16(rest) != 0 {
		s, n, ok := decodeLearnSpec(rest)
		if !ok {
			return nil, false
		}
		a.Specs = append(a.Specs, s)
		rest = rest[n:]
	}
	return a, allZero(rest) && a.check() == nil
}

// decodeLearnSpec decodes the spec at the beginning of b and returns its length.
func decodeLearnSpec(b []byte) (s LearnSpec, n int, ok bool) {
	head := u16(b)
	width := head & specWidth
	s.To = LearnTo(head >> specToShift & 3)
	if head&^(specImmediate|3<<specToShift|specWidth) != 0 || width == 0 || width > 8*maxValue {
		return s, 0, false
	}
	n = 2
	field := func() (sub Subfield, ok bool) {
		if len(b) < n+6 {
			return sub, false
		}
		sub, ok = subfieldOf(u32(b[n:]), u16(b[n+4:]), width)
		n += 6
		return sub, ok
	}
	if head&specImmediate != 0 {
		size := immediateLen(int(width))
		if len(b) < n+size {
			return s, 0, false
		}
		s.Value = valueOf(b[n : n+size])
		n += size
	} else if s.Src, ok = field(); !ok {
		return s, 0, false
	}
	if s.To != LearnOutput {
		if s.Dst, ok = field(); !ok {
			return s, 0, false
		}
	}
	return s, n, s.check() == nil
}
