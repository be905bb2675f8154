package openflow

import (
	"net/netip"
)

// Subtypes of Nicira messages (Open vSwitch's ofp-msgs.h).
const (
	nxtSetPacketInFormat = 16
	nxtSetControllerID   = 20
	nxtCTFlushZone       = 29
	nxtPacketIn2         = 30
	nxtCTFlush           = 32
)

func appendNiciraMessage(b []byte, subtype uint32) []byte {
	return put32(put32(b, experimenterNicira), subtype)
}

func decodeExperimenter(h Header, b []byte) (Message, error) {
	if len(b) < 8 {
		return nil, short("experimenter message", len(b), 8)
	}
	if u32(b) == experimenterNicira {
		switch u32(b[4:]) {
		case nxtSetPacketInFormat:
			if len(b) == 12 {
				return &SetPacketInFormat{Format: PacketInFormat(u32(b[8:]))}, nil
			}
		case nxtSetControllerID:
			if len(b) == 16 {
				return &SetControllerID{ID: u16(b[14:])}, nil
			}
		case nxtPacketIn2:
			if m, ok := decodePacketIn(b[8:]); ok {
				return m, nil
			}
		case nxtCTFlushZone:
			if len(b) < 16 {
				return nil, short("ct flush zone", len(b), 16)
			}
			return &CTFlushZone{Zone: u16(b[14:])}, nil
		case nxtCTFlush:
			if m, ok := decodeCTFlush(b[8:]); ok {
				return m, nil
			}
		}
	}
	return decodeUnknown(h, b), nil
}

// CTFlushZone flushes all conntrack entries of a zone (NXT_CT_FLUSH_ZONE).
type CTFlushZone struct {
	Zone uint16
}

func (*CTFlushZone) messageType() uint8 { return typeExperimenter }

func (m *CTFlushZone) appendBody(b []byte) ([]byte, error) {
	return put16(zeros(appendNiciraMessage(b, nxtCTFlushZone), 6), m.Zone), nil
}

// CTFlush flushes the conntrack entries that match (NXT_CT_FLUSH, Open vSwitch 3.1 and later). A zero protocol, address or port matches any value.
type CTFlush struct {
	Zone     uint16 // unless AllZones
	AllZones bool
	Protocol uint8 // IP protocol number
	Original CTTuple
	Reply    CTTuple
}

// CTTuple is one direction of a conntrack entry.
type CTTuple struct {
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16
	ICMP             ICMPTuple // if the protocol is ICMP or ICMPv6
}

// ICMPTuple replaces the ports in a CTTuple of ICMP. Open vSwitch compares all three fields if the protocol is ICMP.
type ICMPTuple struct {
	ID         uint16
	Type, Code uint8
}

// Properties of NXT_CT_FLUSH (enum nx_ct_flush_tlv_type).
const (
	flushOriginal = 0
	flushReply    = 1
	flushZone     = 2

	tupleSrc      = 0
	tupleDst      = 1
	tupleSrcPort  = 2
	tupleDstPort  = 3
	tupleICMPID   = 4
	tupleICMPType = 5
	tupleICMPCode = 6
)

func (*CTFlush) messageType() uint8 { return typeExperimenter }

func (m *CTFlush) appendBody(b []byte) ([]byte, error) {
	b = appendNiciraMessage(b, nxtCTFlush)
	b = zeros(append(b, m.Protocol), 7)
	b = m.Original.append(b, flushOriginal, m.Protocol)
	b = m.Reply.append(b, flushReply, m.Protocol)
	if !m.AllZones {
		b = appendProperty16(b, flushZone, m.Zone)
	}
	return b, nil
}

func appendProperty16(b []byte, typ, value uint16) []byte {
	return zeros(put16(appendHeader(b, typ, 6), value), 2)
}

func appendProperty8(b []byte, typ uint16, value uint8) []byte {
	return append(appendHeader(b, typ, 5), value, 0, 0, 0)
}

func (t CTTuple) append(b []byte, typ uint16, proto uint8) []byte {
	start := len(b)
	b = zeros(appendHeader(b, typ, 0), 4)
	empty := len(b)
	for i, a := range []netip.Addr{t.Src, t.Dst} {
		if a.IsValid() {
			bytes := a.As16() // IPv4 as ::ffff:a.b.c.d
			b = zeros(append(appendHeader(b, tupleSrc+uint16(i), 20), bytes[:]...), 4)
		}
	}
	if proto == ipICMP || proto == ipICMPv6 {
		if t.ICMP != (ICMPTuple{}) {
			b = appendProperty16(b, tupleICMPID, t.ICMP.ID)
			b = appendProperty8(b, tupleICMPType, t.ICMP.Type)
			b = appendProperty8(b, tupleICMPCode, t.ICMP.Code)
		}
	} else {
		for i, port := range []uint16{t.SrcPort, t.DstPort} {
			if port != 0 {
				b = appendProperty16(b, tupleSrcPort+uint16(i), port)
			}
		}
	}
	if len(b) == empty {
		return b[:start]
	}
	_ = putLength(b, start, start+2) // below 100 bytes
	return b
}

// decodeCTFlush is the inverse of CTFlush.appendBody; ok is false if the message has other properties.
func decodeCTFlush(b []byte) (m *CTFlush, ok bool) {
	if len(b) < 8 {
		return nil, false
	}
	m = &CTFlush{Protocol: b[0], AllZones: true}
	for b = b[8:]; len(b) > 0; {
		typ, payload, rest, ok := property(b)
		if !ok {
			return nil, false
		}
		switch {
		case typ == flushOriginal && len(payload) >= 4:
			ok = m.Original.decode(payload[4:])
		case typ == flushReply && len(payload) >= 4:
			ok = m.Reply.decode(payload[4:])
		case typ == flushZone && len(payload) >= 2:
			m.Zone, m.AllZones = u16(payload), false
		default:
			ok = false
		}
		if !ok {
			return nil, false
		}
		b = rest
	}
	return m, m.Original.fits(m.Protocol) && m.Reply.fits(m.Protocol)
}

// fits reports whether the tuple has only fields that append encodes for the protocol.
func (t *CTTuple) fits(proto uint8) bool {
	if proto == ipICMP || proto == ipICMPv6 {
		return t.SrcPort == 0 && t.DstPort == 0
	}
	return t.ICMP == ICMPTuple{}
}

func (t *CTTuple) decode(b []byte) bool {
	for len(b) > 0 {
		typ, payload, rest, ok := property(b)
		if !ok {
			return false
		}
		switch {
		case typ <= tupleDst && len(payload) == 16:
			a := netip.AddrFrom16([16]byte(payload)).Unmap()
			if typ == tupleSrc {
				t.Src = a
			} else {
				t.Dst = a
			}
		case typ == tupleSrcPort && len(payload) == 2:
			t.SrcPort = u16(payload)
		case typ == tupleDstPort && len(payload) == 2:
			t.DstPort = u16(payload)
		case typ == tupleICMPID && len(payload) == 2:
			t.ICMP.ID = u16(payload)
		case typ == tupleICMPType && len(payload) == 1:
			t.ICMP.Type = payload[0]
		case typ == tupleICMPCode && len(payload) == 1:
			t.ICMP.Code = payload[0]
		default:
			return false
		}
		b = rest
	}
	return true
}
