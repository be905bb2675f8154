package ipam

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// An address in use is not allocated again, and its file is restored, whatever was deleted while the agent runs.
func TestRestore(t *testing.T) {
	for name, lose := range map[string]func(dir string) error{
		"directory":  os.RemoveAll,
		"all files":  func(dir string) error { return removeAll(dir, "*") },
		"one lease":  func(dir string) error { return os.Remove(filepath.Join(dir, "10.128.0.2")) },
		"lock":       func(dir string) error { return os.Remove(filepath.Join(dir, "lock")) },
		"nothing":    func(string) error { return nil },
		"lease log":  func(dir string) error { return os.Remove(filepath.Join(dir, freeQueueFile)) },
		"last lease": func(dir string) error { return removeAll(dir, "last_reserved_ip*") },
	} {
		t.Run(name, func(t *testing.T) {
			base := t.TempDir()
			i := open(t, base, small)
			a := allocate(t, i, "a")
			freed := allocate(t, i, "freed")
			b := allocate(t, i, "b")
			if err := i.Release(t.Context(), "freed", "eth0"); err != nil {
				t.Fatal(err)
			}
			want, err := i.List()
			if err != nil {
				t.Fatal(err)
			}
			missing := len(want)
			if err := lose(filepath.Join(base, "ovsdn")); err != nil {
				t.Fatal(err)
			}
			if left, err := Leases(base, "ovsdn"); err == nil {
				missing -= len(left)
			}

			c := allocate(t, i, "c")
			if c == a || c == b || c == freed {
				t.Errorf("got %s, which another pod has or had; want %s", c, "10.128.0.5")
			}
			restored, err := i.Restore(t.Context())
			if err != nil || restored != missing {
				t.Errorf("restored %d leases, %v; want %d", restored, err, missing)
			}
			if again, err := i.Restore(t.Context()); err != nil || again != 0 {
				t.Errorf("restored %d leases again, %v", again, err)
			}
			got, err := i.List()
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, Lease{Addr: c, ContainerID: "c", IfName: "eth0"})
			if diff := cmp.Diff(fmt.Sprint(want), fmt.Sprint(got)); diff != "" {
				t.Errorf("leases (-want +got):\n%s", diff)
			}
		})
	}
}

// TestRestore_reserved: a lease that was deleted before the agent started is written by Reserve, and counted.
func TestRestore_reserved(t *testing.T) {
	i := open(t, t.TempDir(), small)
	addr := addrs("10.128.0.3")[0]
	if err := i.Reserve(t.Context(), addr, "a", "eth0"); err != nil {
		t.Fatal(err)
	}
	if restored, err := i.Restore(t.Context()); err != nil || restored != 1 {
		t.Errorf("restored %d leases, %v; want 1", restored, err)
	}
}

// A lease that can't be written leaves no corrupt file, and is restored when the disk has space again.
func TestRestore_fullDisk(t *testing.T) {
	dir := newDisk(t)
	i := open(t, dir, small)
	a, b := allocate(t, i, "a"), allocate(t, i, "b")
	if err := os.Remove(filepath.Join(dir, "ovsdn", a.String())); err != nil {
		t.Fatal(err)
	}
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 128<<10), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	if _, err := i.Restore(t.Context()); err == nil {
		t.Error("got no error from a full disk")
	}
	wantLeases(t, i, b)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if restored, err := i.Restore(t.Context()); err != nil || restored != 1 {
		t.Errorf("restored %d leases, %v; want 1", restored, err)
	}
	wantLeases(t, i, a, b)
}

func removeAll(dir, pattern string) error {
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := os.Remove(f); err != nil {
			return err
		}
	}
	return nil
}
