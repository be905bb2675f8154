package openflow

import (
	"fmt"
	"time"
)

// FlowKey is a flow's identity on the switch: two flows with equal keys overwrite each other. It is comparable.
type FlowKey struct {
	Table    uint8
	Priority uint16
	Match    Match
}

// AllTables in a delete or a request means every table (OFPTT_ALL).
const AllTables = 0xff

// FlowCommand is what a FlowMod does (OpenFlow 1.4.1, 7.3.4.2, ofp_flow_mod_command).
type FlowCommand uint8

// The commands. The strict ones look for the flow with exactly this key, the others for all flows whose match is as narrow as
// the given one or narrower.
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

// FlowFlags are properties of a flow (OpenFlow 1.4.1, 7.3.4.2, ofp_flow_mod_flags).
type FlowFlags uint16

// The flags.
const (
	FlowSendRemoved    FlowFlags = 1 << 0 // tell when the flow goes
	FlowCheckOverlap   FlowFlags = 1 << 1 // refuse a flow that overlaps another of its priority
	FlowResetCounts    FlowFlags = 1 << 2 // begin counting anew when the flow is modified
	FlowNoPacketCounts FlowFlags = 1 << 3
	FlowNoByteCounts   FlowFlags = 1 << 4
)

// flowFlagNames are the flags' names in text, the lowest first.
func flowFlagNames() [5]string {
	return [...]string{"send_flow_rem", "check_overlap", "reset_counts", "no_packet_counts", "no_byte_counts"}
}

