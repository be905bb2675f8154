package openflow

import (
	"fmt"
)

// MonitorFlags say what a flow monitor reports (OpenFlow 1.4.1, 7.3.5.17.1, ofp_flow_monitor_flags).
type MonitorFlags uint16

// The flags.
const (
	MonitorInitial      MonitorFlags = 1 << 0 // the flows that are there
	MonitorAdd          MonitorFlags = 1 << 1
	MonitorRemoved      MonitorFlags = 1 << 2
	MonitorModify       MonitorFlags = 1 << 3
	MonitorInstructions MonitorFlags = 1 << 4 // with the flows' instructions
	MonitorNoAbbrev     MonitorFlags = 1 << 5 // this controller's own changes in full
	MonitorOnlyOwn      MonitorFlags = 1 << 6
)

// MonitorCommand is what a FlowMonitorRequest does.
type MonitorCommand uint8

// The commands.
const (
	MonitorStart  MonitorCommand = 0
	MonitorChange MonitorCommand = 1
	MonitorStop   MonitorCommand = 2
)

// FlowMonitorRequest starts or ends reports of changes to flows. Its reply, of the same XID, has the flows that are there when
// MonitorInitial asks for them; later reports are replies too, of XID 0.
type FlowMonitorRequest struct {
	ID      uint32 // chosen by the controller, unique on its connection
	Command MonitorCommand
	Flags   MonitorFlags
	Table   uint8 // AllTables: every table
	Match   Match // only flows whose match is as narrow or narrower
}

// FlowMonitorReply are changes to flows, in order.
type FlowMonitorReply struct {
	Part
	Updates []FlowUpdate
}

// FlowEvent is what happened to a flow (ofp_flow_update_event).
type FlowEvent uint16

// The events. Between EventPaused and EventResumed the switch leaves events out; afterwards it reports what they
// amounted to.
const (
	EventInitial  FlowEvent = 0
	EventAdded    FlowEvent = 1
	EventRemoved  FlowEvent = 2
	EventModified FlowEvent = 3
	EventAbbrev   FlowEvent = 4 // this controller's own change, of message XID
	EventPaused   FlowEvent = 5
	EventResumed  FlowEvent = 6
)

func (e FlowEvent) String() string {
	names := [...]string{"INITIAL", "ADDED", "REMOVED", "MODIFIED", "ABBREV", "PAUSED", "RESUMED"}
	if int(e) < len(names) {
		return names[e]
	}
	return fmt.Sprintf("event(%d)", uint16(e))
}

// hasFlow reports whether the event is about a flow.
func (e FlowEvent) hasFlow() bool { return e <= EventModified }

// FlowUpdate is one change.
type FlowUpdate struct {
	Event        FlowEvent
	XID          uint32 // of EventAbbrev; all else is of a flow
	Table        uint8
	Reason       RemovedReason // of EventRemoved
	IdleTimeout  uint16
	HardTimeout  uint16
	Priority     uint16
	Cookie       uint64
	Match        Match
	Instructions Instructions
}

// Key returns the key of the flow.
func (u *FlowUpdate) Key() FlowKey {
	return FlowKey{Table: u.Table, Priority: u.Priority, Match: u.Match}
}

func (*FlowMonitorRequest) messageType() uint8 { return typeMultipart }

func (m *FlowMonitorRequest) appendBody(b []byte, _ Version) ([]byte, error) {
	b = appendRequest(b, multipartFlowMonitor)
	b = put32(put32(put32(b, m.ID), anyPort), anyGroup)
	return m.Match.append(append(put16(b, uint16(m.Flags)), m.Table, byte(m.Command)))
}

func decodeFlowMonitorRequest(b []byte) (Message, error) {
	const fixed = 16
	if len(b) < fixed {
		return nil, short("flow monitor request", len(b), fixed)
	}
	m := &FlowMonitorRequest{ID: u32(b), Flags: MonitorFlags(u16(b[12:])), Table: b[14], Command: MonitorCommand(b[15])}
	var err error
	m.Match, _, err = decodeMatch(b[fixed:])
	return m, err
}

func (m *FlowMonitorReply) appendBody(b []byte, v Version) ([]byte, error) {
	b = m.append(b, multipartFlowMonitor)
	for i := range m.Updates {
		var err error
		if b, err = m.Updates[i].append(b, v); err != nil {
			return b, err
		}
	}
	return b, nil
}

func (u *FlowUpdate) append(b []byte, v Version) ([]byte, error) {
	start := len(b)
	b = put16(zeros(b, 2), uint16(u.Event))
	if !u.Event.hasFlow() {
		b = put32(b, u.XID)
		return b, putLength(b, start, start)
	}
	b = append(b, u.Table, byte(u.Reason))
	b = zeros(put16(put16(put16(b, u.IdleTimeout), u.HardTimeout), u.Priority), 4)
	b, err := u.Match.append(put64(b, u.Cookie))
	if err != nil {
		return b, err
	}
	if b, err = u.Instructions.append(b, v); err != nil {
		return b, err
	}
	return b, putLength(b, start, start)
}

func decodeFlowMonitorReply(p Part, b []byte) (Message, error) {
	const smallest = 8
	m := &FlowMonitorReply{Part: p}
	if n := count(b, 0, smallest); n > 0 {
		m.Updates = make([]FlowUpdate, 0, n)
	}
	err := entries("flow monitor", b, 0, smallest, func(e []byte) error {
		u := FlowUpdate{Event: FlowEvent(u16(e[2:]))}
		if !u.Event.hasFlow() {
			u.XID = u32(e[4:])
			m.Updates = append(m.Updates, u)
			return nil
		}
		const fixed = 24
		if len(e) < fixed {
			return short("flow update", len(e), fixed)
		}
		u.Table, u.Reason = e[4], RemovedReason(e[5])
		u.IdleTimeout, u.HardTimeout, u.Priority, u.Cookie = u16(e[6:]), u16(e[8:]), u16(e[10:]), u64(e[16:])
		var err error
		if u.Match, e, err = decodeMatch(e[fixed:]); err != nil {
			return err
		}
		u.Instructions = decodeInstructions(e)
		m.Updates = append(m.Updates, u)
		return nil
	})
	return m, err
}
