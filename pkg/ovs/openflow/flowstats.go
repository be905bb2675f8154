package openflow

// FlowFilter chooses flows. Its zero value chooses those of table 0 that match anything.
type FlowFilter struct {
	Table      uint8 // AllTables: every table
	Cookie     uint64
	CookieMask uint64 // only flows whose cookie equals Cookie in these bits
	Match      Match  // only flows whose match is as narrow or narrower
}

func (f FlowFilter) append(b []byte) ([]byte, error) {
	b = zeros(append(b, f.Table), 3)
	b = zeros(put32(put32(b, anyPort), anyGroup), 4)
	return f.Match.append(put64(put64(b, f.Cookie), f.CookieMask))
}

func decodeFlowFilter(b []byte) (f FlowFilter, err error) {
	const fixed = 32
	if len(b) < fixed {
		return f, short("flow request", len(b), fixed)
	}
	f = FlowFilter{Table: b[0], Cookie: u64(b[16:]), CookieMask: u64(b[24:])}
	f.Match, _, err = decodeMatch(b[fixed:])
	return f, err
}

// FlowStatsRequest asks for the flows themselves.
type FlowStatsRequest struct {
	FlowFilter
}

// FlowStatsReply is a part of a dump.
type FlowStatsReply struct {
	Part
	Flows []FlowStats
}

func (*FlowStatsRequest) messageType() uint8 { return typeMultipart }

func (m *FlowStatsRequest) appendBody(b []byte, _ Version) ([]byte, error) {
	return m.append(appendRequest(b, multipartFlow))
}

func (m *FlowStatsReply) appendBody(b []byte, v Version) ([]byte, error) {
	b = m.append(b, multipartFlow)
	for i := range m.Flows {
		var err error
		if b, err = m.Flows[i].append(b, v); err != nil {
			return b, err
		}
	}
	return b, nil
}

func decodeFlowStatsReply(v Version, p Part, b []byte) (Message, error) {
	const smallest = 32 // of either version: fixed part and an empty match
	m := &FlowStatsReply{Part: p}
	if n := count(b, 0, smallest); n > 0 {
		m.Flows = make([]FlowStats, 0, n)
	}
	err := entries("flow dump", b, 0, smallest, func(entry []byte) error {
		m.Flows = append(m.Flows, FlowStats{})
		return m.Flows[len(m.Flows)-1].decode(entry, v)
	})
	return m, err
}

// AggregateRequest asks for the sum of flows.
type AggregateRequest struct {
	FlowFilter
}

// AggregateReply is the sum.
type AggregateReply struct {
	Part
	Packets uint64
	Bytes   uint64
	Flows   uint32
}

func (*AggregateRequest) messageType() uint8 { return typeMultipart }

func (m *AggregateRequest) appendBody(b []byte, _ Version) ([]byte, error) {
	return m.append(appendRequest(b, multipartAggregate))
}

func (m *AggregateReply) appendBody(b []byte, v Version) ([]byte, error) {
	b = m.append(b, multipartAggregate)
	if v >= Version15 {
		return flowCounters{packets: m.Packets, bytes: m.Bytes, flows: m.Flows, hasFlows: true}.append(b), nil
	}
	return zeros(put32(put64(put64(b, m.Packets), m.Bytes), m.Flows), 4), nil
}

func decodeAggregateReply(v Version, p Part, b []byte) (Message, error) {
	const fixed = 24
	if v >= Version15 {
		c, _, err := decodeFlowCounters(b)
		return &AggregateReply{Part: p, Packets: c.packets, Bytes: c.bytes, Flows: c.flows}, err
	}
	if len(b) < fixed {
		return nil, short("aggregate", len(b), fixed)
	}
	return &AggregateReply{Part: p, Packets: u64(b), Bytes: u64(b[8:]), Flows: u32(b[16:])}, nil
}