// FlowMod changes flows.
type FlowMod struct {
	Command      FlowCommand
	Table        uint8
	Priority     uint16
	Cookie       uint64
	CookieMask   uint64 // modify and delete: only flows whose cookie equals Cookie in these bits
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

// What this package does not use: packets buffered in the switch, and filters by output.
const (
	noBuffer = 0xffffffff
	anyPort  = 0xffffffff
	anyGroup = 0xffffffff
)

func (*FlowMod) messageType() uint8 { return typeFlowMod }

func (m *FlowMod) appendBody(b []byte, v Version) ([]byte, error) {
	b = put64(put64(b, m.Cookie), m.CookieMask)
	b = append(b, m.Table, byte(m.Command))
	b = put16(put16(put16(b, m.IdleTimeout), m.HardTimeout), m.Priority)
	b = put32(put32(put32(b, noBuffer), anyPort), anyGroup)
	b = put16(put16(b, uint16(m.Flags)), m.Importance)
	b, err := m.Match.append(b)
	if err != nil {
		return b, err
	}
	return m.Instructions.append(b, v)
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

// FlowStats is a flow as the switch has it.
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

// flowStatsLen is the length of a flow's entry in OpenFlow 1.3 and 1.4 without match and instructions.
const flowStatsLen = 48

// append appends the flow as an entry of a FlowStatsReply.
func (f *FlowStats) append(b []byte, v Version) ([]byte, error) {
	start := len(b)
	var err error
	if v >= Version15 {
		b = append(zeros(b, 4), f.Table, 0)
		b = put16(put16(put16(b, f.Priority), f.IdleTimeout), f.HardTimeout)
		b = put16(put16(b, uint16(f.Flags)), f.Importance)
		if b, err = f.Match.append(put64(b, f.Cookie)); err != nil {
			return b, err
		}
		b = flowCounters{duration: f.Duration, packets: f.Packets, bytes: f.Bytes}.append(b)
	} else {
		b = append(zeros(b, 2), f.Table, 0)
		b = appendDuration(b, f.Duration)
		b = put16(put16(put16(b, f.Priority), f.IdleTimeout), f.HardTimeout)
		b = zeros(put16(put16(b, uint16(f.Flags)), f.Importance), 2)
		b = put64(put64(put64(b, f.Cookie), f.Packets), f.Bytes)
		if b, err = f.Match.append(b); err != nil {
			return b, err
		}
	}
	if b, err = f.Instructions.append(b, v); err != nil {
		return b, err
	}
	return b, putLength(b, start, start)
}

// decode decodes an entry, whose length is that of b.
func (f *FlowStats) decode(b []byte, v Version) error {
	var err error
	if v >= Version15 {
		return f.decode15(b)
	}
	if len(b) < flowStatsLen {
		return short("flow", len(b), flowStatsLen)
	}
	f.Table, f.Duration = b[2], duration(b[4:])
	f.Priority, f.IdleTimeout, f.HardTimeout = u16(b[12:]), u16(b[14:]), u16(b[16:])
	f.Flags, f.Importance = FlowFlags(u16(b[18:])), u16(b[20:])
	f.Cookie, f.Packets, f.Bytes = u64(b[24:]), u64(b[32:]), u64(b[40:])
	if f.Match, b, err = decodeMatch(b[flowStatsLen:]); err != nil {
		return err
	}
	f.Instructions = decodeInstructions(b)
	return nil
}

// decode15 decodes an entry of OpenFlow 1.5 (1.5.1, 7.3.5.2, ofp_flow_desc).
func (f *FlowStats) decode15(b []byte) error {
	const fixed = 24
	if len(b) < fixed {
		return short("flow", len(b), fixed)
	}
	f.Table, f.Priority, f.IdleTimeout, f.HardTimeout = b[4], u16(b[6:]), u16(b[8:]), u16(b[10:])
	f.Flags, f.Importance, f.Cookie = FlowFlags(u16(b[12:])), u16(b[14:]), u64(b[16:])
	var err error
	if f.Match, b, err = decodeMatch(b[fixed:]); err != nil {
		return err
	}
	counters, rest, err := decodeFlowCounters(b)
	if err != nil {
		return err
	}
	f.Duration, f.Packets, f.Bytes = counters.duration, counters.packets, counters.bytes
	f.Instructions = decodeInstructions(rest)
	return nil
}

// duration reads seconds and the nanoseconds beyond them, which the wire has in 32 bits each.
func duration(b []byte) time.Duration {
	return time.Duration(u32(b))*time.Second + min(time.Duration(u32(b[4:])), time.Second-1)
}

func appendDuration(b []byte, d time.Duration) []byte {
	b = put32(b, uint32(d/time.Second))
	return put32(b, uint32(d%time.Second))
}

// RemovedReason says why a flow went (OpenFlow 1.4.1, 7.4.2, ofp_flow_removed_reason).
type RemovedReason uint8

// The reasons.
const (
	RemovedIdle    RemovedReason = 0
	RemovedHard    RemovedReason = 1
	RemovedDelete  RemovedReason = 2
	RemovedGroup   RemovedReason = 3 // its group was deleted
	RemovedMeter   RemovedReason = 4
	RemovedEvicted RemovedReason = 5
)

// FlowRemoved tells that a flow with FlowSendRemoved is gone.
type FlowRemoved struct {
	Table       uint8
	Priority    uint16
	Cookie      uint64
	Reason      RemovedReason
	Duration    time.Duration
	IdleTimeout uint16
	HardTimeout uint16
	Packets     uint64
	Bytes       uint64
	Match       Match
}

func (*FlowRemoved) messageType() uint8 { return typeFlowRemoved }

func (m *FlowRemoved) appendBody(b []byte, v Version) ([]byte, error) {
	if v >= Version15 {
		b = append(b, m.Table, byte(m.Reason))
		b = put16(put16(put16(b, m.Priority), m.IdleTimeout), m.HardTimeout)
		b, err := m.Match.append(put64(b, m.Cookie))
		return flowCounters{duration: m.Duration, packets: m.Packets, bytes: m.Bytes}.append(b), err
	}
	b = put16(put64(b, m.Cookie), m.Priority)
	b = appendDuration(append(b, byte(m.Reason), m.Table), m.Duration)
	b = put16(put16(b, m.IdleTimeout), m.HardTimeout)
	return m.Match.append(put64(put64(b, m.Packets), m.Bytes))
}

func decodeFlowRemoved(v Version, b []byte) (Message, error) {
	const fixed, fixed15 = 40, 16
	var m FlowRemoved
	var err error
	if v >= Version15 {
		if len(b) < fixed15 {
			return nil, short("flow removed", len(b), fixed15)
		}
		m = FlowRemoved{
			Table: b[0], Reason: RemovedReason(b[1]), Priority: u16(b[2:]), IdleTimeout: u16(b[4:]), HardTimeout: u16(b[6:]), Cookie: u64(b[8:]),
		}
		if m.Match, b, err = decodeMatch(b[fixed15:]); err != nil {
			return nil, err
		}
		c, _, err := decodeFlowCounters(b)
		m.Duration, m.Packets, m.Bytes = c.duration, c.packets, c.bytes
		return &m, err
	}
	if len(b) < fixed {
		return nil, short("flow removed", len(b), fixed)
	}
	m = FlowRemoved{
		Cookie: u64(b), Priority: u16(b[8:]), Reason: RemovedReason(b[10]), Table: b[11], Duration: duration(b[12:]),
		IdleTimeout: u16(b[20:]), HardTimeout: u16(b[22:]), Packets: u64(b[24:]), Bytes: u64(b[32:]),
	}
	m.Match, _, err = decodeMatch(b[fixed:])
	return &m, err
}
