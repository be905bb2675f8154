package openflow

import (
	"fmt"
	"time"
)

// FlowKey identifies a flow on the switch: adding a flow replaces the flow with an equal key. It is comparable.
type FlowKey struct {
	Table    uint8
	Priority uint16
	Match    Match
}

// AllTables in a delete or a request selects every table (OFPTT_ALL).
const AllTables = 0xff

// FlowCommand is the operation of a FlowMod (OpenFlow 1.4.1, 7.3.4.2, ofp_flow_mod_command).
type FlowCommand uint8

// Flow commands. A strict command selects the flow with exactly this key; the others select all flows whose match is equal to or more
// specific than the given one.
const (
	FlowAdd          FlowCommand = 0
	FlowModify       FlowCommand = 1
	FlowModifyStrict FlowCommand = 2
	FlowDelete       FlowCommand = 3
	FlowDeleteStrict FlowCommand = 4
)

func flowCommandNames() [5]string {
	return [...]string{"add", "modify", "modify_strict", "delete", "delete_strict"}
}

func (c FlowCommand) String() string {
	if names := flowCommandNames(); int(c) < len(names) {
		return names[c]
	}
	return fmt.Sprintf("command(%d)", uint8(c))
}

// FlowFlags are options of a flow (OpenFlow 1.4.1, 7.3.4.2, ofp_flow_mod_flags).
type FlowFlags uint16

// The flags.
const (
	FlowSendRemoved    FlowFlags = 1 << 0 // send a message when the flow is removed
	FlowCheckOverlap   FlowFlags = 1 << 1 // reject a flow that overlaps another of the same priority
	FlowResetCounts    FlowFlags = 1 << 2 // reset the counters when the flow is modified
	FlowNoPacketCounts FlowFlags = 1 << 3
	FlowNoByteCounts   FlowFlags = 1 << 4
)

// flowFlagNames returns the names of the flags in text, lowest bit first.
func flowFlagNames() [5]string {
	return [...]string{"send_flow_rem", "check_overlap", "reset_counts", "no_packet_counts", "no_byte_counts"}
}

// FlowMod adds, modifies or deletes flows.
type FlowMod struct {
	Command      FlowCommand
	Table        uint8
	Priority     uint16
	Cookie       uint64
	CookieMask   uint64 // modify and delete: select only flows whose cookie equals Cookie in these bits
	IdleTimeout  uint16 // seconds, 0: none
	HardTimeout  uint16
	Flags        FlowFlags
	Importance   uint16
	Match        Match
	Instructions Instructions
}

// Key returns the key of the flow.
func (m *FlowMod) Key() FlowKey {
	return FlowKey{Table: m.Table, Priority: m.Priority, Match: m.Match}
}

// Values of fields that this package does not use: packets buffered in the switch, and filters by output.
const (
	noBuffer = 0xffffffff
	anyPort  = 0xffffffff
	anyGroup = 0xffffffff
)

func (*FlowMod) messageType() uint8 { return typeFlowMod }

func (m *FlowMod) appendBody(b []byte) ([]byte, error) {
	b = put64(put64(b, m.Cookie), m.CookieMask)
	b = append(b, m.Table, byte(m.Command))
	b = put16(put16(put16(b, m.IdleTimeout), m.HardTimeout), m.Priority)
	b = put32(put32(put32(b, noBuffer), anyPort), anyGroup)
	b = put16(put16(b, uint16(m.Flags)), m.Importance)
	b, err := m.Match.append(b)
	if err != nil {
		return b, err
	}
	return m.Instructions.append(b)
}

func decodeFlowMod(b []byte) (Message, error) {
	const fixed = 40
	if len(b) < fixed {
		return nil, short("flow mod", len(b), fixed)
	}
	m := &FlowMod{
		Cookie: u64(b), CookieMask: u64(b[8:]), Table: b[16], Command: FlowCommand(b[17]),
		IdleTimeout: u16(b[18:]), HardTimeout: u16(b[20:]), Priority: u16(b[22:]), Flags: FlowFlags(u16(b[36:])), Importance: u16(b[38:]),
	}
	var err error
	if m.Match, b, err = decodeMatch(b[fixed:]); err != nil {
		return nil, err
	}
	m.Instructions = decodeInstructions(b)
	return m, nil
}

// FlowStats is a flow in the reply to a FlowStatsRequest.
type FlowStats struct {
	Table        uint8
	Priority     uint16
	Cookie       uint64
	Duration     time.Duration // since it was added
	IdleTimeout  uint16        // seconds
	HardTimeout  uint16
	Flags        FlowFlags
	Importance   uint16
	Packets      uint64
	Bytes        uint64
	Match        Match
	Instructions Instructions
}

// Key returns the key of the flow.
func (f *FlowStats) Key() FlowKey {
	return FlowKey{Table: f.Table, Priority: f.Priority, Match: f.Match}
}

// flowStatsLen is the length of an entry of a flow dump without match and instructions (OpenFlow 1.4.1, 7.3.5.2, ofp_flow_stats).
const flowStatsLen = 48

// append appends the flow as an entry of a FlowStatsReply.
func (f *FlowStats) append(b []byte) ([]byte, error) {
	start := len(b)
	b = append(zeros(b, 2), f.Table, 0)
	b = put32(put32(b, uint32(f.Duration/time.Second)), uint32(f.Duration%time.Second))
	b = put16(put16(put16(b, f.Priority), f.IdleTimeout), f.HardTimeout)
	b = zeros(put16(put16(b, uint16(f.Flags)), f.Importance), 2)
	b = put64(put64(put64(b, f.Cookie), f.Packets), f.Bytes)
	b, err := f.Match.append(b)
	if err != nil {
		return b, err
	}
	if b, err = f.Instructions.append(b); err != nil {
		return b, err
	}
	return b, putLength(b, start, start)
}

// decode decodes an entry of a FlowStatsReply, of which b has exactly the length.
func (f *FlowStats) decode(b []byte) error {
	if len(b) < flowStatsLen {
		return short("flow", len(b), flowStatsLen)
	}
	f.Table, f.Duration = b[2], duration(b[4:])
	f.Priority, f.IdleTimeout, f.HardTimeout = u16(b[12:]), u16(b[14:]), u16(b[16:])
	f.Flags, f.Importance = FlowFlags(u16(b[18:])), u16(b[20:])
	f.Cookie, f.Packets, f.Bytes = u64(b[24:]), u64(b[32:]), u64(b[40:])
	var err error
	if f.Match, b, err = decodeMatch(b[flowStatsLen:]); err != nil {
		return err
	}
	f.Instructions = decodeInstructions(b)
	return nil
}

// duration reads a duration: seconds, then nanoseconds, 32 bits each.
func duration(b []byte) time.Duration {
	return time.Duration(u32(b))*time.Second + min(time.Duration(u32(b[4:])), time.Second-1)
}
