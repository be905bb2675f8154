package openflow

import (
	"fmt"
	"strconv"
	"strings"
)

// Instructions are the instructions of a flow, in the order of execution. The zero Instructions drop the packet.
type Instructions struct {
	Meter    uint32   // 0: none
	Apply    []Action // applied immediately, in order
	Clear    bool     // clears the action set
	Write    []Action // added to the action set, which is executed at the end of the pipeline
	Metadata MaskedMetadata
	Goto     uint8 // the next table; 0: none, because goto_table must be to a higher table

	Unknown []byte // unsupported instructions, as they arrived
}

// IsDrop reports whether the packet has no output and no next table: there is no action, except samples.
func (in *Instructions) IsDrop() bool {
	for _, a := range in.Apply {
		if a.Kind() != KindSample {
			return false
		}
	}
	return len(in.Write) == 0 && in.Goto == 0 && len(in.Unknown) == 0
}

// MaskedMetadata is a write to the metadata bits in the mask.
type MaskedMetadata struct {
	Value, Mask uint64 // Mask 0: no write
}

// Instruction types (OpenFlow 1.4.1, 7.2.3).
const (
	instructionGoto     = 1
	instructionMetadata = 2
	instructionWrite    = 3
	instructionApply    = 4
	instructionClear    = 5
	instructionMeter    = 6
)

func (in Instructions) append(b []byte) ([]byte, error) {
	if in.Meter != 0 {
		b = put32(appendHeader(b, instructionMeter, 8), in.Meter)
	}
	var err error
	if b, err = appendActionInstruction(b, instructionApply, in.Apply); err != nil {
		return b, err
	}
	if in.Clear {
		b = zeros(appendHeader(b, instructionClear, 8), 4)
	}
	if b, err = appendActionInstruction(b, instructionWrite, in.Write); err != nil {
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

func appendActionInstruction(b []byte, typ uint16, actions []Action) ([]byte, error) {
	if len(actions) == 0 {
		return b, nil
	}
	start := len(b)
	b, err := appendActions(zeros(appendHeader(b, typ, 0), 4), actions)
	if err != nil {
		return b, err
	}
	return b, putLength(b, start, start+2)
}

// decodeInstructions decodes the instructions at the end of a flow. Like decodeActions it never fails.
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
	return in
}

// decode decodes one instruction; ok is false if it is unsupported or repeated, or has no effect that Instructions can represent.
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

// String returns the instructions as ovs-ofctl prints them after actions=.
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

// unknownInstructions precedes the unknown(…) of instructions, to distinguish it from that of an action.
const unknownInstructions = "instructions:"

// ParseInstructions parses the text after actions= of a flow with this match, on which words such as mod_tp_dst depend.
func ParseInstructions(m Match, text string) (Instructions, error) {
	p := newActionParser(m)
	in, err := p.instructions(text)
	if err != nil {
		return in, fmt.Errorf("actions %q: %w", excerpt(text), err)
	}
	return in, nil
}

// The order in which instructions must be written, which is the order of execution.
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
			return fmt.Errorf("%s follows %s; the order is meter, actions, clear_actions, write_actions, write_metadata, goto_table", w.key, before)
		}
		last, before = stage, w.key
		return p.instruction(&in, stage, w)
	})
	switch {
	case err != nil:
		return in, err
	case drop && last >= 0:
		return in, fmt.Errorf("drop cannot be combined with other actions")
	case !drop && last < 0 && len(in.Unknown) == 0:
		return in, fmt.Errorf("no actions; write drop to drop packets")
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
		err = fmt.Errorf("the length of instructions must be a multiple of 8 bytes")
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
