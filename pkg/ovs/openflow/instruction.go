package openflow

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Instructions are what a flow does with its packets, in the order in which they act. The zero Instructions drop.
type Instructions struct {
	Meter    uint32   // 0: none
	Apply    []Action // done at once, in order
	Clear    bool     // empty the action set
	Write    []Action // put into the action set, which is done when the pipeline ends
	Metadata MaskedMetadata
	Goto     uint8 // the table to go on in; 0: none, since it has to be above the flow's

	Unknown []byte // instructions that this package does not know, as they came
}

// MaskedMetadata is a write to the bits of the metadata that the mask names.
type MaskedMetadata struct {
	Value, Mask uint64 // Mask 0: no write
}

// Instruction types (OpenFlow 1.4.1, 7.2.3; in 1.5 meter is an action).
const (
	instructionGoto     = 1
	instructionMetadata = 2
	instructionWrite    = 3
	instructionApply    = 4
	instructionClear    = 5
	instructionMeter    = 6

	actionMeter = 29
)

func (in Instructions) append(b []byte, v Version) ([]byte, error) {
	if in.Meter != 0 && v < Version15 {
		b = put32(appendHeader(b, instructionMeter, 8), in.Meter)
	}
	var err error
	apply := in.Apply
	if in.Meter != 0 && v >= Version15 {
		meter := put32(appendHeader(nil, actionMeter, 8), in.Meter)
		apply = slices.Insert(slices.Clone(apply), 0, Action(UnknownAction{Raw: meter}))
	}
	if b, err = appendActionInstruction(b, v, instructionApply, apply); err != nil {
		return b, err
	}
	if in.Clear {
		b = zeros(appendHeader(b, instructionClear, 8), 4)
	}
	if b, err = appendActionInstruction(b, v, instructionWrite, in.Write); err != nil {
		return b, err
	}
	if in.Metadata.Mask != 0 {
		b = zeros(appendHeader(b, instructionMetadata, 24), 4)
		b = put64(put64(b, in.Metadata.Value), in.Metadata.Mask)
	}
	if in.Goto != 0 {
		b = append(appendHeader(b, instructionGoto, 8), in.Goto, 0, 0, 0)
	}
	return append(b, in.Unknown...), nil
}

func appendActionInstruction(b []byte, v Version, typ uint16, actions []Action) ([]byte, error) {
	if len(actions) == 0 {
		return b, nil
	}
	start := len(b)
	b, err := appendActions(zeros(appendHeader(b, typ, 0), 4), v, actions)
	if err != nil {
		return b, err
	}
	return b, putLength(b, start, start+2)
}

// decodeInstructions decodes the rest of a flow. Like decodeActions it can't fail.
func decodeInstructions(b []byte) Instructions {
	var in Instructions
	for len(b) > 0 {
		element, rest, ok := tlv(b, 2, 8)
		if !ok {
			in.Unknown = append(in.Unknown, b...)
			break
		}
		if !in.decode(element) {
			in.Unknown = append(in.Unknown, element...)
		}
		b = rest
	}
	if len(in.Apply) > 0 {
		in.takeMeter()
	}
	return in
}

// decode decodes one instruction; ok is false when it is unknown, repeated or says nothing that Instructions can hold.
func (in *Instructions) decode(b []byte) (ok bool) {
	switch typ := u16(b); {
	case typ == instructionMeter && len(b) == 8 && in.Meter == 0:
		in.Meter = u32(b[4:])
		return in.Meter != 0
	case typ == instructionApply && in.Apply == nil && allZero(b[4:8]):
		in.Apply = decodeActions(b[8:])
		return true
	case typ == instructionClear && len(b) == 8 && allZero(b[4:8]):
		in.Clear = true
		return true
	case typ == instructionWrite && in.Write == nil && allZero(b[4:8]):
		in.Write = decodeActions(b[8:])
		return true
	case typ == instructionMetadata && len(b) == 24 && in.Metadata.Mask == 0 && allZero(b[4:8]):
		in.Metadata = MaskedMetadata{Value: u64(b[8:]), Mask: u64(b[16:])}
		return in.Metadata.Mask != 0
	case typ == instructionGoto && len(b) == 8 && in.Goto == 0 && allZero(b[5:8]):
		in.Goto = b[4]
		return in.Goto != 0
	}
	return false
}

// takeMeter turns OpenFlow 1.5's meter action, when it comes first, into the instruction of 1.4.
func (in *Instructions) takeMeter() {
	a, ok := in.Apply[0].(UnknownAction)
	if !ok || len(a.Raw) != 8 || u16(a.Raw) != actionMeter || u32(a.Raw[4:]) == 0 || in.Meter != 0 {
		return
	}
	in.Meter = u32(a.Raw[4:])
	if in.Apply = in.Apply[1:]; len(in.Apply) == 0 {
		in.Apply = nil
	}
}

