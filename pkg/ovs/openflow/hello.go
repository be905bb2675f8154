package openflow

// Hello is the first message of each side of a connection. Both sides then use the highest version that both support
// (OpenFlow 1.4.1, 6.3.1).
type Hello struct {
	Versions VersionSet // empty if the sender sent no version bitmap, see Offer
}

// Offer returns the versions that the sender of this hello supports, given the version in its header.
func (m *Hello) Offer(header Version) VersionSet {
	if m.Versions != 0 {
		return m.Versions
	}
	return 1<<(min(header, 31)+1) - 2
}

// VersionSet is a set of versions as a bitmap: bit 1<<v represents version v.
type VersionSet uint32

// Versions returns the set of the given versions.
func Versions(vs ...Version) VersionSet {
	var s VersionSet
	for _, v := range vs {
		s |= 1 << v
	}
	return s
}

// Has reports whether v is in the set.
func (s VersionSet) Has(v Version) bool { return v < 32 && s>>v&1 != 0 }

// helloVersionBitmap is the hello element that carries the set (OpenFlow 1.4.1, 7.5.1, OFPHET_VERSIONBITMAP).
const helloVersionBitmap = 1

func (*Hello) messageType() uint8 { return typeHello }

func (m *Hello) appendBody(b []byte) ([]byte, error) {
	if m.Versions == 0 {
		return b, nil
	}
	b = put16(b, helloVersionBitmap)
	b = put16(b, 8) // this element's length
	return put32(b, uint32(m.Versions)), nil
}

// decodeHello ignores unknown elements, as the specification requires.
func decodeHello(body []byte) *Hello {
	m := &Hello{}
	for len(body) > 0 {
		typ, payload, rest, ok := property(body)
		if !ok {
			break
		}
		if typ == helloVersionBitmap && len(payload) >= 4 {
			m.Versions = VersionSet(u32(payload))
		}
		body = rest
	}
	return m
}

// EchoRequest checks that the other side is alive, which must answer with an EchoReply of the same XID and data.
type EchoRequest struct {
	Data []byte
}

// EchoReply answers an EchoRequest.
type EchoReply struct {
	Data []byte
}

func (*EchoRequest) messageType() uint8 { return typeEchoRequest }
func (*EchoReply) messageType() uint8   { return typeEchoReply }

func (m *EchoRequest) appendBody(b []byte) ([]byte, error) {
	return append(b, m.Data...), nil
}
func (m *EchoReply) appendBody(b []byte) ([]byte, error) { return append(b, m.Data...), nil }

// BarrierRequest makes the switch finish all earlier messages before it replies.
type BarrierRequest struct{}

// BarrierReply answers a BarrierRequest.
type BarrierReply struct{}

func (*BarrierRequest) messageType() uint8 { return typeBarrierRequest }
func (*BarrierReply) messageType() uint8   { return typeBarrierReply }

func (*BarrierRequest) appendBody(b []byte) ([]byte, error) { return b, nil }
func (*BarrierReply) appendBody(b []byte) ([]byte, error)   { return b, nil }
