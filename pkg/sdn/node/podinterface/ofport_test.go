package podinterface

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/ovsdn/ovsdn/test/seed"
)

func TestOFPortOf(t *testing.T) {
	for _, tt := range []struct {
		name    string
		addr    string
		subnets []string
		want    int
	}{
		{"first address", "10.128.2.2", []string{"10.128.2.0/23"}, 0x8002},
		{"last address", "10.128.3.254", []string{"10.128.2.0/23"}, 0x81fe},
		{"second subnet", "10.130.0.5", []string{"10.128.2.0/23", "10.130.0.0/24"}, 0x8205},
		{"subnets of the other family do not count", "10.130.0.5", []string{"fd00::/64", "10.130.0.0/24"}, 0x8005},
		{"IPv6", "fd00::1:7", []string{"10.128.2.0/23", "fd00::1:0/112", "fd00::/113"}, 0},
		{"small IPv6 subnet", "fd00::1:7", []string{"10.128.2.0/23", "fd00::1:0/113"}, 0x8007},
		{"not in the node's subnets", "10.128.4.2", []string{"10.128.2.0/23"}, 0},
		{"largest subnet, last address with a number", "10.128.126.255", []string{"10.128.0.0/17"}, 0xfeff},
		{"largest subnet, first address without a number", "10.128.127.0", []string{"10.128.0.0/17"}, 0},
		{"larger subnet", "10.128.0.2", []string{"10.128.0.0/16"}, 0},
		{"after a larger subnet", "10.130.0.5", []string{"10.128.0.0/16", "10.130.0.0/24"}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var subnets []netip.Prefix
			for _, s := range tt.subnets {
				subnets = append(subnets, netip.MustParsePrefix(s))
			}
			if got := OFPort(netip.MustParseAddr(tt.addr), subnets); got != tt.want {
				t.Errorf("got %#x, want %#x", got, tt.want)
			}
		})
	}
}

// Each address of a node has a different number, in the range that Open vSwitch does not assign by itself.
func TestOFPortOf_unique(t *testing.T) {
	seed.Fix(t)
	rapid.Check(t, func(t *rapid.T) {
		subnets := make([]netip.Prefix, rapid.IntRange(1, 6).Draw(t, "subnets"))
		for i := range subnets {
			bits := rapid.IntRange(21, 30).Draw(t, "bits")
			subnets[i] = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i), 0, 0}), bits)
		}
		seen := map[int]netip.Addr{}
		for _, s := range subnets {
			for addr := s.Addr(); s.Contains(addr); addr = addr.Next() {
				number := OFPort(addr, subnets)
				if number < FirstOFPort || number > LastOFPort {
					t.Fatalf("got number %#x for %s, want %#x to %#x", number, addr, FirstOFPort, LastOFPort)
				}
				if other, taken := seen[number]; taken {
					t.Fatalf("%s and %s have the same number %#x", addr, other, number)
				}
				seen[number] = addr
			}
		}
	})
}
