package openflow

// FlowFilter selects flows. Its zero value selects all flows of table 0.
type FlowFilter struct {
	Table      uint8 // AllTables: every table
	Cookie     uint64
	CookieMask uint64 // select only flows whose cookie equals Cookie in these bits
	Match      Match  // select only flows whose match is equal or more specific
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

// FlowStatsRequest requests a dump of flows.
type FlowStatsRequest struct {
	FlowFilter
}

// FlowStatsReply is one message of a dump of flows.
type FlowStatsReply struct {
	Part
	Flows []FlowStats
}

func (*FlowStatsRequest) messageType() uint8 { return typeMultipart }

func (m *FlowStatsRequest) appendBody(b []byte) ([]byte, error) {
	return m.append(appendRequest(b, multipartFlow))
}

func (m *FlowStatsReply) appendBody(b []byte) ([]byte, error) {
	b = m.append(b, multipartFlow)
	for i := range m.Flows {
		var err error
		if b, err = m.Flows[i].append(b); err != nil {
			return b, err
		}
	}
	return b, nil
}

func decodeFlowStatsReply(p Part, b []byte) (Message, error) {
	const smallest = flowStatsLen + 8 // with an empty match
	m := &FlowStatsReply{Part: p}
	if n := count(b, 0, smallest); n > 0 {
		m.Flows = make([]FlowStats, 0, n)
	}
	err := entries("flow dump", b, 0, smallest, func(entry []byte) error {
		m.Flows = append(m.Flows, FlowStats{})
		return m.Flows[len(m.Flows)-1].decode(entry)
	})
	return m, err
}
