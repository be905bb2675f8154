package openflow

import (
	"fmt"
	"time"
)

// GroupDescRequest asks for groups. OpenFlow 1.4 always gives all.
type GroupDescRequest struct {
	Group uint32 // or AllGroups
}

// GroupDescReply are groups as the switch has them; in OpenFlow 1.4 without selection methods and true bucket ids.
type GroupDescReply struct {
	Part
	Groups []Group
}

func (*GroupDescRequest) messageType() uint8 { return typeMultipart }

func (m *GroupDescRequest) appendBody(b []byte, v Version) ([]byte, error) {
	b = appendRequest(b, multipartGroupDesc)
	if v < Version15 {
		if m.Group != AllGroups {
			return b, fmt.Errorf("%s describes all groups or none; ask for AllGroups", v)
		}
		return b, nil
	}
	return zeros(put32(b, m.Group), 4), nil
}

func (m *GroupDescReply) appendBody(b []byte, v Version) ([]byte, error) {
	b = m.append(b, multipartGroupDesc)
	for i := range m.Groups {
		var err error
		if b, err = m.Groups[i].appendDesc(b, v); err != nil {
			return b, fmt.Errorf("group %d: %w", m.Groups[i].ID, err)
		}
	}
	return b, nil
}

func (g *Group) appendDesc(b []byte, v Version) ([]byte, error) {
	start := len(b)
	b = put32(append(zeros(b, 2), byte(g.Type), 0), g.ID)
	at := len(b)
	if v >= Version15 {
		b = zeros(b, 8)
	}
	buckets := len(b)
	b, err := g.appendBuckets(b, v)
	if err != nil {
		return b, err
	}
	if v >= Version15 {
		if err := putLength(b, buckets, at); err != nil {
			return b, err
		}
		if b, err = g.appendSelection(b); err != nil {
			return b, err
		}
	}
	return b, putLength(b, start, start)
}

func decodeGroupDescReply(v Version, p Part, b []byte) (Message, error) {
	fixed := 8
	if v >= Version15 {
		fixed = 16
	}
	m := &GroupDescReply{Part: p}
	err := entries("group description", b, 0, fixed, func(entry []byte) error {
		g := Group{Type: GroupType(entry[2]), ID: u32(entry[4:])}
		n := len(entry) - fixed
		if v >= Version15 {
			if n = int(u16(entry[8:])); n > len(entry)-fixed {
				return fmt.Errorf("group %d: %d bytes of buckets where %d are left", g.ID, n, len(entry)-fixed)
			}
		}
		entry = entry[fixed:]
		if err := g.decodeBuckets(entry[:n], v); err != nil {
			return err
		}
		if err := g.decodeSelection(entry[n:]); err != nil {
			return err
		}
		m.Groups = append(m.Groups, g)
		return nil
	})
	return m, err
}

// GroupStatsRequest asks for groups' counters.
type GroupStatsRequest struct {
	Group uint32 // or AllGroups
}

// GroupStatsReply are groups' counters.
type GroupStatsReply struct {
	Part
	Groups []GroupStats
}

// GroupStats are a group's counters.
type GroupStats struct {
	ID         uint32
	References uint32 // flows and groups that use it
	Packets    uint64
	Bytes      uint64
	Duration   time.Duration
	Buckets    []Counters
}

const groupStatsLen = 40

func (*GroupStatsRequest) messageType() uint8 { return typeMultipart }

func (m *GroupStatsRequest) appendBody(b []byte, _ Version) ([]byte, error) {
	return zeros(put32(appendRequest(b, multipartGroup), m.Group), 4), nil
}

func (m *GroupStatsReply) appendBody(b []byte, _ Version) ([]byte, error) {
	b = m.append(b, multipartGroup)
	for _, g := range m.Groups {
		start := len(b)
		b = put32(put32(zeros(b, 4), g.ID), g.References)
		b = put64(put64(zeros(b, 4), g.Packets), g.Bytes)
		b = appendCounters(appendDuration(b, g.Duration), g.Buckets)
		if err := putLength(b, start, start); err != nil {
			return b, err
		}
	}
	return b, nil
}

func decodeGroupStatsReply(p Part, b []byte) (Message, error) {
	m := &GroupStatsReply{Part: p}
	err := entries("group statistics", b, 0, groupStatsLen, func(e []byte) error {
		m.Groups = append(m.Groups, GroupStats{
			ID: u32(e[4:]), References: u32(e[8:]), Packets: u64(e[16:]), Bytes: u64(e[24:]),
			Duration: duration(e[32:]), Buckets: decodeCounters(e[groupStatsLen:]),
		})
		return nil
	})
	return m, err
}

// MeterConfigRequest asks for meters.
type MeterConfigRequest struct {
	Meter uint32 // or AllMeters
}

// MeterConfigReply are meters as the switch has them.
type MeterConfigReply struct {
	Part
	Meters []Meter
}

func (*MeterConfigRequest) messageType() uint8 { return typeMultipart }

func (m *MeterConfigRequest) appendBody(b []byte, _ Version) ([]byte, error) {
	return zeros(put32(appendRequest(b, multipartMeterConfig), m.Meter), 4), nil
}

func (m *MeterConfigReply) appendBody(b []byte, _ Version) ([]byte, error) {
	b = m.append(b, multipartMeterConfig)
	for i := range m.Meters {
		start := len(b)
		b = put32(put16(zeros(b, 2), uint16(m.Meters[i].Flags)), m.Meters[i].ID)
		b = m.Meters[i].appendBands(b)
		if err := putLength(b, start, start); err != nil {
			return b, err
		}
	}
	return b, nil
}

func decodeMeterConfigReply(p Part, b []byte) (Message, error) {
	const fixed = 8
	m := &MeterConfigReply{Part: p}
	err := entries("meter configuration", b, 0, fixed, func(e []byte) error {
		meter := Meter{Flags: MeterFlags(u16(e[2:])), ID: u32(e[4:])}
		if err := meter.decodeBands(e[fixed:]); err != nil {
			return err
		}
		m.Meters = append(m.Meters, meter)
		return nil
	})
	return m, err
}

// MeterStatsRequest asks for meters' counters.
type MeterStatsRequest struct {
	Meter uint32 // or AllMeters
}

// MeterStatsReply are meters' counters.
type MeterStatsReply struct {
	Part
	Meters []MeterStats
}

func (*MeterStatsRequest) messageType() uint8 { return typeMultipart }

func (m *MeterStatsRequest) appendBody(b []byte, _ Version) ([]byte, error) {
	return zeros(put32(appendRequest(b, multipartMeter), m.Meter), 4), nil
}

func (m *MeterStatsReply) appendBody(b []byte, _ Version) ([]byte, error) {
	b = m.append(b, multipartMeter)
	for i := range m.Meters {
		var err error
		if b, err = m.Meters[i].append(b); err != nil {
			return b, err
		}
	}
	return b, nil
}

func decodeMeterStatsReply(p Part, b []byte) (Message, error) {
	m := &MeterStatsReply{Part: p}
	err := entries("meter statistics", b, 4, meterStatsLen, func(e []byte) error {
		var s MeterStats
		s.decode(e)
		m.Meters = append(m.Meters, s)
		return nil
	})
	return m, err
}
