package ovs

import (
	"fmt"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

// Meter drops packets above a rate.
type Meter struct {
	ID    uint32 // 1 to 0xffff0000
	Unit  MeterUnit
	Rate  uint32 // units per second, at least 1
	Burst uint32 // units; 0: the default of Open vSwitch
}

// MeterUnit is the unit of a meter's rate and burst.
type MeterUnit int

// Units of meters.
const (
	Kilobits MeterUnit = iota + 1 // 1,000 bits, of the whole frame
	Packets
)

// MeterText returns the meter in the syntax of ovs-ofctl.
func MeterText(m Meter) (string, error) {
	var unit string
	switch {
	case m.ID < 1 || m.ID > maxMeter:
		return "", fmt.Errorf("meter=%d: the ID must be 1 to %d", m.ID, uint32(maxMeter))
	case m.Rate == 0:
		return "", fmt.Errorf("meter=%d: rate 0; use a flow with the action drop to drop all packets", m.ID)
	case m.Unit == Kilobits:
		unit = "kbps"
	case m.Unit == Packets:
		unit = "pktps"
	default:
		return "", fmt.Errorf("meter=%d: invalid unit %d, want Kilobits or Packets", m.ID, m.Unit)
	}
	text := fmt.Sprintf("meter=%d,%s", m.ID, unit)
	if m.Burst > 0 {
		text += ",burst"
	}
	text += fmt.Sprintf(",band=type=drop,rate=%d", m.Rate)
	if m.Burst > 0 {
		text += fmt.Sprintf(",burst_size=%d", m.Burst)
	}
	return text, nil
}

// CompileMeter encodes a meter that MeterText accepts.
func CompileMeter(m Meter) openflow.Meter {
	band := openflow.Band{Type: openflow.BandDrop, Rate: m.Rate, Burst: m.Burst}
	compiled := openflow.Meter{ID: m.ID, Flags: openflow.MeterKbps, Bands: []openflow.Band{band}}
	if m.Unit == Packets {
		compiled.Flags = openflow.MeterPktps
	}
	if m.Burst > 0 {
		compiled.Flags |= openflow.MeterBurst
	}
	return compiled
}

// ParseMeter is the reverse of CompileMeter. It returns false for meters that Meter can't express.
func ParseMeter(m openflow.Meter) (Meter, bool) {
	if len(m.Bands) != 1 || m.Bands[0].Type != openflow.BandDrop {
		return Meter{}, false
	}
	parsed := Meter{ID: m.ID, Unit: Kilobits, Rate: m.Bands[0].Rate}
	if m.Flags&openflow.MeterPktps != 0 {
		parsed.Unit = Packets
	}
	if m.Flags&openflow.MeterBurst != 0 {
		parsed.Burst = m.Bands[0].Burst
	}
	return parsed, true
}
