package hostconntrack

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
)

// Connections of the switch remain, whatever a filter matches.
func TestFilter_zone(t *testing.T) {
	for _, tc := range []struct {
		zone          uint16
		matches, want bool
	}{{0, true, true}, {0, false, false}, {7, true, false}} {
		filter := Filter(func(*netlink.ConntrackFlow) bool { return tc.matches })
		if got := filter.MatchConntrackFlow(&netlink.ConntrackFlow{Zone: tc.zone}); got != tc.want {
			t.Errorf("zone %d, filter %t: got %t, want %t", tc.zone, tc.matches, got, tc.want)
		}
	}
}

// Both forms of an IPv4 address are the same address.
func TestAddr(t *testing.T) {
	want := netip.MustParseAddr("192.0.2.1")
	for _, ip := range []net.IP{net.IPv4(192, 0, 2, 1), {192, 0, 2, 1}} {
		if got := Addr(ip); got != want {
			t.Errorf("%d bytes: got %s, want %s", len(ip), got, want)
		}
	}
	if got := Addr(nil); got.IsValid() {
		t.Errorf("no address: got %s, want an invalid one", got)
	}
}
