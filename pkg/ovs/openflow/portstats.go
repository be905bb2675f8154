package openflow

import "time"

// PortStatsRequest requests the counters of a port, or of all ports (PortAny).
type PortStatsRequest struct{ Port Port }

// PortStatsReply is one message of the counters of ports.
type PortStatsReply struct {
	Part
	Ports []PortStats
}

// PortStats are the counters of one port (OpenFlow 1.4.1, 7.3.5.6, ofp_port_stats). The switch receives what the device behind the port sends. A counter that
// the port does not have is NoCounter.
type PortStats struct {
	Port                 Port
	Seconds, Nanoseconds uint32 // since the port was added: see Age
	ReceivedPackets      uint64
	SentPackets          uint64
	ReceivedBytes        uint64
	SentBytes            uint64
	ReceivedDropped      uint64 // packets
	SentDropped          uint64 // packets
	ReceivedErrors       uint64 // packets
	SentErrors           uint64 // packets
}

// NoCounter is the value of counters that a port does not have.
const NoCounter = ^uint64(0)

// Age returns the time since the switch added the port, by its monotonic clock.
func (s *PortStats) Age() time.Duration {
	return time.Duration(s.Seconds)*time.Second + time.Duration(s.Nanoseconds)
}

// counters returns the counters in the order of ofp_port_stats.
func (s *PortStats) counters() [8]*uint64 {
	return [...]*uint64{
		&s.ReceivedPackets, &s.SentPackets, &s.ReceivedBytes, &s.SentBytes, &s.ReceivedDropped, &s.SentDropped, &s.ReceivedErrors, &s.SentErrors,
	}
}

// Lengths of ofp_port_stats without properties: to the first counter, and of all.
const (
	portStatsHead = 16
	portStatsLen  = portStatsHead + 8*8
)

func (*PortStatsRequest) messageType() uint8 { return typeMultipart }

func (m *PortStatsRequest) appendBody(b []byte) ([]byte, error) {
	return zeros(put32(appendRequest(b, multipartPort), uint32(m.Port)), 4), nil
}

func decodePortStatsRequest(b []byte) (Message, error) {
	const fixed = 8
	if len(b) < fixed {
		return nil, short("request for port statistics", len(b), fixed)
	}
	return &PortStatsRequest{Port(u32(b))}, nil
}

func (m *PortStatsReply) appendBody(b []byte) ([]byte, error) {
	b = m.append(b, multipartPort)
	for i := range m.Ports {
		s := &m.Ports[i]
		b = put32(zeros(put16(b, portStatsLen), 2), uint32(s.Port))
		b = put32(put32(b, s.Seconds), s.Nanoseconds)
		for _, c := range s.counters() {
			b = put64(b, *c)
		}
	}
	return b, nil
}

// decodePortStatsReply skips properties, such as the collisions of an Ethernet port.
func decodePortStatsReply(p Part, b []byte) (Message, error) {
	m := &PortStatsReply{Part: p, Ports: make([]PortStats, 0, count(b, 0, portStatsLen))}
	err := entries("port statistics", b, 0, portStatsLen, func(entry []byte) error {
		s := PortStats{Port: Port(u32(entry[4:])), Seconds: u32(entry[8:]), Nanoseconds: u32(entry[12:])}
		for i, c := range s.counters() {
			*c = u64(entry[portStatsHead+8*i:])
		}
		m.Ports = append(m.Ports, s)
		return nil
	})
	return m, err
}
