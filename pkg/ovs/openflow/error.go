package openflow

import (
	"fmt"
)

// Experimenters in messages, actions, properties and errors.
const (
	experimenterNicira = 0x00002320 // NX_VENDOR_ID
	experimenterONF    = 0x4f4e4600 // ONF_VENDOR_ID
	experimenterNTR    = 0x0000154d // NTR_VENDOR_ID, Netronome's group selection method
)

// Error is the switch's refusal of a message (OpenFlow 1.4.1, 7.5.4). Its header has the XID of the refused message.
type Error struct {
	Type         uint16 // OFPET_*, ErrorExperimenter for an experimenter's own
	Code         uint16 // within the type; an experimenter's error number when Type is ErrorExperimenter
	Experimenter uint32 // 0 unless Type is ErrorExperimenter
	Data         []byte // the refused message or its beginning
}

// Types of errors that a caller may want to tell apart; ErrorTypeName knows all.
const (
	ErrorHelloFailed    = 0
	ErrorBadRequest     = 1
	ErrorBadAction      = 2
	ErrorBadInstruction = 3
	ErrorBadMatch       = 4
	ErrorFlowModFailed  = 5
	ErrorGroupModFailed = 6
	ErrorMeterModFailed = 12
	ErrorBundleFailed   = 17
	ErrorExperimenter   = 0xffff
)

// CodeBundleMessageFailed (OFPBFC_MSG_FAILED) is what a commit ends with when a message of the bundle was refused; an error of its
// own, with that message's XID, comes before it.
const CodeBundleMessageFailed = 13

// Name returns the error's name in the specification or in Open vSwitch, such as OFPBMC_BAD_PREREQ, or its numbers when it has none.
func (e *Error) Name() string {
	var name string
	switch {
	case e.Type != ErrorExperimenter:
		name = standardErrorName(e.Type, e.Code)
	case e.Experimenter == experimenterNicira:
		name = niciraErrorName(e.Code)
	case e.Experimenter == experimenterONF && e.Code == 4250:
		name = "OFPBAC_BAD_SET_MASK"
	}
	if name != "" {
		return name
	}
	if e.Type == ErrorExperimenter {
		return fmt.Sprintf("experimenter %#x, error %d", e.Experimenter, e.Code)
	}
	return fmt.Sprintf("error type %d, code %d", e.Type, e.Code)
}

// Error implements error.
func (e *Error) Error() string {
	if t := ErrorTypeName(e.Type); t != "" {
		return "the switch refused: " + e.Name() + " (" + t + ")"
	}
	return "the switch refused: " + e.Name()
}

// Request returns the header of the refused message, and false when the switch gave too little of it.
func (e *Error) Request() (Header, bool) {
	h, err := ParseHeader(e.Data)
	return h, err == nil
}

// Message returns the refused message itself, which is the whole BundleAdd if it was in a bundle, and false when the switch
// gave only its beginning. Open vSwitch gives all of it.
func (e *Error) Message() (Message, bool) {
	_, m, err := Decode(e.Data)
	return m, err == nil
}

// ErrorTypeName says in words what an error type is about, "" when it is unknown.
func ErrorTypeName(typ uint16) string {
	switch typ {
	case ErrorHelloFailed:
		return "hello failed"
	case ErrorBadRequest:
		return "bad request"
	case ErrorBadAction:
		return "bad action"
	case ErrorBadInstruction:
		return "bad instruction"
	case ErrorBadMatch:
		return "bad match"
	case ErrorFlowModFailed:
		return "flow mod failed"
	case ErrorGroupModFailed:
		return "group mod failed"
	case 7:
		return "port mod failed"
	case 8:
		return "table mod failed"
	case 9:
		return "queue operation failed"
	case 10:
		return "switch configuration failed"
	case 11:
		return "role request failed"
	case ErrorMeterModFailed:
		return "meter mod failed"
	case 13:
		return "table features failed"
	case 14:
		return "bad property"
	case 15:
		return "asynchronous configuration failed"
	case 16:
		return "flow monitor failed"
	case ErrorBundleFailed:
		return "bundle failed"
	case ErrorExperimenter:
		return "experimenter error"
	}
	return ""
}

func (*Error) messageType() uint8 { return typeError }

func (e *Error) appendBody(b []byte, _ Version) ([]byte, error) {
	b = put16(b, e.Type)
	b = put16(b, e.Code)
	if e.Type == ErrorExperimenter {
		b = put32(b, e.Experimenter)
	}
	return append(b, e.Data...), nil
}

func decodeError(b []byte) (Message, error) {
	if len(b) < 4 {
		return nil, short("error", len(b), 4)
	}
	e := &Error{Type: u16(b), Code: u16(b[2:])}
	b = b[4:]
	if e.Type == ErrorExperimenter {
		if len(b) < 4 {
			return nil, short("experimenter error", len(b)+4, 8)
		}
		e.Experimenter = u32(b)
		b = b[4:]
	}
	e.Data = clone(b)
	return e, nil
}
