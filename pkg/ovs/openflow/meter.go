package openflow

import (
	"fmt"
	"strconv"
)

// MeterFlags are the unit of a meter's rates and other options (OpenFlow 1.4.1, 7.3.4.4, ofp_meter_flags).
type MeterFlags uint16

// Meter flags.
const (
	MeterKbps   MeterFlags = 1 << 0 // kilobits per second
	MeterPktps  MeterFlags = 1 << 1 // packets per second
	MeterBurst  MeterFlags = 1 << 2 // bands have a burst size
	MeterCounts MeterFlags = 1 << 3 // collect statistics
)

// Meter is a rate limit for the packets that are sent to it.
type Meter struct {
	ID    uint32 // 1 or higher
	Flags MeterFlags
	Bands []Band
}

// BandType is the action on packets above a band's rate.
type BandType uint16

// The types.
const (
	BandDrop       BandType = 1
	BandDSCPRemark BandType = 2
)

// Band is a rate and the action on packets above it.
type Band struct {
	Type      BandType
	Rate      uint32 // kilobits or packets per second
	Burst     uint32 // kilobits or packets, with MeterBurst; otherwise the switch uses a default, which is not decoded
	PrecLevel uint8  // BandDSCPRemark: increment of the drop precedence
}

// MeterCommand is the operation of a MeterMod.
type MeterCommand uint16

// The commands.
const (
	MeterAdd    MeterCommand = 0
	MeterModify MeterCommand = 1
	MeterDelete MeterCommand = 2
)

// AllMeters in a delete or a request selects every meter (OFPM_ALL).
const AllMeters uint32 = 0xffffffff

// MeterMod adds, modifies or deletes a meter.
type MeterMod struct {
	Command MeterCommand
	Meter   Meter
}

const bandLen = 16

func (*MeterMod) messageType() uint8 { return typeMeterMod }

func (m *MeterMod) appendBody(b []byte) ([]byte, error) {
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
			return fmt.Errorf("meter %d: invalid band length in the last %d bytes", m.ID, len(b))
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

// String returns the meter as `ovs-ofctl dump-meters` prints it, with spaces instead of line breaks.
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
