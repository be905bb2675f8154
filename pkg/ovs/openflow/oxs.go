package openflow

import (
	"fmt"
	"time"
)

// flowCounters are a flow's counters as OpenFlow 1.5 has them: a list of fields (1.5.1, 7.2.4, OXS).
type flowCounters struct {
	duration time.Duration
	flows    uint32 // of an aggregate
	hasFlows bool
	packets  uint64
	bytes    uint64
}

// Fields of the class OFPXSC_OPENFLOW_BASIC, which has the number of OXM's basic class + 2.
const (
	classStats = 0x8002

	oxsDuration = 0
	oxsFlows    = 3
	oxsPackets  = 4
	oxsBytes    = 5
)

func (c flowCounters) append(b []byte) []byte {
	start := len(b)
	b = zeros(b, 4)
	if !c.hasFlows {
		b = appendDuration(put32(b, uint32(oxm(classStats, oxsDuration).with(false, 8))), c.duration)
	}
	b = put64(put32(b, uint32(oxm(classStats, oxsPackets).with(false, 8))), c.packets)
	b = put64(put32(b, uint32(oxm(classStats, oxsBytes).with(false, 8))), c.bytes)
	if c.hasFlows {
		b = put32(put32(b, uint32(oxm(classStats, oxsFlows).with(false, 4))), c.flows)
	}
	_ = putLength(b, start, start+2) // a few dozen bytes
	return pad8(b, start)
}

// decodeFlowCounters decodes the list that b begins with; fields of no interest, such as the idle time, are left out.
func decodeFlowCounters(b []byte) (c flowCounters, rest []byte, err error) {
	if len(b) < 4 {
		return c, nil, short("flow statistics", len(b), 4)
	}
	n := int(u16(b[2:]))
	if n < 4 || roundUp8(n) > len(b) {
		return c, nil, fmt.Errorf("flow statistics of %d bytes where %d are left", n, len(b))
	}
	rest = b[roundUp8(n):]
	for fields := b[4:n]; len(fields) > 0; {
		size, ok := oxmLen(fields)
		if !ok {
			return c, nil, fmt.Errorf("flow statistics: a field is longer than the list")
		}
		payload := fields[4:size]
		switch h := oxmHeader(u32(fields)); {
		case h.class() != classStats:
		case h.number() == oxsDuration && len(payload) == 8:
			c.duration = duration(payload)
		case h.number() == oxsFlows && len(payload) == 4:
			c.flows, c.hasFlows = u32(payload), true
		case h.number() == oxsPackets && len(payload) == 8:
			c.packets = u64(payload)
		case h.number() == oxsBytes && len(payload) == 8:
			c.bytes = u64(payload)
		}
		fields = fields[size:]
	}
	return c, rest, nil
}
