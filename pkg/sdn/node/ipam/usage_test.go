package ipam

import (
	"net/netip"
	"testing"
	"time"
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
	i.deleteLease(owner{"b", "eth0"}, netip.MustParseAddr("10.130.0.9"))
	if err := i.Release(t.Context(), "a", "eth0"); err != nil {
		t.Fatal(err)
	}
	if got := i.Usage(); got != (Usage{total, total}) {
		t.Errorf("after the release: got %+v, want all of %d free", got, total)
	}
}

// A scrape does not wait for a request that waits for the lock of the lease directory.
func TestUsage_whileLocked(t *testing.T) {
	i, err := Open(t.TempDir(), "ovsdn", []netip.Prefix{netip.MustParsePrefix("10.128.0.0/24")})
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	i.mu.Lock()
	got := make(chan Usage, 1)
	go func() { got <- i.Usage() }()
	select {
	case u := <-got:
		if u != (Usage{253, 253}) {
			t.Errorf("got %+v, want all of 253 free", u)
		}
		i.mu.Unlock()
	case <-time.After(30 * time.Second):
		i.mu.Unlock()
		<-got
		t.Error("Usage waits for the lock")
	}
}
