package ipam

import (
	"net/netip"
	"testing"
)

// Gateways, network and broadcast addresses can't be allocated; leases outside of the subnets do not count.
func TestUsage(t *testing.T) {
	subnets := []netip.Prefix{netip.MustParsePrefix("10.128.0.0/24"), netip.MustParsePrefix("10.129.0.0/29"), netip.MustParsePrefix("fd00::/64")}
	i, err := Open(t.TempDir(), "ovsdn", subnets)
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	total := 253 + 5
	if got := i.Usage(); got != (Usage{total, total}) {
		t.Errorf("got %+v, want all of %d free", got, total)
	}
	if _, err := i.Allocate(t.Context(), "a", "eth0"); err != nil {
		t.Fatal(err)
	}
	i.addLease(owner{"b", "eth0"}, netip.MustParseAddr("10.130.0.9"))
	if got := i.Usage(); got != (Usage{total, total - 1}) {
		t.Errorf("after an allocation: got %+v, want %d free", got, total-1)
	}
}
