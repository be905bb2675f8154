package ipam

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/utils"
	"github.com/google/go-cmp/cmp"
)

// The directory has files of other versions and other programs.
func TestOpen_foreignFiles(t *testing.T) {
	dir := t.TempDir()
	network := filepath.Join(dir, "ovsdn")
	if err := os.MkdirAll(filepath.Join(network, "10.128.0.3", "inside"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"10.128.0.2":         "old",                   // host-local before v0.8
		"10.128.0.4":         "lf\neth0",              // line end of another system
		"10.128.0.5":         "a\r\neth0\r\nand more", // of a later version
		"010.128.0.6":        "a\r\neth0",
		"::ffff:10.128.0.6":  "a\r\neth0",
		"last_reserved_ip":   "10.128.0.4", // of a version without numbers of ranges
		"last_reserved_ip.0": "nonsense",
		"notes.txt":          "do not touch",
	} {
		if err := os.WriteFile(filepath.Join(network, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	i := open(t, dir, small)
	at := func(text string) netip.Addr { return netip.MustParseAddr(text) }
	want := []Lease{
		{at("10.128.0.2"), "old", ""}, {Addr: at("10.128.0.3")}, {Addr: at("10.128.0.4")}, {Addr: at("10.128.0.5")},
	}
	if diff := cmp.Diff(want, list(t, i), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Fatal(diff)
	}
	// No address with a file is allocated.
	if got := allocate(t, i, "new"); got != at("10.128.0.6") {
		t.Errorf("got %s, want 10.128.0.6", got)
	}
	if _, err := i.Allocate(t.Context(), "another", "eth0"); !IsFull(err) {
		t.Errorf("Allocate without a free address: got %v, want FullError", err)
	}
	// Reserve replaces a corrupt lease, and a lease of the same container without an interface name.
	for addr, id := range map[string]string{"10.128.0.2": "old", "10.128.0.4": "lf"} {
		if err := i.Reserve(t.Context(), at(addr), id, "eth0"); err != nil {
			t.Error(err)
		}
		if err := i.Release(t.Context(), id, "eth0"); err != nil {
			t.Error(err)
		}
	}
	if err := i.ReleaseLease(t.Context(), want[3]); err != nil {
		t.Error(err)
	}
	// An address whose file can't be deleted is not allocated.
	if err := i.ReleaseLease(t.Context(), want[1]); err == nil {
		t.Error("ReleaseLease of a directory with files: got no error")
	}
	for _, id := range []string{"c", "d", "e"} {
		if got := allocate(t, i, id); got == want[1].Addr {
			t.Errorf("got %s, whose file could not be deleted", got)
		}
	}
}

// Release deletes a lease of a host-local version without interface names.
func TestRelease_withoutInterfaceName(t *testing.T) {
	dir := t.TempDir()
	i := open(t, dir, small)
	if err := os.WriteFile(filepath.Join(dir, "ovsdn", "10.128.0.4"), []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := i.Release(t.Context(), "old", "eth0"); err != nil {
		t.Fatal(err)
	}
	if l := list(t, i); len(l) > 0 {
		t.Errorf("got leases %v, want none", l)
	}
}

func FuzzParseLease(f *testing.F) {
	f.Add([]byte("abc\r\neth0"))
	f.Add([]byte("abc"))
	f.Add([]byte("\r\n"))
	f.Add([]byte("../abc\r\na/b"))
	f.Fuzz(func(t *testing.T, data []byte) {
		l := parseLease(netip.MustParseAddr("10.128.0.2"), data)
		if l.Corrupt() {
			if l != (Lease{Addr: l.Addr}) {
				t.Errorf("got corrupt lease %+v, want only an address", l)
			}
			return
		}
		// The container id and interface name are used in names of files and devices.
		if utils.ValidateContainerID(l.ContainerID) != nil || strings.ContainsAny(l.IfName, "/ \n") {
			t.Errorf("got lease %+v with invalid names", l)
		}
	})
}
