package ipam

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func release(t *testing.T, i *IPAM, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if err := i.Release(t.Context(), id, "eth0"); err != nil {
			t.Fatal(err)
		}
	}
}

// The least recently used address is allocated, after those that were never allocated, also after a restart.
func TestAllocate_leastRecentlyUsed(t *testing.T) {
	dir := t.TempDir()
	i := open(t, dir, small) // .2 to .6
	for _, id := range []string{"a", "b", "c"} {
		allocate(t, i, id)
	}
	release(t, i, "b", "a") // .3, .2
	for _, want := range []string{"10.128.0.5", "10.128.0.6", "10.128.0.3"} {
		if got := allocate(t, i, want); got.String() != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if err := i.Close(); err != nil {
			t.Fatal(err)
		}
		i = open(t, dir, small)
	}
	release(t, i, "10.128.0.6", "c", "10.128.0.5") // after .2
	if err := i.Close(); err != nil {
		t.Fatal(err)
	}
	i = open(t, dir, small)
	for _, want := range []string{"10.128.0.2", "10.128.0.6", "10.128.0.4", "10.128.0.5"} {
		if got := allocate(t, i, "again-"+want); got.String() != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// A pod that is attached and detached repeatedly gets each address in turn.
func TestAllocate_repeatedly(t *testing.T) {
	i := open(t, t.TempDir(), small)
	var last []netip.Addr
	for n := range 20 {
		got := allocate(t, i, "a")
		if slices.Contains(last, got) {
			t.Fatalf("allocation %d: got %s again after %v", n, got, last)
		}
		if last = append(last, got); len(last) > 4 {
			last = last[1:]
		}
		release(t, i, "a")
	}
}

// After the node's subnet was made smaller, its gateway, network and broadcast addresses are not allocated.
func TestAllocate_smallerSubnet(t *testing.T) {
	dir := t.TempDir()
	before := open(t, dir, "10.128.0.0/28")
	var ids []string
	for n := range 13 {
		ids = append(ids, fmt.Sprint(n))
		allocate(t, before, ids[n])
	}
	release(t, before, ids...)
	if err := before.Close(); err != nil {
		t.Fatal(err)
	}
	after := open(t, dir, "10.128.0.8/29")
	got := map[netip.Addr]bool{}
	for n := range 5 {
		got[allocate(t, after, fmt.Sprint("new", n))] = true
	}
	want := map[netip.Addr]bool{}
	for _, a := range addrs("10.128.0.10", "10.128.0.11", "10.128.0.12", "10.128.0.13", "10.128.0.14") {
		want[a] = true
	}
	if !maps.Equal(got, want) {
		t.Errorf("got addresses %v, want %v", got, want)
	}
}

// Without the file of the free queue, or with an invalid one, addresses are allocated.
func TestFreeQueue_invalidFile(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"missing": os.Remove,
		"garbage": func(path string) error {
			return os.WriteFile(path, []byte("\x00\xff\n10.128.0.300\n10.128.0.2"), 0o600)
		},
		"foreign": func(path string) error {
			return os.WriteFile(path, []byte("192.0.2.1\nfd00::1\n10.128.0.2%eth0\n"), 0o600)
		},
		"a directory": func(path string) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return os.Mkdir(path, 0o700)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			i := open(t, dir, small)
			allocate(t, i, "a")
			release(t, i, "a")
			if err := i.Close(); err != nil {
				t.Fatal(err)
			}
			if err := change(filepath.Join(dir, "ovsdn", freeQueueFile)); err != nil {
				t.Fatal(err)
			}
			i = open(t, dir, small)
			seen := map[netip.Addr]bool{}
			for n := range 5 {
				seen[allocate(t, i, fmt.Sprint(n))] = true
			}
			if len(seen) != 5 {
				t.Errorf("got addresses %v, want 5", seen)
			}
			release(t, i, "0", "1")
			allocate(t, i, "again")
		})
	}
}

// The size of the file is bounded.
func TestFreeQueue_rewrite(t *testing.T) {
	dir := t.TempDir()
	i := open(t, dir, small)
	for range 3 * maxExtraLines {
		allocate(t, i, "a")
		release(t, i, "a")
	}
	text, err := os.ReadFile(filepath.Join(dir, "ovsdn", freeQueueFile))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "\n"); n > maxExtraLines+10 || n != i.freeQueue.lines {
		t.Errorf("got %d lines, want %d and at most %d", n, i.freeQueue.lines, maxExtraLines+10)
	}
	want, _ := i.freeQueue.oldest(true)
	if err := i.Close(); err != nil {
		t.Fatal(err)
	}
	i = open(t, dir, small)
	if got := allocate(t, i, "a"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func FuzzFreeQueue(f *testing.F) {
	f.Add("10.128.0.2\n10.128.0.3\n10.128.0.2\n")
	f.Add("fd00::2\n::ffff:10.128.0.2\n10.128.0.2")
	f.Fuzz(func(t *testing.T, text string) {
		subnet := netip.MustParsePrefix(small)
		q := loadFreeQueue("/nonexistent", nil)
		q.read(strings.NewReader(text), subnet.Contains)
		n := 0
		for addr, ok := q.oldest(true); ok; addr, ok = q.oldest(true) {
			if !subnet.Contains(addr) || !q.contains(addr) {
				t.Fatalf("got %s in the queue, outside the subnet", addr)
			}
			q.remove(addr)
			n++
		}
		if n > 8 || len(q.seq) > 0 {
			t.Errorf("got %d addresses from the queue, and %v left in it; want at most 8 and none", n, q.seq)
		}
	})
}

// A file that can't be replaced leaves no other one.
func TestFreeQueue_failedRewrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), freeQueueFile)
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := loadFreeQueue(path, func(netip.Addr) bool { return true }).rewrite(); err == nil {
		t.Error("got no error")
	}
	if files, err := os.ReadDir(filepath.Dir(path)); err != nil || len(files) != 1 {
		t.Errorf("got files %v, %v, want the directory only", files, err)
	}
}
