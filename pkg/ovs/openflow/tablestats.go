package openflow

// TableStatsRequest requests the counters of all tables.
type TableStatsRequest struct{}

// TableStatsReply is one message of the counters of tables.
type TableStatsReply struct {
	Part
	Tables []TableStats
}

// TableStats are the counters of one table (OpenFlow 1.4.1, 7.3.5.3, ofp_table_stats).
type TableStats struct {
	Table   uint8
	Active  uint32 // flows
	Lookups uint64 // packets
	Matched uint64 // packets
}

// tableStatsLen is the length of ofp_table_stats.
const tableStatsLen = 24

func (*TableStatsRequest) messageType() uint8 { return typeMultipart }

func (*TableStatsRequest) appendBody(b []byte) ([]byte, error) {
	return appendRequest(b, multipartTable), nil
}

func (m *TableStatsReply) appendBody(b []byte) ([]byte, error) {
	b = m.append(b, multipartTable)
	for _, t := range m.Tables {
		b = put32(zeros(append(b, t.Table), 3), t.Active)
		b = put64(put64(b, t.Lookups), t.Matched)
	}
	return b, nil
}

func decodeTableStatsReply(p Part, b []byte) (Message, error) {
	if extra := len(b) % tableStatsLen; extra != 0 {
		return nil, short("table statistics", extra, tableStatsLen)
	}
	m := &TableStatsReply{Part: p}
	for ; len(b) > 0; b = b[tableStatsLen:] {
		m.Tables = append(m.Tables, TableStats{Table: b[0], Active: u32(b[4:]), Lookups: u64(b[8:]), Matched: u64(b[16:])})
	}
	return m, nil
}
