package wire

import (
	"bytes"
	"encoding/hex"
	"net"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFrames(t *testing.T) {
	mac := func(last byte) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0, last} }
	one, two := netip.MustParseAddrPort("10.0.0.1:7"), netip.MustParseAddrPort("10.0.0.2:9")
	for _, tc := range []struct {
		name  string
		frame []byte
		want  string
	}{
		{"arp", Ethernet(Broadcast(), mac(1), TypeARP, ARP{
			Operation: ARPRequest, SenderMAC: mac(1), SenderIP: one.Addr(), TargetIP: two.Addr(),
		}.Packet(nil)), "ffffffffffff" + "020000000001" + "0806" +
			"0001" + "0800" + "06" + "04" + "0001" + "020000000001" + "0a000001" + "000000000000" + "0a000002"},
		{"tagged", Ethernet(mac(2), mac(1), TypeVLAN, VLAN(5, TypeIPv6, []byte{0x60})),
			"020000000002" + "020000000001" + "8100" + "0005" + "86dd" + "60"},
		{"udp", UDPPacket(one, two, []byte("hi")),
			"4500001e" + "00000000" + "4011" + "66cd" + "0a000001" + "0a000002" + "00070009" + "000a" + "835e" + "6869"},
		{"tcp", TCP(one, two, TCPSYN), "00070009" + "00000001" + "00000000" + "5002" + "0400" + "97cf" + "0000"},
		{"vxlan", VXLAN(0xabcdef, []byte{1}), "08000000" + "abcdef00" + "01"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, hex.EncodeToString(tc.frame)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The checksum of a header or message that includes its checksum is 0.
func TestChecksums(t *testing.T) {
	from, to := netip.MustParseAddrPort("192.0.2.1:1"), netip.MustParseAddrPort("198.51.100.7:65535")
	for size := range 50 {
		payload := bytes.Repeat([]byte{0xab}, size)
		packet := UDPPacket(from, to, payload)
		if sum := checksum(packet[:20]); sum != 0 {
			t.Errorf("%d bytes: the IP header sums up to %#x", size, sum)
		}
		pseudo := append(append([]byte{}, packet[12:20]...), 0, ProtocolUDP, 0, byte(len(packet)-20))
		if sum := checksum(append(pseudo, packet[20:]...)); sum != 0 {
			t.Errorf("%d bytes: the datagram sums up to %#x", size, sum)
		}
		if sum := checksumWithAddrs(from.Addr(), to.Addr(), ProtocolTCP, TCP(from, to, byte(size))); sum != 0 {
			t.Errorf("flags %#x: the segment sums up to %#x", size, sum)
		}
		if sum := checksumWithAddrs(from.Addr(), to.Addr(), ProtocolTCP, TCPSegment(from, to, TCPACK, payload)); sum != 0 {
			t.Errorf("%d bytes: the segment with data sums up to %#x", size, sum)
		}
		if sum := checksum(ICMPError(3, 1, payload)); sum != 0 {
			t.Errorf("%d bytes: the ICMP error sums up to %#x", size, sum)
		}
		if sum := checksum(ICMPEcho(payload)); sum != 0 {
			t.Errorf("%d bytes: the echo sums up to %#x", size, sum)
		}
	}
}

func TestFragments(t *testing.T) {
	header := IPv4{Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.2"), Protocol: ProtocolUDP, ID: 7}
	payload := bytes.Repeat([]byte("01234567"), 5)[:37]
	var together []byte
	fragments := header.Fragments(payload, 16)
	for i, f := range fragments {
		offset := (int(f[6])<<8 | int(f[7])) & 0x1fff * 8
		if offset != len(together) {
			t.Errorf("fragment %d has offset %d, want %d", i, offset, len(together))
		}
		if more := f[6]&0x20 != 0; more != (i < len(fragments)-1) {
			t.Errorf("fragment %d of %d: got more fragments %v", i, len(fragments), more)
		}
		together = append(together, f[20:]...)
	}
	if !bytes.Equal(together, payload) {
		t.Errorf("the fragments hold %q", together)
	}
}
