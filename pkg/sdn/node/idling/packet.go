package idling

import (
	"encoding/binary"
	"net/netip"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// EtherTypes (IEEE 802 Numbers).
const (
	typeIPv4       = 0x0800
	typeVLAN       = 0x8100 // IEEE 802.1Q
	typeServiceTag = 0x88a8 // IEEE 802.1ad
)

// header is what identifies the client and the service of a packet.
type header struct {
	client   netip.Addr
	to       netip.AddrPort
	protocol goovs.Protocol
}

// parse returns the header of the IPv4 packet in an Ethernet frame with at most two tags; false: it has none with ports.
func parse(frame []byte) (header, bool) {
	ip, ok := ipv4(frame)
	if !ok {
		return header{}, false
	}
	const (
		minHeader, words                        = 20, 4 // bytes
		fragment, protocol, source, destination = 6, 9, 12, 16
		offset                                  = 1<<13 - 1 // of a fragment
	)
	if len(ip) < minHeader || binary.BigEndian.Uint16(ip[fragment:])&offset != 0 {
		return header{}, false
	}
	length := int(ip[0]&0xf) * words
	if length < minHeader || len(ip) < length+4 {
		return header{}, false
	}
	p, ok := protocolOf(ip[protocol])
	return header{
		client: netip.AddrFrom4([4]byte(ip[source:])), protocol: p,
		to: netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[destination:])), binary.BigEndian.Uint16(ip[length+2:])),
	}, ok
}

// ipv4 returns the packet in a frame.
func ipv4(frame []byte) ([]byte, bool) {
	const addresses, tag = 12, 4 // bytes
	if len(frame) < addresses+2 {
		return nil, false
	}
	rest := frame[addresses:]
	for range 2 {
		if t := binary.BigEndian.Uint16(rest); (t == typeVLAN || t == typeServiceTag) && len(rest) >= tag+2 {
			rest = rest[tag:]
		}
	}
	return rest[2:], binary.BigEndian.Uint16(rest) == typeIPv4
}

// protocolOf returns the protocol with that number of IANA.
func protocolOf(number byte) (goovs.Protocol, bool) {
	switch number {
	case 6:
		return goovs.ProtocolTCPv4, true
	case 17:
		return goovs.ProtocolUDPv4, true
	case 132:
		return pipeline.ProtocolSCTP, true
	}
	return "", false
}
