package wire

import (
	"net"
	"net/netip"
	"testing"
)

func TestParseFlow(t *testing.T) {
	from := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	src, dst := netip.MustParseAddrPort("10.0.0.1:7"), netip.MustParseAddrPort("10.0.0.2:9")
	header := IPv4{Src: src.Addr(), Dst: dst.Addr(), Protocol: ProtocolTCP}
	options := header
	options.Options = []byte{1, 1, 1, 1}
	later := header.Fragments(TCP(src, dst, TCPSYN), 8)
	for _, tc := range []struct {
		name   string
		packet []byte
		want   bool
	}{
		{"TCP", header.Packet(TCP(src, dst, TCPSYN)), true},
		{"TCP with options of IPv4", options.Packet(TCP(src, dst, TCPSYN)), true},
		{"UDP", UDPPacket(src, dst, []byte("data")), true},
		{"first fragment", later[0], true},
		{"later fragment", later[1], false},
		{"ICMP", IPv4{Src: src.Addr(), Dst: dst.Addr(), Protocol: ProtocolICMP}.Packet(ICMPEcho(nil)), false},
		{"without ports", header.Packet([]byte{0, 7}), false},
		{"without an IPv4 header", []byte{0x45}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, ok := ParseFlow(Ethernet(Broadcast(), from, TypeIPv4, tc.packet))
			if ok != tc.want {
				t.Fatalf("got a flow: %v, want %v", ok, tc.want)
			}
			if ok && (got.From.String() != from.String() || got.Src != src || got.Dst != dst) {
				t.Errorf("got %v, want from %s, %s to %s", got, from, src, dst)
			}
		})
	}
	if got, ok := ParseFlow(Ethernet(Broadcast(), from, TypeARP, UDPPacket(src, dst, nil))); ok {
		t.Errorf("got flow %v of a frame that is not IPv4, want none", got)
	}
}
