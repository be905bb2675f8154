package ovs

import (
	"fmt"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

// Meter drops the packets that exceed a rate.
type Meter struct {
	ID    uint32 // 1 to 0xffff0000
	Unit  MeterUnit
	Rate  uint32 // units per second, from 1
	Burst uint32 // units; 0: the switch's own choice
}

// MeterUnit is what a meter counts.
type MeterUnit int

// The units.
const (
	Kilobits MeterUnit = iota + 1 // 1,000 bits each, of the whole frame
	Packets
)

// MeterText returns the meter as ovs-ofctl reads it.
func MeterText(m Meter) (string, error) {
	var unit string
	switch {
	case m.ID < 1 || m.ID > maxMeter:
		return "", fmt.Errorf("meter=%d: the number must be 1 to %d", m.ID, uint32(maxMeter))
	case m.Rate == 0:
		return "", fmt.Errorf("meter=%d: a rate of 0 would drop everything; that is a flow's affair", m.ID)
	case m.Unit == Kilobits:
		unit = "kbps"
	case m.Unit == Packets:
		unit = "pktps"
	default:
		return "", fmt.Errorf("meter=%d: unit %d is neither Kilobits nor Packets", m.ID, m.Unit)
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

// compileMeter encodes the meter, which MeterText has accepted.
func compileMeter(m Meter) openflow.Meter {
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
