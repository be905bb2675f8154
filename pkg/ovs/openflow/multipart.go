package openflow

import (
	"fmt"
	"strings"
)

// Multipart types (OpenFlow 1.4.1, 7.3.5, ofp_multipart_type).
const (
	multipartDesc        = 0
	multipartFlow        = 1
	multipartAggregate   = 2
	multipartGroup       = 6
	multipartGroupDesc   = 7
	multipartMeter       = 9
	multipartMeterConfig = 10
	multipartPortDesc    = 13
	multipartFlowMonitor = 16
)

// multipartHeader is what every request and reply begins with: type, flags, padding.
const multipartHeader = 8

// moreFlag says that further replies follow (OFPMPF_REPLY_MORE).
const moreFlag = 1

// A Multipart is a reply that may come in several messages of one XID.
type Multipart interface {
	Message
	// HasMore reports whether another message of this reply follows.
	HasMore() bool
}

// Part is embedded in every multipart reply.
type Part struct {
	More bool // another message of this reply follows
}

// HasMore implements Multipart.
func (p Part) HasMore() bool { return p.More }

func (Part) messageType() uint8 { return typeMultipartReply }

func (p Part) append(b []byte, typ uint16) []byte {
	var flags uint16
	if p.More {
		flags = moreFlag
	}
	return zeros(put16(put16(b, typ), flags), 4)
}

func appendRequest(b []byte, typ uint16) []byte {
	return zeros(put16(b, typ), 6)
}

// decodeMultipartRequest exists for tests and for what stands between a controller and a switch.
func decodeMultipartRequest(h Header, b []byte) (Message, error) {
	if len(b) < multipartHeader {
		return nil, short("multipart request", len(b), multipartHeader)
	}
	body := b[multipartHeader:]
	switch u16(b) {
	case multipartDesc:
		return &DescRequest{}, nil
	case multipartFlow:
		f, err := decodeFlowFilter(body)
		return &FlowStatsRequest{f}, err
	case multipartAggregate:
		f, err := decodeFlowFilter(body)
		return &AggregateRequest{f}, err
	case multipartGroup, multipartGroupDesc, multipartMeter, multipartMeterConfig, multipartPortDesc:
		return decodeIDRequest(h, u16(b), body), nil
	case multipartFlowMonitor:
		return decodeFlowMonitorRequest(body)
	}
	return decodeUnknown(h, b), nil
}

func decodeIDRequest(h Header, typ uint16, body []byte) Message {
	var id uint32
	if len(body) >= 4 {
		id = u32(body)
	}
	switch typ {
	case multipartGroup:
		return &GroupStatsRequest{Group: id}
	case multipartGroupDesc:
		if h.Version < Version15 {
			id = AllGroups
		}
		return &GroupDescRequest{Group: id}
	case multipartMeter:
		return &MeterStatsRequest{Meter: id}
	case multipartMeterConfig:
		return &MeterConfigRequest{Meter: id}
	}
	return &PortDescRequest{}
}

func decodeMultipartReply(h Header, b []byte) (Message, error) {
	if len(b) < multipartHeader {
		return nil, short("multipart reply", len(b), multipartHeader)
	}
	part := Part{More: u16(b[2:])&moreFlag != 0}
	body := b[multipartHeader:]
	switch u16(b) {
	case multipartDesc:
		return decodeDescReply(part, body)
	case multipartFlow:
		return decodeFlowStatsReply(h.Version, part, body)
	case multipartAggregate:
		return decodeAggregateReply(h.Version, part, body)
	case multipartGroup:
		return decodeGroupStatsReply(part, body)
	case multipartGroupDesc:
		return decodeGroupDescReply(h.Version, part, body)
	case multipartMeter:
		return decodeMeterStatsReply(part, body)
	case multipartMeterConfig:
		return decodeMeterConfigReply(part, body)
	case multipartPortDesc:
		return decodePortDescReply(part, body)
	case multipartFlowMonitor:
		return decodeFlowMonitorReply(part, body)
	}
	return decodeUnknown(h, b), nil
}

// count returns how many entries entries would yield, so that room is made once, and only for what is there.
func count(b []byte, at, smallest int) int {
	for n := 0; ; n++ {
		_, rest, ok := tlv(b, at, smallest)
		if !ok {
			return n
		}
		b = rest
	}
}

// entries cuts a reply's body into entries, which state their length in 16 bits at offset at.
func entries(part string, b []byte, at, smallest int, f func(entry []byte) error) error {
	for len(b) > 0 {
		entry, rest, ok := tlv(b, at, smallest)
		if !ok {
			return fmt.Errorf("%s: an entry's length does not fit into the %d bytes that are left", part, len(b))
		}
		if err := f(entry); err != nil {
			return err
		}
		b = rest
	}
	return nil
}

// DescRequest asks for DescReply.
type DescRequest struct{}

// DescReply says which switch this is.
type DescReply struct {
	Part
	Manufacturer string
	Hardware     string
	Software     string // of Open vSwitch its version, such as 3.1.0
	Serial       string
	Datapath     string
}

// Lengths of the strings in ofp_desc (OpenFlow 1.4.1, 7.3.5.1).
const (
	descLen   = 256
	serialLen = 32
)

func (*DescRequest) messageType() uint8 { return typeMultipart }

func (*DescRequest) appendBody(b []byte, _ Version) ([]byte, error) {
	return appendRequest(b, multipartDesc), nil
}

func (m *DescReply) appendBody(b []byte, _ Version) ([]byte, error) {
	b = m.append(b, multipartDesc)
	for _, s := range []struct {
		text string
		size int
	}{{m.Manufacturer, descLen}, {m.Hardware, descLen}, {m.Software, descLen}, {m.Serial, serialLen}, {m.Datapath, descLen}} {
		if len(s.text) >= s.size {
			return b, fmt.Errorf("%q is longer than %d bytes", excerpt(s.text), s.size-1)
		}
		b = zeros(append(b, s.text...), s.size-len(s.text))
	}
	return b, nil
}

func decodeDescReply(p Part, b []byte) (Message, error) {
	const fixed = 4*descLen + serialLen
	if len(b) < fixed {
		return nil, short("switch description", len(b), fixed)
	}
	return &DescReply{
		Part:         p,
		Manufacturer: cString(b[:descLen]),
		Hardware:     cString(b[descLen : 2*descLen]),
		Software:     cString(b[2*descLen : 3*descLen]),
		Serial:       cString(b[3*descLen : 3*descLen+serialLen]),
		Datapath:     cString(b[3*descLen+serialLen : fixed]),
	}, nil
}

// cString reads a string that ends with a zero byte or with b.
func cString(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}
