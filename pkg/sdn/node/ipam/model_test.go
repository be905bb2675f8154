package ipam

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ovsdn/ovsdn/test/seed"
)

// TestModel compares IPAM with a model that allocates, reserves, releases, restarts and adds subnets: no address has two leases or is outside
// the subnets, Allocate fails only without a free address, and the least recently used address is allocated, also after a restart.
func TestModel(t *testing.T) {
	seed.Fix(t)
	rapid.Check(t, func(r *rapid.T) {
		dir, err := os.MkdirTemp("", "ipam")
		if err != nil {
			r.Fatal(err)
		}
		defer os.RemoveAll(dir)
		m := &model{
			dir: dir, subnets: prefixes(small, "10.129.0.0/30"), added: prefixes("10.130.0.0/30", "10.130.0.4/30"), capacity: 5 + 1,
			leases: map[netip.Addr]string{}, used: map[netip.Addr]bool{},
		}
		m.open(r)
		defer func() { m.ipam.Close() }()
		r.Repeat(rapid.StateMachineActions(m))
	})
}

// model is the expected state of an IPAM. Its exported methods are the actions that rapid draws.
type model struct {
	dir      string
	subnets  []netip.Prefix
	added    []netip.Prefix // subnets of one address that Grow adds
	capacity int            // addresses in subnets

	ipam   *IPAM
	leases map[netip.Addr]string // container ids by address
	freed  [][]netip.Addr        // in the order of releases
	used   map[netip.Addr]bool   // allocated at least once
}

func (m *model) open(r *rapid.T) {
	var err error
	if m.ipam, err = Open(m.dir, "ovsdn", m.subnets); err != nil {
		r.Fatal(err)
	}
}

func (m *model) addrsOf(id string) (list []netip.Addr) {
	for addr, holder := range m.leases {
		if holder == id {
			list = append(list, addr)
		}
	}
	return list
}

func drawID(r *rapid.T) string {
	return rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g", "h"}).Draw(r, "id")
}

func (m *model) Allocate(r *rapid.T) {
	id := drawID(r)
	got, err := m.ipam.Allocate(context.Background(), id, "eth0")
	switch {
	case len(m.addrsOf(id)) > 0:
		if !IsAllocated(err) {
			r.Fatalf("Allocate of an interface with an address: got %v, want AllocatedError", err)
		}
	case len(m.leases) == m.capacity:
		if !IsFull(err) {
			r.Fatalf("Allocate without a free address: got %v, want FullError", err)
		}
	case err != nil:
		r.Fatal(err)
	default:
		m.allocated(r, id, got[0])
	}
}

func (m *model) allocated(r *rapid.T, id string, addr netip.Addr) {
	if !slices.ContainsFunc(m.subnets, func(p netip.Prefix) bool { return p.Contains(addr) }) {
		r.Fatalf("got %s, which is in no subnet", addr)
	}
	if holder, held := m.leases[addr]; held {
		r.Fatalf("got %s, which %s has", addr, holder)
	}
	switch {
	case len(m.used) < m.capacity && m.used[addr]:
		r.Fatalf("got %s again, want an address that was never allocated", addr)
	case len(m.used) == m.capacity && !slices.Contains(m.freed[0], addr):
		r.Fatalf("got %s, want one of the first in %v", addr, m.freed)
	}
	m.freed = without(m.freed, addr)
	m.used[addr], m.leases[addr] = true, id
}

func (m *model) Reserve(r *rapid.T) {
	addrs := []string{"10.128.0.2", "10.128.0.3", "10.128.0.4", "10.128.0.5", "10.128.0.6", "10.129.0.2", "10.130.0.2", "10.130.0.6"}
	id, addr := drawID(r), netip.MustParseAddr(rapid.SampledFrom(addrs[:m.capacity]).Draw(r, "address"))
	holder, held := m.leases[addr]
	err := m.ipam.Reserve(context.Background(), addr, id, "eth0")
	if held && holder != id {
		var conflict *ConflictError
		if !errors.As(err, &conflict) || conflict.ContainerID != holder {
			r.Fatalf("Reserve of %s: got %v, want ConflictError with %s", addr, err, holder)
		}
		return
	}
	if err != nil {
		r.Fatal(err)
	}
	m.freed = without(m.freed, addr)
	m.used[addr], m.leases[addr] = true, id
}

func (m *model) Release(r *rapid.T) {
	id := drawID(r)
	if err := m.ipam.Release(context.Background(), id, "eth0"); err != nil {
		r.Fatal(err)
	}
	if list := m.addrsOf(id); len(list) > 0 {
		m.freed = append(m.freed, list)
	}
	maps.DeleteFunc(m.leases, func(_ netip.Addr, holder string) bool { return holder == id })
}

func (m *model) Restart(r *rapid.T) {
	if err := m.ipam.Close(); err != nil {
		r.Fatal(err)
	}
	m.open(r)
}

func (m *model) Grow(r *rapid.T) {
	if len(m.added) == 0 {
		r.Skip("no subnet to add") // makes rapid choose another action, and skips no test
	}
	m.subnets, m.added = append(m.subnets, m.added[0]), m.added[1:]
	m.capacity++
	m.Restart(r)
}

// Check implements rapid.StateMachine.
func (m *model) Check(r *rapid.T) {
	leases, err := m.ipam.List()
	if err != nil {
		r.Fatal(err)
	}
	got := map[netip.Addr]string{}
	for _, l := range leases {
		got[l.Addr] = l.ContainerID
	}
	if diff := cmp.Diff(m.leases, got); diff != "" {
		r.Fatal(diff)
	}
}

// without returns the groups without the address.
func without(groups [][]netip.Addr, addr netip.Addr) [][]netip.Addr {
	var left [][]netip.Addr
	for _, g := range groups {
		if g = slices.DeleteFunc(g, func(a netip.Addr) bool { return a == addr }); len(g) > 0 {
			left = append(left, g)
		}
	}
	return left
}
