package ipam

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// newDisk mounts a small file system.
func newDisk(t *testing.T) (dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir = t.TempDir()
	if err := unix.Mount("ovsdn-test", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func wantLeases(t *testing.T, i *IPAM, want ...netip.Addr) {
	t.Helper()
	leases := list(t, i)
	if len(leases) != len(want) {
		t.Errorf("got leases %v, want %v", leases, want)
		return
	}
	for n, l := range leases {
		if l.Addr != want[n] || l.Corrupt() {
			t.Errorf("got lease %v, want %s", l, want[n])
		}
	}
}

func TestFullDisk(t *testing.T) {
	dir := newDisk(t)
	i := open(t, dir, small)
	a, b := allocate(t, i, "a"), allocate(t, i, "b")
	if err := i.Sync(t.Context(), []netip.Addr{a}); err != nil {
		t.Error(err)
	}
	if err := i.Probe(t.Context()); err != nil {
		t.Error(err)
	}
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 128<<10), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	for range 2 {
		if _, err := i.Allocate(t.Context(), "c", "eth0"); err == nil || IsFull(err) || IsAllocated(err) {
			t.Errorf("Allocate on a full disk: got %v, want a write error", err)
		}
	}
	if err := i.Probe(t.Context()); err == nil {
		t.Error("Probe of a full disk: got no error")
	}
	wantLeases(t, i, a, b)
	release(t, i, "a") // needs no free space
	wantLeases(t, i, b)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := i.Probe(t.Context()); err != nil {
		t.Error(err)
	}
	if got := allocate(t, i, "c"); got == a {
		t.Errorf("got %s, want an address that was never allocated", got)
	}
}

func TestReadOnlyDisk(t *testing.T) {
	dir := newDisk(t)
	i := open(t, dir, small)
	a := allocate(t, i, "a")
	remount := func(flags uintptr) {
		t.Helper()
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|flags, "size=64k"); err != nil {
			t.Fatal(err)
		}
	}
	// The lock's file descriptor is open for writing, which prevents the remount.
	if err := i.Close(); err != nil {
		t.Fatal(err)
	}
	remount(unix.MS_RDONLY)
	if i, err := Open(dir, "ovsdn", prefixes(small)); err == nil {
		if _, err := i.Allocate(t.Context(), "b", "eth0"); err == nil || IsFull(err) {
			t.Errorf("Allocate on a read-only disk: got %v, want a write error", err)
		}
		if err := i.Release(t.Context(), "a", "eth0"); err == nil {
			t.Error("Release on a read-only disk: got no error")
		}
		if err := i.Probe(t.Context()); err == nil {
			t.Error("Probe of a read-only disk: got no error")
		}
		wantLeases(t, i, a)
		if err := i.Close(); err != nil {
			t.Error(err)
		}
	}
	remount(0)
	i = open(t, dir, small)
	wantLeases(t, i, a)
	release(t, i, "a")
	wantLeases(t, i)
}
