package ipam

import (
	"net"
	"net/netip"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
)

// An address that the host-local plugin allocated since Open is not in memory. Only its lease on the disk shows that it is in use.
func TestAllocate_leaseOfAnotherProcess(t *testing.T) {
	dir := t.TempDir()
	i := open(t, dir, small)
	store, err := disk.New("ovsdn", dir)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	ranges := allocator.RangeSet{{Subnet: types.IPNet{IP: netip.MustParsePrefix(small).Addr().AsSlice(), Mask: net.CIDRMask(29, 32)}}}
	if err := ranges.Canonicalize(); err != nil {
		t.Fatal(err)
	}
	theirs, err := allocator.NewIPAllocator(&ranges, store, 0).Get("theirs", "eth0", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := theirs.Address.IP.String(); got != "10.128.0.2" {
		t.Fatalf("host-local: got %s, want 10.128.0.2", got)
	}
	for _, want := range []string{"10.128.0.3", "10.128.0.4", "10.128.0.5", "10.128.0.6"} {
		if got := allocate(t, i, want); got.String() != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if got, err := i.Allocate(t.Context(), "one-more", "eth0"); !IsFull(err) {
		t.Errorf("Allocate without a free address: got %v and error %v, want FullError", got, err)
	}
	if lease, found := i.Holder(netip.MustParseAddr("10.128.0.2")); !found || lease.ContainerID != "theirs" {
		t.Errorf("lease of 10.128.0.2: got %+v, want that of host-local", lease)
	}
}
