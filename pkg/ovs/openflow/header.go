package openflow

import (
	"fmt"
)

// Version is an OpenFlow version as it stands on the wire.
type Version uint8

// The versions that Open vSwitch and this package know of. Messages are encoded in Version14 and Version15.
const (
	Version10 Version = 0x01
	Version13 Version = 0x04
	Version14 Version = 0x05
	Version15 Version = 0x06
)

func (v Version) String() string {
	if v >= Version10 && v <= Version15 {
		return fmt.Sprintf("OpenFlow 1.%d", uint8(v)-1)
	}
	return fmt.Sprintf("OpenFlow version %#02x", uint8(v))
}

// HeaderLen is the length of the header that every message begins with (OpenFlow 1.4.1, 7.1.1).
const HeaderLen = 8

// Header begins every message. The length says where the next one begins.
type Header struct {
	Version Version
	Type    uint8
	Length  uint16 // bytes, header included
	XID     uint32 // pairs a reply or an error with its request
}

// ParseHeader reads the header of the message that b begins with; b holds at least HeaderLen bytes, the rest of the
// message may be still to come.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderLen {
		return Header{}, short("message", len(b), HeaderLen)
	}
	h := Header{Version: Version(b[0]), Type: b[1], Length: u16(b[2:]), XID: u32(b[4:])}
	if h.Length < HeaderLen {
		return h, fmt.Errorf("message of type %d states a length of %d bytes, less than its header", h.Type, h.Length)
	}
	return h, nil
}

// Message types (OpenFlow 1.4.1, 7.1.1, ofp_type).
const (
	typeHello           = 0
	typeError           = 1
	typeEchoRequest     = 2
	typeEchoReply       = 3
	typeExperimenter    = 4
	typeFeaturesRequest = 5
	typeFeaturesReply   = 6
	typeGetConfig       = 7
	typeGetConfigReply  = 8
	typeSetConfig       = 9
	typeFlowRemoved     = 11
	typeFlowMod         = 14
	typeGroupMod        = 15
	typeMultipart       = 18
	typeMultipartReply  = 19
	typeBarrierRequest  = 20
	typeBarrierReply    = 21
	typeRoleRequest     = 24
	typeRoleReply       = 25
	typeSetAsync        = 28
	typeMeterMod        = 29
	typeBundleControl   = 33
	typeBundleAdd       = 34
)

// Message is the body of an OpenFlow message. Implementations are pointers to the message types of this package.
type Message interface {
	messageType() uint8
	appendBody(b []byte, v Version) ([]byte, error)
}

// Append appends the message to b. On an error b is returned as it was: the message can't be expressed in that version, or a part
// of it is longer than 64 KiB.
func Append(b []byte, v Version, xid uint32, m Message) ([]byte, error) {
	start := len(b)
	out := append(b, byte(v), m.messageType(), 0, 0)
	out = put32(out, xid)
	out, err := m.appendBody(out, v)
	if err == nil {
		err = putLength(out, start, start+2)
	}
	if err != nil {
		return b, fmt.Errorf("encode %T: %w", m, err)
	}
	return out, nil
}

// Decode decodes exactly one message. A type that this package does not know gives *Unknown. The result keeps no
// reference to b. An error means that lengths contradict each other, after which a connection can't be trusted.
func Decode(b []byte) (Header, Message, error) {
	h, err := ParseHeader(b)
	if err != nil {
		return h, nil, err
	}
	if int(h.Length) != len(b) {
		return h, nil, fmt.Errorf("message of type %d states a length of %d bytes and has %d", h.Type, h.Length, len(b))
	}
	m, err := decodeBody(h, b[HeaderLen:])
	if err != nil {
		return h, nil, fmt.Errorf("decode message of type %d: %w", h.Type, err)
	}
	return h, m, nil
}

func decodeBody(h Header, body []byte) (Message, error) {
	switch h.Type {
	case typeHello:
		return decodeHello(body), nil
	case typeError:
		return decodeError(body)
	case typeEchoRequest:
		return &EchoRequest{Data: clone(body)}, nil
	case typeEchoReply:
		return &EchoReply{Data: clone(body)}, nil
	case typeFeaturesRequest:
		return &FeaturesRequest{}, nil
	case typeFeaturesReply:
		return decodeFeaturesReply(body)
	case typeGetConfig:
		return &GetConfigRequest{}, nil
	case typeGetConfigReply, typeSetConfig:
		return decodeConfig(h.Type, body)
	case typeBarrierRequest:
		return &BarrierRequest{}, nil
	case typeBarrierReply:
		return &BarrierReply{}, nil
	case typeRoleRequest, typeRoleReply:
		return decodeRole(h.Type, body)
	}
	if h.Version != Version14 && h.Version != Version15 {
		return decodeUnknown(h, body), nil // the layouts below are those of 1.4 and 1.5
	}
	switch h.Type {
	case typeExperimenter:
		return decodeExperimenter(h, body)
	case typeFlowRemoved:
		return decodeFlowRemoved(h.Version, body)
	case typeFlowMod:
		return decodeFlowMod(body)
	case typeGroupMod:
		return decodeGroupMod(h.Version, body)
	case typeMultipart:
		return decodeMultipartRequest(h, body)
	case typeMultipartReply:
		return decodeMultipartReply(h, body)
	case typeSetAsync:
		if m, ok := decodeSetAsync(body); ok {
			return m, nil
		}
	case typeMeterMod:
		return decodeMeterMod(body)
	case typeBundleControl:
		return decodeBundleControl(body)
	case typeBundleAdd:
		return decodeBundleAdd(h.Version, body)
	}
	return decodeUnknown(h, body), nil
}

// clone copies part of a message, since a decoded value outlives the connection's buffer. A copy of nothing is nil.
func clone(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return append(make([]byte, 0, len(b)), b...)
}

// Unknown is a message that this package does not know, such as OpenFlow's own packet-in. It is encoded as it came.
type Unknown struct {
	Type uint8
	Body []byte // what follows the header
}

func decodeUnknown(h Header, body []byte) *Unknown {
	return &Unknown{Type: h.Type, Body: clone(body)}
}

func (m *Unknown) messageType() uint8 { return m.Type }

func (m *Unknown) appendBody(b []byte, _ Version) ([]byte, error) {
	return append(b, m.Body...), nil
}
