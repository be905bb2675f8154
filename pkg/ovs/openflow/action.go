package openflow

import (
	"fmt"
)

// Action is an action of a flow or a bucket. The implementations are the action types of this package, as values, not pointers.
type Action interface {
	// Kind returns the type of the action.
	Kind() Kind

	appendWire(b []byte) ([]byte, error)
	appendText(b []byte) []byte
}

// Kind is a type of action.
type Kind uint8

// The kinds.
const (
	KindUnknown Kind = iota
	KindOutput
	KindOutputField
	KindController
	KindGroup
	KindResubmit
	KindMove
	KindLoad
	KindSetField
	KindPushVLAN
	KindPopVLAN
	KindPushMPLS
	KindPopMPLS
	KindSetTTL
	KindDecTTL
	KindCT
	KindCTClear
	KindNAT
	KindLearn
	KindConjunction
	KindNote
	KindCheckPktLarger
	KindSample
	numKinds
)

func (k Kind) String() string {
	names := [numKinds]string{
		KindUnknown: "unknown", KindOutput: "output", KindOutputField: "output:field", KindController: "controller",
		KindGroup: "group", KindResubmit: "resubmit", KindMove: "move", KindLoad: "load", KindSetField: "set_field",
		KindPushVLAN: "push_vlan", KindPopVLAN: "pop_vlan", KindPushMPLS: "push_mpls", KindPopMPLS: "pop_mpls",
		KindSetTTL: "mod_nw_ttl", KindDecTTL: "dec_ttl", KindCT: "ct", KindCTClear: "ct_clear", KindNAT: "nat", KindLearn: "learn", KindConjunction: "conjunction", KindNote: "note",
		KindCheckPktLarger: "check_pkt_larger", KindSample: "sample",
	}
	if k < numKinds {
		return names[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Action types (OpenFlow 1.4.1, 7.2.4, ofp_action_type).
const (
	actionOutput       = 0
	actionPushVLAN     = 17
	actionPopVLAN      = 18
	actionPushMPLS     = 19
	actionPopMPLS      = 20
	actionGroup        = 22
	actionSetTTL       = 23
	actionDecTTL       = 24
	actionSetField     = 25
	actionExperimenter = 0xffff
)

// Subtypes of Nicira actions (enum ofp_raw_action_type in Open vSwitch's ofp-actions.c).
const (
	nxResubmit       = 1
	nxRegMove        = 6
	nxRegLoad        = 7
	nxNote           = 8
	nxResubmitTable  = 14
	nxOutputReg      = 15
	nxLearn          = 16
	nxController     = 20
	nxSample         = 29
	nxRegLoad2       = 33
	nxConjunction    = 34
	nxCT             = 35
	nxNAT            = 36
	nxCTClear        = 43
	nxResubmitCT     = 44
	nxLearn2         = 45
	nxCheckPktLarger = 49
)

// Lengths in bytes: actionHeader is that of the header of every action, padding included, and so the minimum length of an action;
// niciraHeader is that of a Nicira action's header (type, length, experimenter, subtype).
const (
	actionHeader = 8
	niciraHeader = 10
)

// UnknownAction is an action that this package does not support or cannot parse. It is encoded as it arrived.
type UnknownAction struct {
	Raw []byte // header included
}

// Kind implements Action.
func (UnknownAction) Kind() Kind { return KindUnknown }

func (a UnknownAction) appendWire(b []byte) ([]byte, error) {
	return append(b, a.Raw...), nil
}
func (a UnknownAction) appendText(b []byte) []byte { return appendUnknown(b, a.Raw) }

// decodeActions decodes a list of actions, such as those of a bucket or of ct. It never fails: from an invalid length on, the rest of
// the list becomes one UnknownAction.
func decodeActions(b []byte) []Action {
	n := 0
	for rest, ok := b, true; ok; n++ {
		_, rest, ok = tlv(rest, 2, actionHeader)
	}
	if n == 1 && len(b) == 0 {
		return nil
	}
	actions := make([]Action, 0, n)
	for len(b) > 0 {
		element, rest, ok := tlv(b, 2, actionHeader)
		if !ok {
			return append(actions, UnknownAction{Raw: clone(b)})
		}
		a, ok := decodeAction(element)
		if !ok {
			a = UnknownAction{Raw: clone(element)}
		}
		actions = append(actions, a)
		b = rest
	}
	return actions
}

// decodeAction decodes one action of the length in its header. ok is false if the action is not supported, or if encoding the result
// would not reproduce b.
func decodeAction(b []byte) (a Action, ok bool) {
	switch u16(b) {
	case actionOutput:
		return decodeOutput(b)
	case actionPushVLAN:
		return PushVLAN{EtherType: u16(b[4:])}, len(b) == 8 && allZero(b[6:])
	case actionPopVLAN:
		return PopVLAN{}, len(b) == 8 && allZero(b[4:])
	case actionPushMPLS:
		return PushMPLS{EtherType: u16(b[4:])}, len(b) == 8 && allZero(b[6:])
	case actionPopMPLS:
		return PopMPLS{EtherType: u16(b[4:])}, len(b) == 8 && allZero(b[6:])
	case actionGroup:
		return ToGroup{ID: u32(b[4:])}, len(b) == 8
	case actionSetTTL:
		return SetTTL{TTL: b[4]}, len(b) == 8 && allZero(b[5:])
	case actionDecTTL:
		return DecTTL{}, len(b) == 8 && allZero(b[4:])
	case actionSetField:
		return decodeSetField(b, 4)
	case actionExperimenter:
		if len(b) >= 16 && u32(b[4:]) == experimenterNicira {
			return decodeNicira(b)
		}
	}
	return nil, false
}

func decodeNicira(b []byte) (a Action, ok bool) {
	switch u16(b[8:]) {
	case nxResubmit, nxResubmitTable, nxResubmitCT:
		return decodeResubmit(b)
	case nxRegMove:
		return decodeRegMove(b)
	case nxRegLoad:
		return decodeRegLoad(b)
	case nxRegLoad2:
		return decodeSetField(b, niciraHeader)
	case nxNote:
		return Note{Data: clone(b[niciraHeader:])}, true
	case nxOutputReg:
		return decodeOutputReg(b)
	case nxLearn, nxLearn2:
		return decodeLearn(b)
	case nxController:
		return decodeController(b)
	case nxSample:
		return decodeSample(b)
	case nxConjunction:
		return decodeConjunction(b)
	case nxCT:
		return decodeCT(b)
	case nxNAT:
		return decodeNAT(b)
	case nxCTClear:
		return CTClear{}, len(b) == 16 && allZero(b[niciraHeader:])
	case nxCheckPktLarger:
		return decodeCheckPktLarger(b)
	}
	return nil, false
}

// appendActions appends a list of actions.
func appendActions(b []byte, actions []Action) ([]byte, error) {
	for _, a := range actions {
		var err error
		if a == nil {
			return b, fmt.Errorf("nil action")
		}
		if b, err = a.appendWire(b); err != nil {
			return b, fmt.Errorf("%s: %w", a.Kind(), err)
		}
	}
	return b, nil
}

// appendHeader appends the header of an action that is length bytes long.
func appendHeader(b []byte, typ, length uint16) []byte {
	return put16(put16(b, typ), length)
}

// appendNicira appends the header of a Nicira action. endAction corrects the length of an action of variable length.
func appendNicira(b []byte, subtype, length uint16) []byte {
	b = put32(appendHeader(b, actionExperimenter, length), experimenterNicira)
	return put16(b, subtype)
}

// endAction pads the action that begins at start and writes its length.
func endAction(b []byte, start int) ([]byte, error) {
	b = pad8(b, start)
	return b, putLength(b, start, start+2)
}

// FormatActions returns the actions as ovs-ofctl prints them; an empty list is "drop".
func FormatActions(actions []Action) string {
	if len(actions) == 0 {
		return "drop"
	}
	return string(appendActionsText(nil, actions))
}

func appendActionsText(b []byte, actions []Action) []byte {
	for i, a := range actions {
		if i > 0 {
			b = append(b, ',')
		}
		b = a.appendText(b)
	}
	return b
}
