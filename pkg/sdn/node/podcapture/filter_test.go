package podcapture

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/bpf"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// frame returns an Ethernet frame with an IPv4 packet. options is the length of IP options, fragment the offset in 8 bytes.
func frame(protocol uint8, source, destination string, ports [2]uint16, options int, fragment uint16) []byte {
	b := append(make([]byte, 12), 0x08, 0x00)
	header := make([]byte, 20+options)
	header[0] = 0x40 | uint8(len(header)/4)
	binary.BigEndian.PutUint16(header[6:], 0x2000|fragment) // more fragments
	header[9] = protocol
	s, d := netip.MustParseAddr(source).As4(), netip.MustParseAddr(destination).As4()
	copy(header[12:], s[:])
	copy(header[16:], d[:])
	b = append(b, header...)
	b = binary.BigEndian.AppendUint16(b, ports[0])
	b = binary.BigEndian.AppendUint16(b, ports[1])
	return append(b, make([]byte, 20)...)
}

func arpFrame(sender, target string) []byte {
	b := append(make([]byte, 12), 0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, 1)
	s, t := netip.MustParseAddr(sender).As4(), netip.MustParseAddr(target).As4()
	b = append(append(b, make([]byte, 6)...), s[:]...)
	return append(append(b, make([]byte, 6)...), t[:]...)
}

// frames are the frames of the tests by name.
func frames() map[string][]byte {
	const a, b, c = "10.128.0.5", "10.129.0.7", "203.0.113.9"
	return map[string][]byte{
		"tcp":      frame(6, a, b, [2]uint16{40000, 5432}, 0, 0),
		"reply":    frame(6, b, a, [2]uint16{5432, 40000}, 0, 0),
		"options":  frame(6, a, b, [2]uint16{40000, 5432}, 40, 0),
		"fragment": frame(6, a, b, [2]uint16{40000, 5432}, 0, 100), // its bytes are data, and no ports
		"udp":      frame(17, a, c, [2]uint16{40000, 5432}, 0, 0),
		"dns":      frame(17, a, b, [2]uint16{40000, 53}, 0, 0),
		"sctp":     frame(132, a, b, [2]uint16{40000, 5432}, 0, 0),
		"icmp":     frame(1, a, b, [2]uint16{0x0800, 5432}, 0, 0),
		"gre":      frame(47, a, b, [2]uint16{40000, 5432}, 0, 0),
		"arp":      arpFrame(a, b),
		"foreign":  arpFrame(c, c),
		"ipv6":     append(append(make([]byte, 12), 0x86, 0xdd), make([]byte, 60)...),
		"short":    frame(6, a, b, [2]uint16{40000, 5432}, 0, 0)[:33],
		"empty":    nil,
	}
}

func TestFilter(t *testing.T) {
	for _, tc := range []struct {
		spec diagnostics.CaptureSpec
		want string
	}{
		{diagnostics.CaptureSpec{Protocol: "TCP"}, "fragment options reply short tcp"},
		{diagnostics.CaptureSpec{Protocol: "UDP"}, "dns udp"},
		{diagnostics.CaptureSpec{Protocol: "SCTP"}, "sctp"},
		{diagnostics.CaptureSpec{Protocol: "ICMP"}, "icmp"},
		{diagnostics.CaptureSpec{Protocol: "ARP"}, "arp foreign"},
		{diagnostics.CaptureSpec{Port: 5432}, "options reply sctp tcp udp"},
		{diagnostics.CaptureSpec{Port: 5432, Protocol: "TCP"}, "options reply tcp"},
		{diagnostics.CaptureSpec{Port: 53, Protocol: "TCP"}, ""},
		{diagnostics.CaptureSpec{Port: 40000}, "dns options reply sctp tcp udp"},
		{diagnostics.CaptureSpec{Host: "10.129.0.7"}, "arp dns fragment gre icmp options reply sctp tcp"},
		{diagnostics.CaptureSpec{Host: "10.129.0.0/16", Protocol: "ARP"}, "arp"},
		{diagnostics.CaptureSpec{Host: "203.0.113.0/24"}, "foreign udp"},
		{diagnostics.CaptureSpec{Host: "0.0.0.0/0"}, "arp dns foreign fragment gre icmp options reply sctp short tcp udp"},
		{diagnostics.CaptureSpec{Host: "10.129.0.7", Port: 5432}, "options reply sctp tcp"},
		{diagnostics.CaptureSpec{Host: "203.0.113.9", Port: 5432, Protocol: "UDP"}, "udp"},
		{diagnostics.CaptureSpec{Host: "192.0.2.1"}, ""},
		{diagnostics.CaptureSpec{}, "arp dns empty foreign fragment gre icmp ipv6 options reply sctp short tcp udp"},
	} {
		if errs := tc.spec.Complete(); len(errs) > 0 {
			t.Fatal(errs)
		}
		vm, err := bpf.NewVM(filter(&tc.spec))
		if err != nil {
			t.Errorf("%q: %v", tc.spec.Filter(), err)
			continue
		}
		var accepted []string
		for name, f := range frames() {
			n, err := vm.Run(f)
			if err != nil || n != 0 && n != int(tc.spec.SnapLength) {
				t.Errorf("%q, %s: got %d bytes, error %v", tc.spec.Filter(), name, n, err)
			}
			if n != 0 {
				accepted = append(accepted, name)
			}
		}
		want := strings.Fields(tc.want)
		slices.Sort(want)
		if slices.Sort(accepted); !slices.Equal(accepted, want) {
			t.Errorf("%q: got %q, want %q", tc.spec.Filter(), accepted, want)
		}
	}
}

// A program of any valid spec is one that the kernel accepts, and ends for any frame.
func FuzzFilter(f *testing.F) {
	for name, content := range frames() {
		f.Add("TCP", int32(5432), "10.128.0.0/14", content)
		f.Add(strings.ToUpper(name), int32(0), "10.129.0.7", content)
	}
	f.Fuzz(func(t *testing.T, protocol string, port int32, host string, content []byte) {
		spec := diagnostics.CaptureSpec{Protocol: protocol, Port: port, Host: host}
		if len(spec.Complete()) > 0 {
			return
		}
		code := filter(&spec)
		vm, err := bpf.NewVM(code)
		if err != nil {
			t.Fatalf("%+v: %v", spec, err)
		}
		if _, err := bpf.Assemble(code); err != nil {
			t.Fatalf("%+v: %v", spec, err)
		}
		if n, err := vm.Run(content); err != nil || n != 0 && n != int(spec.SnapLength) {
			t.Errorf("%+v: got %d, %v", spec, n, err)
		}
	})
}
