package openflow

import (
	"fmt"
)

// Version is an OpenFlow version in its wire encoding.
type Version uint8

// Versions of OpenFlow. This package encodes messages in Version14; Open vSwitch may greet with others.
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

// HeaderLen is the length of the header of every message (OpenFlow 1.4.1, 7.1.1).
const HeaderLen = 8

// Header is the header of every message.
type Header struct {
	Version Version
	Type    uint8
	Length  uint16 // bytes of the message, header included
	XID     uint32 // pairs a reply or an error with its request
}

// ParseHeader parses the header at the beginning of b. b must have at least HeaderLen bytes; it need not contain the whole message.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderLen {
		return Header{}, short("message", len(b), HeaderLen)
	}
	h := Header{Version: Version(b[0]), Type: b[1], Length: u16(b[2:]), XID: u32(b[4:])}
	if h.Length < HeaderLen {
		return h, fmt.Errorf("message of type %d: length %d is less than that of the header", h.Type, h.Length)
	}
	return h, nil
}

// Message types (OpenFlow 1.4.1, 7.1.1, ofp_type).
const (
	typeHello          = 0
	typeError          = 1
	typeEchoRequest    = 2
	typeEchoReply      = 3
	typeExperimenter   = 4
	typeSetConfig      = 9
	typePacketOut      = 13
	typeFlowMod        = 14
	typeGroupMod       = 15
	typeMultipart      = 18
	typeMultipartReply = 19
	typeBarrierRequest = 20
	typeBarrierReply   = 21
	typeSetAsync       = 28
	typeMeterMod       = 29
	typeRequestForward = 32
	typeBundleControl  = 33
	typeBundleAdd      = 34
)

// Message is the body of an OpenFlow message. Implementations are pointers to the message types of this package.
type Message interface {
	messageType() uint8
	appendBody(b []byte) ([]byte, error)
}

// Append appends the message, encoded in Version14, to b. It returns b unchanged and an error if the message is invalid, or if an
// element exceeds its 16-bit length field.
func Append(b []byte, xid uint32, m Message) ([]byte, error) {
	start := len(b)
	out := append(b, byte(Version14), m.messageType(), 0, 0)
	out = put32(out, xid)
	out, err := m.appendBody(out)
	if err == nil {
		err = putLength(out, start, start+2)
	}
	if err != nil {
		return b, fmt.Errorf("encode %T: %w", m, err)
	}
	return out, nil
}

// Decode decodes exactly one message. A message of an unsupported type becomes *Unknown. The result does not refer to b. An error
// means that lengths are inconsistent; the caller must then close the connection.
func Decode(b []byte) (Header, Message, error) {
	h, err := ParseHeader(b)
	if err != nil {
		return h, nil, err
	}
	if int(h.Length) != len(b) {
		return h, nil, fmt.Errorf("message of type %d: length %d in the header, %d bytes received", h.Type, h.Length, len(b))
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
	case typeSetConfig:
		return decodeSetConfig(body)
	case typeBarrierRequest:
		return &BarrierRequest{}, nil
	case typeBarrierReply:
		return &BarrierReply{}, nil
	}
	if h.Version != Version14 {
		return decodeUnknown(h, body), nil // the layouts below are defined for 1.4 only
	}
	switch h.Type {
	case typeExperimenter:
		return decodeExperimenter(h, body)
	case typePacketOut:
		if m, ok := decodePacketOut(body); ok {
			return m, nil
		}
	case typeFlowMod:
		return decodeFlowMod(body)
	case typeGroupMod:
		return decodeGroupMod(body)
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
	case typeRequestForward:
		return &RequestForward{Request: clone(body)}, nil
	case typeBundleControl:
		return decodeBundleControl(body)
	case typeBundleAdd:
		return decodeBundleAdd(body)
	}
	return decodeUnknown(h, body), nil
}

// clone copies part of a message, because a decoded value outlives the connection's buffer. A copy of no bytes is nil.
func clone(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return append(make([]byte, 0, len(b)), b...)
}

// Unknown is a message that this package does not support, such as the standard packet-in. It is encoded as it arrived.
type Unknown struct {
	Type uint8
	Body []byte // without the header
}

func decodeUnknown(h Header, body []byte) *Unknown {
	return &Unknown{Type: h.Type, Body: clone(body)}
}

func (m *Unknown) messageType() uint8 { return m.Type }

func (m *Unknown) appendBody(b []byte) ([]byte, error) {
	return append(b, m.Body...), nil
}
