package openflow

import (
	"fmt"
)

// Experimenter IDs in messages, actions, properties and errors.
const (
	experimenterNicira = 0x00002320 // NX_VENDOR_ID
	experimenterONF    = 0x4f4e4600 // ONF_VENDOR_ID
)

// Error reports that the switch rejected a request (OpenFlow 1.4.1, 7.5.4). Its header has the XID of the request.
type Error struct {
	Type         uint16 // OFPET_*, or ErrorExperimenter
	Code         uint16 // within Type; the experimenter's error number if Type is ErrorExperimenter
	Experimenter uint32 // 0 unless Type is ErrorExperimenter
	Data         []byte // the rejected request or its beginning
}

// Error types that the messages of this package can cause (OpenFlow 1.4.1, 7.5.4, ofp_error_type).
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

	errorSwitchConfigFailed = 10
	errorBadProperty        = 14
	errorAsyncConfigFailed  = 15
)

// CodeBundleMessageFailed (OFPBFC_MSG_FAILED) is the code of the error that ends a commit of which a message was rejected. A separate
// error with the XID of that message precedes it.
const CodeBundleMessageFailed = 13

// CodeMeterExists (OFPMMFC_METER_EXISTS, type ErrorMeterModFailed) rejects the addition of a meter whose ID is in use.
const CodeMeterExists = 1

// Name returns the error's name in the specification or in Open vSwitch, such as OFPBMC_BAD_PREREQ, or its numbers if it has no name.
func (e *Error) Name() string {
	var name string
	switch {
	case e.Type != ErrorExperimenter:
		name = errorTypes()[e.Type].name(e.Code)
	case e.Experimenter == experimenterNicira:
		name = niciraErrorNames()[e.Code]
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
	if t, ok := errorTypes()[e.Type]; ok {
		return "switch rejected the request: " + e.Name() + " (" + t.description + ")"
	}
	return "switch rejected the request: " + e.Name()
}

func (*Error) messageType() uint8 { return typeError }

func (e *Error) appendBody(b []byte) ([]byte, error) {
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
