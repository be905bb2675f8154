package openflow

import (
	"fmt"
	"strconv"
)

// Output sends the packet to a port (OFPAT_OUTPUT).
type Output struct {
	Port   Port
	MaxLen uint16 // maximum bytes of the packet, for PortController only; otherwise 0
}

// Kind implements Action.
func (Output) Kind() Kind { return KindOutput }

func (a Output) appendWire(b []byte) ([]byte, error) {
	if err := a.Port.check(); err != nil {
		return b, err
	}
	b = put32(appendHeader(b, actionOutput, 16), uint32(a.Port))
	return zeros(put16(b, a.MaxLen), 6), nil
}

func decodeOutput(b []byte) (Action, bool) {
	if len(b) != 16 || !allZero(b[10:]) {
		return nil, false
	}
	a := Output{Port: Port(u32(b[4:])), MaxLen: u16(b[8:])}
	return a, a.Port.check() == nil
}

func (a Output) appendText(b []byte) []byte {
	if a.Port < maxPort16 {
		b = append(b, "output:"...)
	}
	b = appendPort(b, a.Port)
	if a.Port == PortController {
		b = strconv.AppendUint(append(b, ':'), uint64(a.MaxLen), 10)
	}
	return b
}

// OutputField sends the packet to the port whose number is in a field (NXAST_OUTPUT_REG).
type OutputField struct {
	From   Subfield
	MaxLen uint16 // maximum bytes of the packet for PortController
}

// Kind implements Action.
func (OutputField) Kind() Kind { return KindOutputField }

func (a OutputField) check() error {
	if err := a.From.check(); err != nil {
		return err
	}
	_, err := a.From.packed()
	return err
}

func (a OutputField) appendWire(b []byte) ([]byte, error) {
	if err := a.check(); err != nil {
		return b, err
	}
	packed, _ := a.From.packed() // check has validated the width
	b = put16(appendNicira(b, nxOutputReg, 24), packed)
	b = put32(b, a.From.header())
	return zeros(put16(b, a.MaxLen), 6), nil
}

func decodeOutputReg(b []byte) (Action, bool) {
	if len(b) != 24 || !allZero(b[18:]) {
		return nil, false
	}
	from, ok := packedSubfield(u32(b[12:]), u16(b[10:]))
	return OutputField{From: from, MaxLen: u16(b[16:])}, ok
}

func (a OutputField) appendText(b []byte) []byte {
	return a.From.appendText(append(b, "output:"...))
}

// Reasons of a packet-in (OpenFlow 1.4.1, 7.4.1, ofp_packet_in_reason).
const (
	ReasonMiss   = 0 // sent by a table-miss flow: priority 0, matches all packets
	ReasonAction = 1 // sent by any other flow
)

func reasonNames() [6]string {
	return [...]string{"no_match", "action", "invalid_ttl", "action_set", "group", "packet_out"}
}

// Controller sends the packet to the connections with this controller ID (NXAST_CONTROLLER).
type Controller struct {
	MaxLen uint16 // maximum bytes of the packet
	ID     uint16
	Reason uint8
}

// Kind implements Action.
func (Controller) Kind() Kind { return KindController }

// reason returns the name of the reason, or "" if it is invalid.
func (a Controller) reason() string {
	if names := reasonNames(); int(a.Reason) < len(names) {
		return names[a.Reason]
	}
	return ""
}

func (a Controller) appendWire(b []byte) ([]byte, error) {
	if a.reason() == "" {
		return b, fmt.Errorf("invalid packet-in reason %d", a.Reason)
	}
	b = put16(appendNicira(b, nxController, 16), a.MaxLen)
	return append(put16(b, a.ID), a.Reason, 0), nil
}

func decodeController(b []byte) (Action, bool) {
	if len(b) != 16 || b[15] != 0 {
		return nil, false
	}
	a := Controller{MaxLen: u16(b[10:]), ID: u16(b[12:]), Reason: b[14]}
	return a, a.reason() != ""
}

