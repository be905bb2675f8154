package datapath_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"testing"
)

// The information elements of RFC 7012 that the tests read.
const (
	elementPackets     = 2   // packetDeltaCount
	elementSource      = 8   // sourceIPv4Address
	elementPort        = 11  // destinationTransportPort
	elementDestination = 12  // destinationIPv4Address
	elementPoint       = 138 // observationPointId
)

const (
	ipfixVersion  = 10
	ipfixHeader   = 16 // bytes
	templateSet   = 2
	firstDataSet  = 256
	variableBytes = 65535 // length of an element whose records have their own length
	enterpriseBit = 0x8000
)

// ipfixRecord is a data record of one flow.
type ipfixRecord struct {
	domain   uint32
	elements map[uint16][]byte // without those of enterprises
}

func (r ipfixRecord) number(element uint16) uint64 {
	var n uint64
	for _, b := range r.elements[element] {
		n = n<<8 | uint64(b)
	}
	return n
}

func (r ipfixRecord) addr(element uint16) netip.Addr {
	a, _ := netip.AddrFromSlice(r.elements[element])
	return a
}

func (r ipfixRecord) String() string {
	return fmt.Sprintf("domain %d, point %d: %s to %s:%d, %d packets", r.domain, r.number(elementPoint), r.addr(elementSource), r.addr(elementDestination),
		r.number(elementPort), r.number(elementPackets))
}

// ipfixTemplate is the elements of a data record.
type ipfixTemplate []ipfixElement

type ipfixElement struct {
	id         uint16
	length     int
	enterprise bool
}

// ipfixReader reads the messages of an exporter (RFC 7011).
type ipfixReader struct {
	templates map[[2]uint32]ipfixTemplate // by domain and ID
}

var errIPFIX = errors.New("invalid IPFIX message")

// read returns the records of a message. Those of unknown templates are left out.
func (r *ipfixReader) read(b []byte) (records []ipfixRecord, err error) {
	if len(b) < ipfixHeader || binary.BigEndian.Uint16(b) != ipfixVersion || int(binary.BigEndian.Uint16(b[2:])) != len(b) {
		return nil, errIPFIX
	}
	domain := binary.BigEndian.Uint32(b[12:])
	for b = b[ipfixHeader:]; len(b) > 0; {
		if len(b) < 4 {
			return nil, errIPFIX
		}
		id, length := binary.BigEndian.Uint16(b), int(binary.BigEndian.Uint16(b[2:]))
		if length < 4 || length > len(b) {
			return nil, errIPFIX
		}
		set := b[4:length]
		b = b[length:]
		if id == templateSet {
			if err := r.readTemplates(domain, set); err != nil {
				return nil, err
			}
		} else if template := r.templates[[2]uint32{domain, uint32(id)}]; id >= firstDataSet && len(template) > 0 {
			some, err := template.read(domain, set)
			if err != nil {
				return nil, err
			}
			records = append(records, some...)
		}
	}
	return records, nil
}

func (r *ipfixReader) readTemplates(domain uint32, b []byte) error {
	for len(b) >= 4 {
		id, count := binary.BigEndian.Uint16(b), int(binary.BigEndian.Uint16(b[2:]))
		b = b[4:]
		var template ipfixTemplate
		for range count {
			if len(b) < 4 {
				return errIPFIX
			}
			e := ipfixElement{id: binary.BigEndian.Uint16(b), length: int(binary.BigEndian.Uint16(b[2:]))}
			b = b[4:]
			if e.enterprise = e.id&enterpriseBit != 0; e.enterprise {
				if len(b) < 4 {
					return errIPFIX
				}
				b = b[4:]
			}
			template = append(template, e)
		}
		r.templates[[2]uint32{domain, uint32(id)}] = template
	}
	return nil
}

func (t ipfixTemplate) read(domain uint32, b []byte) (records []ipfixRecord, err error) {
	shortest := 0
	for _, e := range t {
		if e.length != variableBytes {
			shortest += e.length
		} else {
			shortest++
		}
	}
	for len(b) >= max(shortest, 1) { // the rest is padding
		r := ipfixRecord{domain: domain, elements: map[uint16][]byte{}}
		for _, e := range t {
			n := e.length
			if n == variableBytes {
				if len(b) == 0 || b[0] == 255 { // the tests need no long elements
					return nil, errIPFIX
				}
				n, b = int(b[0]), b[1:]
			}
			if n > len(b) {
				return nil, errIPFIX
			}
			if !e.enterprise {
				r.elements[e.id] = b[:n:n]
			}
			b = b[n:]
		}
		records = append(records, r)
	}
	return records, nil
}

// Messages that are cut off or have wrong lengths are errors.
func TestIPFIXReader(t *testing.T) {
	message := []byte{
		0, ipfixVersion, 0, 44, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7,
		0, templateSet, 0, 16, 1, 0, 0, 2, 0, elementPoint, 0, 4, 0, elementPort, 0, 2,
		1, 0, 0, 12, 0, 0, 0, 9, 0, 53, 0, 0, // two bytes of padding
	}
	r := ipfixReader{templates: map[[2]uint32]ipfixTemplate{}}
	records, err := r.read(message)
	if err != nil || len(records) != 1 || records[0].number(elementPoint) != 9 || records[0].number(elementPort) != 53 || records[0].domain != 7 {
		t.Errorf("got %v, error %v, want point 9 and port 53 of domain 7", records, err)
	}
	for n := range message {
		cut := append([]byte(nil), message[:n]...)
		if n >= 4 {
			binary.BigEndian.PutUint16(cut[2:], uint16(n))
		}
		r := ipfixReader{templates: map[[2]uint32]ipfixTemplate{}}
		if records, _ := r.read(cut); len(records) > 0 {
			t.Errorf("of %d bytes: got %v, want no records", n, records)
		}
	}
}
