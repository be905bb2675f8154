package openflow

import (
	"fmt"
	"strings"
)

// Multipart types (OpenFlow 1.4.1, 7.3.5, ofp_multipart_type).
const (
	multipartDesc        = 0
	multipartFlow        = 1
	multipartTable       = 3
	multipartPort        = 4
	multipartGroupDesc   = 7
	multipartMeterConfig = 10
	multipartFlowMonitor = 16
)

// multipartHeader is the length of the header of every multipart request and reply: type, flags, padding.
const multipartHeader = 8

// moreFlag marks a reply that is not the last one (OFPMPF_REPLY_MORE).
const moreFlag = 1

// Part is embedded in every multipart reply, which may consist of several messages with the same XID.
type Part struct {
	More bool // another message of this reply follows
}

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

// decodeMultipartRequest decodes requests, for tests and for programs that act as a switch.
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
	case multipartTable:
		return &TableStatsRequest{}, nil
	case multipartPort:
		return decodePortStatsRequest(body)
	case multipartGroupDesc:
		return &GroupDescRequest{}, nil
	case multipartMeterConfig:
		return &MeterConfigRequest{Meter: decodeID(body)}, nil
	case multipartFlowMonitor:
		return decodeFlowMonitorRequest(body)
	}
	return decodeUnknown(h, b), nil
}

// decodeID returns the ID of the meter at the beginning of a request's body, or 0 if the body is empty.
func decodeID(body []byte) uint32 {
	if len(body) < 4 {
		return 0
	}
	return u32(body)
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
		return decodeFlowStatsReply(part, body)
	case multipartTable:
		return decodeTableStatsReply(part, body)
	case multipartPort:
		return decodePortStatsReply(part, body)
	case multipartGroupDesc:
		return decodeGroupDescReply(part, body)
	case multipartMeterConfig:
		return decodeMeterConfigReply(part, body)
	case multipartFlowMonitor:
		return decodeFlowMonitorReply(part, body)
	}
	return decodeUnknown(h, b), nil
}

// count returns the number of entries that entries would yield, for allocation: a length in the message is not trusted.
func count(b []byte, at, smallest int) int {
	for n := 0; ; n++ {
		_, rest, ok := tlv(b, at, smallest)
		if !ok {
			return n
		}
		b = rest
	}
}

// entries calls f for each entry of a reply's body. Each entry has its 16-bit length at offset at.
func entries(part string, b []byte, at, smallest int, f func(entry []byte) error) error {
	for len(b) > 0 {
		entry, rest, ok := tlv(b, at, smallest)
		if !ok {
			return fmt.Errorf("%s: invalid entry length in the last %d bytes", part, len(b))
		}
		if err := f(entry); err != nil {
			return err
		}
		b = rest
	}
	return nil
}

// DescRequest requests a DescReply.
type DescRequest struct{}

// DescReply describes the switch.
type DescReply struct {
	Part
	Manufacturer string
	Hardware     string
	Software     string // for Open vSwitch its version, such as 3.1.0
	Serial       string
	Datapath     string
}

// Lengths of the strings in ofp_desc (OpenFlow 1.4.1, 7.3.5.1).
const (
	descLen   = 256
	serialLen = 32
)

func (*DescRequest) messageType() uint8 { return typeMultipart }

func (*DescRequest) appendBody(b []byte) ([]byte, error) {
	return appendRequest(b, multipartDesc), nil
}

func (m *DescReply) appendBody(b []byte) ([]byte, error) {
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

// cString returns the string up to the first zero byte, or all of b.
func cString(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}