// String returns the instructions as ovs-ofctl prints them behind actions=.
func (in Instructions) String() string { return string(in.appendText(nil)) }

func (in Instructions) appendText(b []byte) []byte {
	start := len(b)
	if in.Meter != 0 {
		b = append(strconv.AppendUint(append(b, "meter:"...), uint64(in.Meter), 10), ',')
	}
	if len(in.Apply) > 0 {
		b = append(appendActionsText(b, in.Apply), ',')
	}
	if in.Clear {
		b = append(b, "clear_actions,"...)
	}
	if len(in.Write) > 0 {
		b = append(appendActionsText(append(b, "write_actions("...), in.Write), "),"...)
	}
	if m := in.Metadata; m.Mask != 0 {
		b = appendHex(append(b, "write_metadata:"...), Value{Lo: m.Value})
		if m.Mask != ^uint64(0) {
			b = appendHex(append(b, '/'), Value{Lo: m.Mask})
		}
		b = append(b, ',')
	}
	if in.Goto != 0 {
		b = append(strconv.AppendUint(append(b, "goto_table:"...), uint64(in.Goto), 10), ',')
	}
	if len(in.Unknown) > 0 {
		b = append(appendUnknown(append(b, unknownInstructions...), in.Unknown), ',')
	}
	if len(b) == start {
		return append(b, "drop"...)
	}
	return b[:len(b)-1]
}

// unknownInstructions precedes unknown(…) of instructions, which would read as an action otherwise.
const unknownInstructions = "instructions:"

// ParseInstructions reads what stands behind actions= in a flow. Words that depend on the flow's match, such as mod_tp_dst, are
// an error; ParseFlow takes them.
func ParseInstructions(text string) (Instructions, error) {
	p := actionParser{}
	in, err := p.instructions(text)
	if err != nil {
		return in, fmt.Errorf("actions %q: %w", excerpt(text), err)
	}
	return in, nil
}

// The order in which instructions have to stand, which is that in which they act.
const (
	stageMeter = iota
	stageApply
	stageClear
	stageWrite
	stageMetadata
	stageGoto
)

func stageOf(key string) int {
	switch key {
	case "meter":
		return stageMeter
	case "clear_actions":
		return stageClear
	case "write_actions":
		return stageWrite
	case "write_metadata":
		return stageMetadata
	case "goto_table":
		return stageGoto
	}
	return stageApply
}

func (p *actionParser) instructions(text string) (Instructions, error) {
	var in Instructions
	last, before, drop := -1, "", false
	err := eachWord(text, func(w word) error {
		if w.key == "instructions" {
			return in.parseUnknown(w)
		}
		if w.key == "drop" {
			drop = true
			return w.plain()
		}
		stage := stageOf(w.key)
		if stage < last || stage == last && stage != stageApply {
			return fmt.Errorf("%s stands behind %s; the order is meter, actions, clear_actions, write_actions, write_metadata, goto_table", w.key, before)
		}
		last, before = stage, w.key
		return p.instruction(&in, stage, w)
	})
	switch {
	case err != nil:
		return in, err
	case drop && last >= 0:
		return in, fmt.Errorf("drop stands with other actions")
	case !drop && last < 0 && len(in.Unknown) == 0:
		return in, fmt.Errorf("no actions; an explicit drop is one")
	}
	return in, nil
}

func (in *Instructions) parseUnknown(w word) error {
	inner, _, err := nextWord(w.value)
	if err != nil {
		return err
	}
	raw, err := inner.unknownBytes()
	if err == nil && len(raw)%align8 != 0 {
		err = fmt.Errorf("instructions take 8, 16 … bytes")
	}
	in.Unknown = append(in.Unknown, raw...)
	return err
}

func (p *actionParser) instruction(in *Instructions, stage int, w word) error {
	switch stage {
	case stageMeter:
		n, err := w.uint(32)
		if err == nil && n == 0 {
			err = fmt.Errorf("meters are numbered from 1")
		}
		in.Meter = uint32(n)
		return err
	case stageClear:
		in.Clear = true
		return w.plain()
	case stageWrite:
		var err error
		in.Write, err = p.actions(w.value)
		return err
	case stageMetadata:
		value, mask, masked := strings.Cut(w.value, "/")
		m := MaskedMetadata{Mask: ^uint64(0)}
		var err error
		if m.Value, err = parseUint(value, 64); err == nil && masked {
			m.Mask, err = parseUint(mask, 64)
		}
		in.Metadata = m
		return err
	case stageGoto:
		n, err := w.uint(8)
		if err == nil && (n == 0 || n == CurrentTable) {
			err = fmt.Errorf("goto_table:%d: the table must be 1 to 254", n)
		}
		in.Goto = uint8(n)
		return err
	}
	actions, err := p.action(w)
	in.Apply = append(in.Apply, actions...)
	return err
}
