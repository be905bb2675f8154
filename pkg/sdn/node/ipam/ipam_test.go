package ipam

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
	"github.com/google/go-cmp/cmp"
)

// small is a subnet with the addresses .2 to .6 for pods, after the gateway.
const small = "10.128.0.0/29"

func open(t testing.TB, dir string, subnets ...string) *IPAM {
	t.Helper()
	i, err := Open(dir, "ovsdn", prefixes(subnets...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := i.Close(); err != nil {
			t.Error(err)
		}
	})
	return i
}

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		out = append(out, netip.MustParseAddr(text))
	}
	return out
}

func allocate(t *testing.T, i *IPAM, id string) netip.Addr {
	t.Helper()
	got, err := i.Allocate(t.Context(), id, "eth0")
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 {
		t.Fatalf("got %v, want one address", got)
	}
	return got[0]
}

func list(t *testing.T, i *IPAM) []Lease {
	t.Helper()
	leases, err := i.List()
	if err != nil {
		t.Fatal(err)
	}
	return leases
}

func TestAllocate(t *testing.T) {
	i := open(t, t.TempDir(), small)
	for n, want := range addrs("10.128.0.2", "10.128.0.3", "10.128.0.4", "10.128.0.5", "10.128.0.6") {
		if got := allocate(t, i, fmt.Sprintf("c%d", n)); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
	_, err := i.Allocate(t.Context(), "one-more", "eth0")
	if !IsFull(err) {
		t.Errorf("Allocate without a free address: got %v, want FullError", err)
	}
	if _, err := i.Allocate(t.Context(), "c0", "eth0"); !IsAllocated(err) {
		t.Errorf("second Allocate: got %v, want AllocatedError", err)
	}
	for range 2 {
		if err := i.Release(t.Context(), "c1", "eth0"); err != nil {
			t.Error(err)
		}
	}
	if got := allocate(t, i, "c9"); got != netip.MustParseAddr("10.128.0.3") {
		t.Errorf("got %s, want the only free one", got)
	}
}

func TestAllocate_dualStackAndSeveralSubnets(t *testing.T) {
	i := open(t, t.TempDir(), "10.128.0.0/30", "fd00::/126", "10.130.0.0/30")
	// 10.x.0.1 is a gateway; IPv6 has no broadcast address.
	for _, want := range [][]netip.Addr{addrs("10.128.0.2", "fd00::2"), addrs("10.130.0.2", "fd00::3")} {
		got, err := i.Allocate(t.Context(), want[0].String(), "eth0")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Error(diff)
		}
	}
	// If one family has no free address, the address of the other one is released.
	if _, err := i.Allocate(t.Context(), "full", "eth0"); !IsFull(err) {
		t.Errorf("Allocate without a free IPv4 address: got %v, want FullError", err)
	}
	if got := len(list(t, i)); got != 4 {
		t.Errorf("got %d leases, want 4", got)
	}
}

