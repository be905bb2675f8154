package openflow

import (
	"fmt"
	"strconv"
	"time"
)

// MeterFlags say in which unit a meter's rates are (OpenFlow 1.4.1, 7.3.4.4, ofp_meter_flags).
type MeterFlags uint16

// The flags.
const (
	MeterKbps   MeterFlags = 1 << 0 // kilobits per second
	MeterPktps  MeterFlags = 1 << 1 // packets per second
	MeterBurst  MeterFlags = 1 << 2 // bands have a burst size
	MeterCounts MeterFlags = 1 << 3 // collect statistics
)

// Meter limits the rate of the packets that pass it.
type Meter struct {
	ID    uint32 // from 1
	Flags MeterFlags
	Bands []Band
}

// BandType is what happens to packets above a band's rate.
type BandType uint16

// The types.
const (
	BandDrop       BandType = 1
	BandDSCPRemark BandType = 2
)

// Band applies to packets above its rate.
type Band struct {
	Type      BandType
	Rate      uint32 // kilobits or packets per second
	Burst     uint32 // kilobits or packets, with MeterBurst; without, the switch has one of its own, which is not decoded
	PrecLevel uint8  // BandDSCPRemark: by how much the drop precedence grows
}

// MeterCommand is what a MeterMod does.
type MeterCommand uint16

// The commands.
const (
	MeterAdd    MeterCommand = 0
	MeterModify MeterCommand = 1
	MeterDelete MeterCommand = 2
)

// AllMeters in a delete or a request means every meter (OFPM_ALL).
const AllMeters uint32 = 0xffffffff

// MeterMod changes a meter.
type MeterMod struct {
	Command MeterCommand
	Meter   Meter
}

const bandLen = 16

func (*MeterMod) messageType() uint8 { return typeMeterMod }

func (m *MeterMod) appendBody(b []byte, _ Version) ([]byte, error) {
	b = put32(put16(put16(b, uint16(m.Command)), uint16(m.Meter.Flags)), m.Meter.ID)
	return m.Meter.appendBands(b), nil
}

func (m *Meter) appendBands(b []byte) []byte {
	for _, band := range m.Bands {
		b = put32(put32(appendHeader(b, uint16(band.Type), bandLen), band.Rate), band.Burst)
		b = append(b, band.PrecLevel, 0, 0, 0)
	}
	return b
}

func decodeMeterMod(b []byte) (Message, error) {
	const fixed = 8
	if len(b) < fixed {
		return nil, short("meter mod", len(b), fixed)
	}
	m := &MeterMod{Command: MeterCommand(u16(b)), Meter: Meter{Flags: MeterFlags(u16(b[2:])), ID: u32(b[4:])}}
	return m, m.Meter.decodeBands(b[fixed:])
}

func (m *Meter) decodeBands(b []byte) error {
	for len(b) > 0 {
		element, rest, ok := tlv(b, 2, bandLen)
		if !ok {
			return fmt.Errorf("meter %d: a band's length does not fit into its %d bytes", m.ID, len(b))
		}
		band := Band{Type: BandType(u16(element)), Rate: u32(element[4:]), PrecLevel: element[12]}
		if m.Flags&MeterBurst != 0 {
			band.Burst = u32(element[8:])
		}
		m.Bands = append(m.Bands, band)
		b = rest
	}
	return nil
}

// String returns the meter as `ovs-ofctl dump-meters` prints it, with blanks for its line ends.
func (m *Meter) String() string {
	b := strconv.AppendUint([]byte("meter="), uint64(m.ID), 10)
	for _, f := range []struct {
		flag MeterFlags
		name string
	}{{MeterKbps, " kbps"}, {MeterPktps, " pktps"}, {MeterBurst, " burst"}, {MeterCounts, " stats"}} {
		if m.Flags&f.flag != 0 {
			b = append(b, f.name...)
		}
	}
	b = append(b, " bands="...)
	for _, band := range m.Bands {
		switch band.Type {
		case BandDrop:
			b = append(b, " type=drop"...)
		case BandDSCPRemark:
			b = append(b, " type=dscp_remark"...)
		default:
			b = strconv.AppendUint(append(b, " type="...), uint64(band.Type), 10)
		}
		b = strconv.AppendUint(append(b, " rate="...), uint64(band.Rate), 10)
		if m.Flags&MeterBurst != 0 {
			b = strconv.AppendUint(append(b, " burst_size="...), uint64(band.Burst), 10)
		}
		if band.Type == BandDSCPRemark {
			b = strconv.AppendUint(append(b, " prec_level="...), uint64(band.PrecLevel), 10)
		}
	}
	return string(b)
}

// MeterStats are a meter's counters.
type MeterStats struct {
	ID       uint32
	Flows    uint32 // that use it
	Packets  uint64 // that passed through it
	Bytes    uint64
	Duration time.Duration // since it was added
	Bands    []Counters    // what was above each band's rate
}

// Counters count packets and bytes.
type Counters struct {
	Packets, Bytes uint64
}

const (
	meterStatsLen = 40
	countersLen   = 16
)

func (s *MeterStats) append(b []byte) ([]byte, error) {
	start := len(b)
	b = zeros(put32(b, s.ID), 8)
	b = put64(put64(put32(b, s.Flows), s.Packets), s.Bytes)
	b = appendCounters(appendDuration(b, s.Duration), s.Bands)
	return b, putLength(b, start, start+4)
}

func (s *MeterStats) decode(b []byte) {
	s.ID, s.Flows, s.Packets, s.Bytes = u32(b), u32(b[12:]), u64(b[16:]), u64(b[24:])
	s.Duration = duration(b[32:])
	s.Bands = decodeCounters(b[meterStatsLen:])
}

func appendCounters(b []byte, counters []Counters) []byte {
	for _, c := range counters {
		b = put64(put64(b, c.Packets), c.Bytes)
	}
	return b
}

func decodeCounters(b []byte) []Counters {
	var counters []Counters
	for ; len(b) >= countersLen; b = b[countersLen:] {
		counters = append(counters, Counters{Packets: u64(b), Bytes: u64(b[8:])})
	}
	return counters
}
