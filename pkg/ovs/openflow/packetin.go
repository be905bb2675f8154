package openflow

import (
	"math"
)

// PacketIn is a packet that a flow sent to a controller, with its metadata. Open vSwitch sends this form (NXT_PACKET_IN2) on connections
// that requested it with SetPacketInFormat.
type PacketIn struct {
	Packet   []byte // from the Ethernet header on, as many bytes as the action sends
	FullLen  uint32 // length of the packet in bytes
	Table    uint8  // of the flow
	Cookie   uint64 // of the flow; NoCookie if no flow sent the packet
	Reason   uint8  // ofp_packet_in_reason
	Metadata Match  // in_port, registers, tunnel and conntrack fields that are not 0
	Userdata []byte // of the controller action
}

// NoCookie is the cookie of a packet-in that no flow caused.
const NoCookie = math.MaxUint64

// Properties of NXT_PACKET_IN2 (enum nx_packet_in2_prop_type in Open vSwitch's nicira-ext.h). Other properties are ignored.
const (
	packetInPacket   = 0
	packetInFullLen  = 1
	packetInBufferID = 2
	packetInTable    = 3
	packetInCookie   = 4
	packetInReason   = 5
	packetInMetadata = 6
	packetInUserdata = 7
)

func (*PacketIn) messageType() uint8 { return typeExperimenter }

func (m *PacketIn) appendBody(b []byte) ([]byte, error) {
	b = appendNiciraMessage(b, nxtPacketIn2)
	b, err := appendPropertyBytes(b, packetInPacket, m.Packet)
	if err != nil {
		return b, err
	}
	if m.FullLen != uint32(len(m.Packet)) {
		b = put32(appendHeader(b, packetInFullLen, 8), m.FullLen)
	}
	b = appendProperty8(b, packetInTable, m.Table)
	if m.Cookie != NoCookie {
		b = put64(zeros(appendHeader(b, packetInCookie, 16), 4), m.Cookie)
	}
	b = appendProperty8(b, packetInReason, m.Reason)
	if b, err = appendPropertyBytes(b, packetInMetadata, []byte(m.Metadata.oxm)); err != nil {
		return b, err
	}
	if len(m.Userdata) > 0 {
		return appendPropertyBytes(b, packetInUserdata, m.Userdata)
	}
	return b, nil
}

func appendPropertyBytes(b []byte, typ uint16, payload []byte) ([]byte, error) {
	start := len(b)
	b = append(appendHeader(b, typ, 0), payload...)
	if err := putLength(b, start, start+2); err != nil {
		return b, err
	}
	return pad8(b, start), nil
}

// decodePacketIn decodes a list of properties; ok is false if their lengths are inconsistent.
func decodePacketIn(b []byte) (m *PacketIn, ok bool) {
	m = &PacketIn{Cookie: NoCookie}
	for len(b) > 0 {
		typ, payload, rest, ok := property(b)
		if !ok || !m.decode(typ, payload) {
			return nil, false
		}
		b = rest
	}
	if m.FullLen == 0 {
		m.FullLen = uint32(len(m.Packet))
	}
	return m, true
}

func (m *PacketIn) decode(typ uint16, payload []byte) bool {
	n := len(payload)
	switch {
	case typ == packetInPacket:
		m.Packet = clone(payload)
	case typ == packetInFullLen && n == 4:
		m.FullLen = u32(payload)
	case typ == packetInTable && n == 1:
		m.Table = payload[0]
	case typ == packetInCookie && n == 12:
		m.Cookie = u64(payload[4:]) // after padding
	case typ == packetInReason && n == 1:
		m.Reason = payload[0]
	case typ == packetInMetadata:
		m.Metadata = canonicalMatch(payload)
	case typ == packetInUserdata:
		m.Userdata = clone(payload)
	default:
		return typ > packetInUserdata || typ == packetInBufferID
	}
	return true
}

// PacketInFormat is a format of packet-ins.
type PacketInFormat uint32

// PacketInNicira2 is the format of PacketIn (NXT_SET_PACKET_IN_FORMAT). The default is the OpenFlow format, which decodes to Unknown.
const PacketInNicira2 PacketInFormat = 2

// SetPacketInFormat sets the format of packet-ins on this connection.
type SetPacketInFormat struct {
	Format PacketInFormat
}

func (*SetPacketInFormat) messageType() uint8 { return typeExperimenter }

func (m *SetPacketInFormat) appendBody(b []byte) ([]byte, error) {
	return put32(appendNiciraMessage(b, nxtSetPacketInFormat), uint32(m.Format)), nil
}

// SetControllerID sets the controller ID of this connection (NXT_SET_CONTROLLER_ID), which is 0 by default: Controller actions select
// connections by it.
type SetControllerID struct {
	ID uint16
}

func (*SetControllerID) messageType() uint8 { return typeExperimenter }

func (m *SetControllerID) appendBody(b []byte) ([]byte, error) {
	return put16(zeros(appendNiciraMessage(b, nxtSetControllerID), 6), m.ID), nil
}

// SetAsync selects the asynchronous messages for this connection in the roles equal and primary; each field is a bitmap of reasons, bit
// 1<<reason (OpenFlow 1.4.1, 7.3.10). On a bridge's management socket no asynchronous messages but those of
// flow monitors arrive while SetConfig.MissSendLen is 0.
type SetAsync struct {
	PacketIn    uint32 // ofp_packet_in_reason
	PortStatus  uint32 // ofp_port_reason
	FlowRemoved uint32 // ofp_flow_removed_reason

	RequestForward uint32 // ofp_requestforward_reason
}

// Reasons of a RequestForward (OpenFlow 1.4.1, 7.4.6, ofp_requestforward_reason).
const (
	ReasonGroupMod = 0
	ReasonMeterMod = 1
)

// Properties of the asynchronous configuration (OpenFlow 1.4.1, 7.3.10, ofp_async_config_prop_type) for the roles equal and primary.
const (
	asyncPacketIn    = 1
	asyncPortStatus  = 3
	asyncFlowRemoved = 5

	asyncRequestForward = 11
)

func (*SetAsync) messageType() uint8 { return typeSetAsync }

func (m *SetAsync) appendBody(b []byte) ([]byte, error) {
	b = put32(appendHeader(b, asyncPacketIn, 8), m.PacketIn)
	b = put32(appendHeader(b, asyncPortStatus, 8), m.PortStatus)
	b = put32(appendHeader(b, asyncFlowRemoved, 8), m.FlowRemoved)
	return put32(appendHeader(b, asyncRequestForward, 8), m.RequestForward), nil
}

// decodeSetAsync is the inverse of SetAsync.appendBody; ok is false if the message has other or fewer properties.
func decodeSetAsync(b []byte) (m *SetAsync, ok bool) {
	const size = 8 // of a property
	if len(b) != 4*size {
		return nil, false
	}
	for i, typ := range []uint16{asyncPacketIn, asyncPortStatus, asyncFlowRemoved, asyncRequestForward} {
		if u16(b[i*size:]) != typ || u16(b[i*size+2:]) != size {
			return nil, false
		}
	}
	return &SetAsync{PacketIn: u32(b[4:]), PortStatus: u32(b[size+4:]), FlowRemoved: u32(b[2*size+4:]), RequestForward: u32(b[3*size+4:])}, true
}
