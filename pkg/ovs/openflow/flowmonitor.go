package openflow

import "fmt"

// FlowMonitorFlags select the changes that a flow monitor reports (OpenFlow 1.4.1, 7.3.5.17.1, ofp_flow_monitor_flags).
type FlowMonitorFlags uint16

// Flags of a FlowMonitorRequest. Without further flags, one FlowAbbreviated reports the changes by a message or a bundle of the monitoring connection.
const (
	MonitorAdded    FlowMonitorFlags = 1 << 1
	MonitorRemoved  FlowMonitorFlags = 1 << 2
	MonitorModified FlowMonitorFlags = 1 << 3
)

// FlowMonitorRequest adds a flow monitor to the connection (OpenFlow 1.4.1, 7.3.5.17). The switch answers with an empty FlowMonitorReply, and then sends a
// FlowMonitorReply with XID 0 after each change.
type FlowMonitorRequest struct {
	ID    uint32
	Flags FlowMonitorFlags
	Table uint8 // AllTables: every table
	Match Match // report only flows whose match is equal or more specific
}

// FlowMonitorReply reports changes of flows.
type FlowMonitorReply struct {
	Part
	Updates []FlowUpdate
}

// FlowEvent is the type of a FlowUpdate (OpenFlow 1.4.1, 7.3.5.17.2, ofp_flow_update_event).
type FlowEvent uint16

// Events of flows. While too many reports wait for the connection, the switch pauses it: it then reports only deletions, and at the end the flows that were
// added or modified in the meantime.
const (
	FlowInitial     FlowEvent = 0
	FlowAdded       FlowEvent = 1
	FlowRemoved     FlowEvent = 2
	FlowModified    FlowEvent = 3
	FlowAbbreviated FlowEvent = 4 // a message of this connection changed flows
	MonitorPaused   FlowEvent = 5
	MonitorResumed  FlowEvent = 6
)

// FlowUpdate is a change of a flow, or an event of the monitor.
type FlowUpdate struct {
	Event FlowEvent
	XID   uint32 // of FlowAbbreviated: of the message

	// Of other events of flows.
	Table        uint8
	Reason       uint8 // of FlowRemoved: ofp_flow_removed_reason
	IdleTimeout  uint16
	HardTimeout  uint16
	Priority     uint16
	Cookie       uint64
	Match        Match
	Instructions Instructions
}

// Lengths of updates (OpenFlow 1.4.1, 7.3.5.17.2, ofp_flow_update_full without match and instructions, ofp_flow_update_abbrev).
const (
	updateFullLen   = 24
	updateAbbrevLen = 8
)

func (*FlowMonitorRequest) messageType() uint8 { return typeMultipart }

func (m *FlowMonitorRequest) appendBody(b []byte) ([]byte, error) {
	const add = 0 // OFPFMC_ADD
	b = put32(appendRequest(b, multipartFlowMonitor), m.ID)
	b = put16(put32(put32(b, anyPort), anyGroup), uint16(m.Flags))
	return m.Match.append(append(b, m.Table, add))
}

func decodeFlowMonitorRequest(b []byte) (Message, error) {
	const fixed = 16
	if len(b) < fixed {
		return nil, short("flow monitor request", len(b), fixed)
	}
	m := &FlowMonitorRequest{ID: u32(b), Flags: FlowMonitorFlags(u16(b[12:])), Table: b[14]}
	var err error
	m.Match, _, err = decodeMatch(b[fixed:])
	return m, err
}

func (m *FlowMonitorReply) appendBody(b []byte) ([]byte, error) {
	b = m.append(b, multipartFlowMonitor)
	for i := range m.Updates {
		var err error
		if b, err = m.Updates[i].append(b); err != nil {
			return b, err
		}
	}
	return b, nil
}

func decodeFlowMonitorReply(p Part, b []byte) (Message, error) {
	m := &FlowMonitorReply{Part: p}
	err := entries("flow monitor reply", b, 0, updateAbbrevLen, func(entry []byte) error {
		m.Updates = append(m.Updates, FlowUpdate{})
		return m.Updates[len(m.Updates)-1].decode(entry)
	})
	return m, err
}

func (u *FlowUpdate) append(b []byte) ([]byte, error) {
	start := len(b)
	b = put16(zeros(b, 2), uint16(u.Event))
	if u.Event >= FlowAbbreviated {
		b = put32(b, u.XID)
		return b, putLength(b, start, start)
	}
	b = append(b, u.Table, u.Reason)
	b = put16(put16(put16(b, u.IdleTimeout), u.HardTimeout), u.Priority)
	b, err := u.Match.append(put64(zeros(b, 4), u.Cookie))
	if err != nil {
		return b, err
	}
	if b, err = u.Instructions.append(b); err != nil {
		return b, err
	}
	return b, putLength(b, start, start)
}

// decode decodes an entry of a FlowMonitorReply, of which b has exactly the length.
func (u *FlowUpdate) decode(b []byte) error {
	u.Event = FlowEvent(u16(b[2:]))
	switch {
	case u.Event > MonitorResumed:
		return fmt.Errorf("flow monitor reply: unknown event %d", u.Event)
	case u.Event >= FlowAbbreviated:
		u.XID = u32(b[4:])
		return nil
	case len(b) < updateFullLen:
		return short("flow update", len(b), updateFullLen)
	}
	u.Table, u.Reason = b[4], b[5]
	u.IdleTimeout, u.HardTimeout, u.Priority = u16(b[6:]), u16(b[8:]), u16(b[10:])
	u.Cookie = u64(b[16:])
	var err error
	if u.Match, b, err = decodeMatch(b[updateFullLen:]); err != nil {
		return err
	}
	u.Instructions = decodeInstructions(b)
	return nil
}

// RequestForward reports a GroupMod or MeterMod of another connection (OpenFlow 1.4.1, 7.4.6), if SetAsync.RequestForward requests it.
type RequestForward struct {
	Request []byte // the message, with its header
}

func (*RequestForward) messageType() uint8 { return typeRequestForward }

func (m *RequestForward) appendBody(b []byte) ([]byte, error) { return append(b, m.Request...), nil }
