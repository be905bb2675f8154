package openflow

import "fmt"

// PacketOut makes the switch process a packet (OpenFlow 1.4.1, 7.3.6, ofp_packet_out): Output to PortTable passes it to the flow tables, as if it had arrived at InPort.
type PacketOut struct {
	InPort  Port // or PortController; Open vSwitch does not verify that the port exists
	Actions []Action
	Packet  []byte // from the Ethernet header on
}

// packetOutLen is the length of the body without actions and packet.
const packetOutLen = 16

func (*PacketOut) messageType() uint8 { return typePacketOut }

func (m *PacketOut) appendBody(b []byte) ([]byte, error) {
	if err := m.InPort.check(); err != nil {
		return b, err
	}
	start := len(b)
	b = put32(put32(b, noBuffer), uint32(m.InPort))
	b = zeros(b, packetOutLen-8)
	actions := len(b)
	b, err := appendActions(b, m.Actions)
	if err != nil {
		return b, err
	}
	if err := putLength(b, actions, start+8); err != nil {
		return b, fmt.Errorf("actions: %w", err)
	}
	return append(b, m.Packet...), nil
}

// decodePacketOut decodes the message; ok is false if it refers to a buffer, or lengths are inconsistent.
func decodePacketOut(b []byte) (m *PacketOut, ok bool) {
	if len(b) < packetOutLen || u32(b) != noBuffer {
		return nil, false
	}
	n := int(u16(b[8:]))
	if !allZero(b[10:packetOutLen]) || len(b)-packetOutLen < n || n%8 != 0 {
		return nil, false
	}
	m = &PacketOut{InPort: Port(u32(b[4:])), Actions: decodeActions(b[packetOutLen : packetOutLen+n]), Packet: clone(b[packetOutLen+n:])}
	return m, m.InPort.check() == nil
}