func (a Controller) appendText(b []byte) []byte {
	if a.Reason == ReasonAction && a.ID == 0 {
		return strconv.AppendUint(append(b, "CONTROLLER:"...), uint64(a.MaxLen), 10)
	}
	b = append(b, "controller("...)
	if a.Reason != ReasonAction {
		b = append(append(append(b, "reason="...), a.reason()...), ',')
	}
	if a.MaxLen != 0xffff {
		b = append(strconv.AppendUint(append(b, "max_len="...), uint64(a.MaxLen), 10), ',')
	}
	if a.ID != 0 {
		b = append(strconv.AppendUint(append(b, "id="...), uint64(a.ID), 10), ',')
	}
	b[len(b)-1] = ')'
	return b
}

// parseController parses controller, controller:LEN and controller(…).
func parseController(w word) (Action, error) {
	const all = 0xffff
	if w.form != '(' {
		if w.value == "" {
			return Output{Port: PortController, MaxLen: all}, nil
		}
		n, err := w.uint(16)
		return Output{Port: PortController, MaxLen: uint16(n)}, err
	}
	a := Controller{MaxLen: all, Reason: ReasonAction}
	err := eachWord(w.value, func(w word) error {
		switch w.key {
		case "max_len":
			n, err := w.uint(16)
			a.MaxLen = uint16(n)
			return err
		case "id":
			n, err := w.uint(16)
			a.ID = uint16(n)
			return err
		case "reason":
			for i, name := range reasonNames() {
				if name == w.value {
					a.Reason = uint8(i)
					return nil
				}
			}
		}
		return fmt.Errorf("controller: unknown argument %q", w.key)
	})
	if err == nil && a.ID == 0 && a.Reason == ReasonAction {
		return Output{Port: PortController, MaxLen: a.MaxLen}, nil
	}
	return a, err
}

// ToGroup sends the packet to a group (OFPAT_GROUP).
type ToGroup struct {
	ID uint32
}

// Kind implements Action.
func (ToGroup) Kind() Kind { return KindGroup }

func (a ToGroup) appendWire(b []byte) ([]byte, error) {
	return put32(appendHeader(b, actionGroup, 8), a.ID), nil
}

func (a ToGroup) appendText(b []byte) []byte {
	return strconv.AppendUint(append(b, "group:"...), uint64(a.ID), 10)
}

// CurrentTable in Resubmit is the flow's own table.
const CurrentTable = 0xff

// Resubmit looks the packet up in a table and continues with the next action (NXAST_RESUBMIT_TABLE, NXAST_RESUBMIT_TABLE_CT).
type Resubmit struct {
	Port  Port  // in_port during the lookup; PortInPort: unchanged
	Table uint8 // CurrentTable: the flow's own
	CT    bool  // match the addresses of the connection's original direction
}

// Kind implements Action.
func (Resubmit) Kind() Kind { return KindResubmit }

func (a Resubmit) appendWire(b []byte) ([]byte, error) {
	if err := a.Port.check(); err != nil {
		return b, err
	}
	subtype := uint16(nxResubmitTable)
	if a.CT {
		subtype = nxResubmitCT
	}
	b = put16(appendNicira(b, subtype, 16), uint16(a.Port))
	return append(b, a.Table, 0, 0, 0), nil
}

func decodeResubmit(b []byte) (Action, bool) {
	if len(b) != 16 {
		return nil, false
	}
	a := Resubmit{Port: port16(u16(b[10:])), Table: b[12], CT: u16(b[8:]) == nxResubmitCT}
	if u16(b[8:]) == nxResubmit {
		a.Table = CurrentTable
		return a, a.Port.check() == nil
	}
	return a, allZero(b[13:]) && a.Port.check() == nil
}

func (a Resubmit) appendText(b []byte) []byte {
	if a.Port != PortInPort && a.Table == CurrentTable && !a.CT {
		return appendPort(append(b, "resubmit:"...), a.Port)
	}
	b = append(b, "resubmit("...)
	if a.Port != PortInPort {
		b = appendPort(b, a.Port)
	}
	b = append(b, ',')
	if a.Table != CurrentTable {
		b = strconv.AppendUint(b, uint64(a.Table), 10)
	}
	if a.CT {
		b = append(b, ",ct"...)
	}
	return append(b, ')')
}
