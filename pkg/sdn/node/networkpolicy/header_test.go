package networkpolicy

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
)

// frame returns an Ethernet frame with a packet: IPv4 with options, or IPv6 with the given extension headers of 8 bytes each.
func frame(from, to string, protocol uint8, payload []byte, headers ...uint8) []byte {
	source, destination := netip.MustParseAddr(from), netip.MustParseAddr(to)
	b := make([]byte, 12)
	if source.Is4() {
		b = append(b, 0x08, 0x00, 0x46, 0, 0, byte(24+len(payload)), 0, 0, 0, 0, 64, protocol, 0, 0)
		b = append(append(b, source.AsSlice()...), destination.AsSlice()...)
		return append(append(b, 1, 1, 1, 1), payload...)
	}
	next := append(headers, protocol)
	b = append(b, 0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(8*len(headers)+len(payload)), next[0], 64)
	b = append(append(b, source.AsSlice()...), destination.AsSlice()...)
	for _, n := range next[1:] {
		b = append(b, n, 0, 0, 0, 0, 0, 0, 0)
	}
	return append(b, payload...)
}

// tagged returns the frame with a VLAN tag.
func tagged(etherType uint16, frame []byte) []byte {
	return slices.Concat(frame[:12], binary.BigEndian.AppendUint16(nil, etherType), []byte{0, 7}, frame[12:])
}

// ports returns the first 8 bytes of a header of TCP, UDP or SCTP: the length of the shortest of them.
func ports(to uint16) []byte {
	return append(binary.BigEndian.AppendUint16([]byte{0x30, 0x39}, to), 0, 0, 0, 0)
}

func TestReadHeader(t *testing.T) {
	const a4, b4, a6, b6 = "10.128.0.5", "10.129.0.9", "fd00::5", "fd00::9"
	want := func(from, to string, protocol uint8, port uint16) header {
		return header{netip.MustParseAddr(from), netip.MustParseAddr(to), protocol, port}
	}
	later4 := frame(a4, b4, protocolUDP, ports(53))
	binary.BigEndian.PutUint16(later4[14+6:], 100)
	later6 := frame(a6, b6, protocolUDP, ports(53), headerFragment)
	binary.BigEndian.PutUint16(later6[14+40+2:], 100<<3)
	long6 := frame(a6, b6, protocolTCP, ports(80), headerHopByHop)
	long6[14+40+1] = 200 // longer than the packet
	for name, tc := range map[string]struct {
		frame []byte
		want  header
	}{
		"TCP":                                  {frame(a4, b4, protocolTCP, ports(80)), want(a4, b4, protocolTCP, 80)},
		"UDP":                                  {frame(a4, b4, protocolUDP, ports(53)), want(a4, b4, protocolUDP, 53)},
		"SCTP":                                 {frame(a4, b4, protocolSCTP, ports(9)), want(a4, b4, protocolSCTP, 9)},
		"ICMP":                                 {frame(a4, b4, protocolICMP, ports(80)), want(a4, b4, protocolICMP, 0)},
		"GRE":                                  {frame(a4, b4, 47, ports(80)), want(a4, b4, 47, 0)},
		"TCP, truncated":                       {frame(a4, b4, protocolTCP, ports(80)[:3]), want(a4, b4, protocolTCP, 0)},
		"UDP, a later fragment":                {later4, want(a4, b4, protocolUDP, 0)},
		"IPv4, truncated":                      {frame(a4, b4, protocolTCP, nil)[:14+19], header{}},
		"TCP in IPv6":                          {frame(a6, b6, protocolTCP, ports(80)), want(a6, b6, protocolTCP, 80)},
		"ICMPv6":                               {frame(a6, b6, protocolICMPv6, ports(80)), want(a6, b6, protocolICMPv6, 0)},
		"UDP in IPv6 after headers":            {frame(a6, b6, protocolUDP, ports(53), headerHopByHop, headerDestOption), want(a6, b6, protocolUDP, 53)},
		"UDP in IPv6, the first fragment":      {frame(a6, b6, protocolUDP, ports(53), headerFragment), want(a6, b6, protocolUDP, 53)},
		"UDP in IPv6, a later fragment":        {later6, want(a6, b6, protocolUDP, 0)},
		"TCP in IPv6 after a truncated header": {long6, want(a6, b6, protocolTCP, 0)},
		"IPv6, truncated":                      {frame(a6, b6, protocolTCP, nil)[:14+39], header{}},
		"UDP with an 802.1Q tag":               {tagged(typeVLAN, frame(a4, b4, protocolUDP, ports(53))), want(a4, b4, protocolUDP, 53)},
		"UDP in IPv6 with an 802.1ad tag":      {tagged(typeServiceTag, frame(a6, b6, protocolUDP, ports(53))), want(a6, b6, protocolUDP, 53)},
		"UDP with two tags":                    {tagged(typeServiceTag, tagged(typeVLAN, frame(a4, b4, protocolUDP, ports(53)))), header{}},
		"a truncated tag":                      {tagged(typeVLAN, frame(a4, b4, protocolUDP, ports(53)))[:17], header{}},
		"ARP":                                  {append(make([]byte, 12), 0x08, 0x06, 0, 1), header{}},
		"a frame without EtherType":            {make([]byte, 13), header{}},
		"IPv4 with version 6":                  {append(append(make([]byte, 12), 0x08, 0x00, 0x60), make([]byte, 40)...), header{}},
	} {
		t.Run(name, func(t *testing.T) {
			got, ok := readHeader(tc.frame)
			if got != tc.want || ok != (tc.want != header{}) {
				t.Errorf("got %+v, %v; want %+v", got, ok, tc.want)
			}
		})
	}
}

func FuzzReadHeader(f *testing.F) {
	f.Add(frame("10.128.0.5", "10.129.0.9", protocolTCP, ports(80)))
	f.Add(tagged(typeVLAN, frame("10.128.0.5", "10.129.0.9", protocolTCP, ports(80))))
	f.Add(frame("fd00::5", "fd00::9", protocolUDP, ports(53), headerHopByHop, headerFragment))
	f.Fuzz(func(t *testing.T, data []byte) {
		h, ok := readHeader(data)
		if ok && (!h.source.IsValid() || !h.destination.IsValid()) || !ok && h != (header{}) {
			t.Errorf("%x: got %+v, %v; want valid addresses if and only if ok", data, h, ok)
		}
	})
}