func TestOpen_invalid(t *testing.T) {
	for name, subnets := range map[string][]netip.Prefix{
		"none":      nil,
		"invalid":   {{}},
		"host bits": prefixes("10.128.0.1/24"),
		"too small": prefixes("10.128.0.0/31"),
		"overlap":   prefixes("10.128.0.0/24", "10.128.0.0/23"),
	} {
		if i, err := Open(t.TempDir(), "ovsdn", subnets); err == nil {
			i.Close()
			t.Errorf("Open with subnets %s: got no error", name)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if i, err := Open(file, "ovsdn", prefixes(small)); err == nil {
		i.Close()
		t.Error("Open with a file instead of a directory: got no error")
	}
}

func TestOpen_existingLeases(t *testing.T) {
	dir := t.TempDir()
	i := open(t, dir, small)
	a, b := allocate(t, i, "a"), allocate(t, i, "b")
	if err := i.Close(); err != nil {
		t.Fatal(err)
	}
	i = open(t, dir, small)
	want := []Lease{{a, "a", "eth0"}, {b, "b", "eth0"}}
	if diff := cmp.Diff(want, list(t, i), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	if _, err := i.Allocate(t.Context(), "a", "eth0"); !IsAllocated(err) {
		t.Errorf("Allocate after the restart: got %v, want AllocatedError", err)
	}
	if got := allocate(t, i, "c"); got != netip.MustParseAddr("10.128.0.4") {
		t.Errorf("got %s, want the one after the last", got)
	}
	if err := i.Release(t.Context(), "a", "eth0"); err != nil {
		t.Fatal(err)
	}
	if got := len(list(t, i)); got != 2 {
		t.Errorf("got %d leases, want 2", got)
	}
}

func TestReserve(t *testing.T) {
	dir := t.TempDir()
	i := open(t, dir, small)
	addr := netip.MustParseAddr("10.128.0.4")
	for range 2 {
		if err := i.Reserve(t.Context(), addr, "a", "eth0"); err != nil {
			t.Fatal(err)
		}
	}
	if err := i.Reserve(t.Context(), addr, "b", "eth0"); !IsConflict(err) {
		t.Errorf("Reserve of another container's address: got %v, want ConflictError", err)
	}
	// A power failure can leave an empty file.
	corrupt := netip.MustParseAddr("10.128.0.5")
	if err := os.WriteFile(filepath.Join(dir, "ovsdn", corrupt.String()), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if l := list(t, i); !l[1].Corrupt() {
		t.Errorf("lease %+v is not corrupt", l[1])
	}
	if err := i.Reserve(t.Context(), corrupt, "c", "eth0"); err != nil {
		t.Error(err)
	}
	want := []Lease{{addr, "a", "eth0"}, {corrupt, "c", "eth0"}}
	if diff := cmp.Diff(want, list(t, i), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	for _, id := range []string{"a", "c"} {
		if err := i.Release(t.Context(), id, "eth0"); err != nil {
			t.Error(err)
		}
	}
	if l := list(t, i); len(l) > 0 {
		t.Errorf("got leases %v, want none", l)
	}
}

func TestReleaseLease(t *testing.T) {
	dir := t.TempDir()
	i := open(t, dir, small)
	held := allocate(t, i, "a")
	corrupt := netip.MustParseAddr("10.128.0.5")
	if err := os.WriteFile(filepath.Join(dir, "ovsdn", corrupt.String()), []byte("\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, l := range []Lease{{Addr: held}, {held, "other", "eth0"}, {Addr: corrupt}} {
		if err := i.ReleaseLease(t.Context(), l); err != nil {
			t.Error(err)
		}
	}
	if l := list(t, i); len(l) != 1 || l[0].Addr != held {
		t.Errorf("got leases %v, want only %s", l, held)
	}
}

// A failed Allocate leaves no lease. A directory with the name of the last_reserved_ip file causes the failure.
func TestAllocate_failureIsCleanedUp(t *testing.T) {
	dir := t.TempDir()
	i := open(t, dir, small)
	if err := os.Mkdir(filepath.Join(dir, "ovsdn", "last_reserved_ip.0"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := i.Allocate(t.Context(), "a", "eth0"); err == nil || IsFull(err) {
		t.Errorf("Allocate: got %v, want a write error", err)
	}
	if l := list(t, i); len(l) > 0 {
		t.Errorf("got leases %v, want none", l)
	}
}

func TestAllocate_canceled(t *testing.T) {
	i := open(t, t.TempDir(), small)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := i.Allocate(ctx, "a", "eth0"); !errors.Is(err, context.Canceled) {
		t.Errorf("Allocate: got %v, want %v", err, context.Canceled)
	}
}

// The host-local plugin reads and writes the same directory.
func TestHostLocal(t *testing.T) {
	dir := t.TempDir()
	i := open(t, dir, small)
	ours := allocate(t, i, "ours")

	store, err := disk.New("ovsdn", dir)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	subnet := netip.MustParsePrefix(small)
	ranges := allocator.RangeSet{{Subnet: types.IPNet{IP: subnet.Addr().AsSlice(), Mask: net.CIDRMask(29, 32)}}}
	if err := ranges.Canonicalize(); err != nil {
		t.Fatal(err)
	}
	stock := allocator.NewIPAllocator(&ranges, store, 0)

	if ips := store.GetByID("ours", "eth0"); len(ips) != 1 || ips[0].String() != ours.String() {
		t.Errorf("host-local: got addresses %v, want %s", ips, ours)
	}
	if _, err := stock.Get("ours", "eth0", nil); err == nil {
		t.Error("host-local: got a second address for the same interface")
	}
	theirs, err := stock.Get("theirs", "eth0", nil)
	if err != nil {
		t.Fatal(err)
	}
	if theirs.Address.IP.String() != "10.128.0.3" {
		t.Errorf("host-local: got %s, want the one after ours", theirs.Address.IP)
	}
	if got := allocate(t, i, "ours2"); got != netip.MustParseAddr("10.128.0.4") {
		t.Errorf("got %s, want the one after theirs", got)
	}
	if err := i.Release(t.Context(), "theirs", "eth0"); err != nil {
		t.Error(err)
	}
	if err := stock.Release("ours", "eth0"); err != nil {
		t.Error(err)
	}
	if l := list(t, i); len(l) != 1 {
		t.Errorf("got leases %v, want one", l)
	}
}

func TestAllocate_concurrent(t *testing.T) {
	i := open(t, t.TempDir(), "10.128.0.0/24")
	var wg sync.WaitGroup
	for n := range 32 {
		wg.Go(func() {
			for range 10 {
				id := fmt.Sprint(n)
				if _, err := i.Allocate(t.Context(), id, "eth0"); err != nil {
					t.Error(err)
				}
				if err := i.Release(t.Context(), id, "eth0"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if l := list(t, i); len(l) > 0 {
		t.Errorf("got leases %v, want none", l)
	}
}

func BenchmarkAllocateRelease(b *testing.B) {
	i := open(b, b.TempDir(), "10.128.0.0/23")
	for n := range 250 {
		if _, err := i.Allocate(b.Context(), fmt.Sprint(n), "eth0"); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if _, err := i.Allocate(b.Context(), "x", "eth0"); err != nil {
			b.Fatal(err)
		}
		if err := i.Release(b.Context(), "x", "eth0"); err != nil {
			b.Fatal(err)
		}
	}
}
