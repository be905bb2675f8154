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
)

// Against a model that allocates, marks, releases, restarts and grows: no address is held twice or outside the subnets, full means full,
// those that nobody had come first and then those that have been free for longest, and a restart changes nothing.
func TestModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		dir, err := os.MkdirTemp("", "ipam")
		if err != nil {
			r.Fatal(err)
		}
		defer os.RemoveAll(dir)
		subnets := prefixes(small, "10.129.0.0/30")
		grown := prefixes("10.130.0.0/30", "10.130.0.4/30")
		addrs := []string{"10.128.0.2", "10.128.0.3", "10.128.0.4", "10.128.0.5", "10.128.0.6", "10.129.0.2", "10.130.0.2", "10.130.0.6"}
		capacity := 5 + 1 // and one in each that is grown
		reopen := func() *IPAM {
			i, err := Open(dir, "ovsdn", subnets)
			if err != nil {
				r.Fatal(err)
			}
			return i
		}
		i := reopen()
		defer func() { i.Close() }()
		model := map[netip.Addr]string{} // who holds what
		holds := func(id string) (list []netip.Addr) {
			for addr, holder := range model {
				if holder == id {
					list = append(list, addr)
				}
			}
			return list
		}
		var freed [][]netip.Addr // in their order, those of one release together
		had := map[netip.Addr]bool{}
		id := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g", "h"})
		r.Repeat(map[string]func(*rapid.T){
			"allocate": func(r *rapid.T) {
				id := id.Draw(r, "id")
				got, err := i.Allocate(context.Background(), id, "eth0")
				switch {
				case len(holds(id)) > 0:
					if !IsHeld(err) {
						r.Fatalf("held: %v", err)
					}
				case len(model) == capacity:
					if !IsFull(err) {
						r.Fatalf("full: %v", err)
					}
				case err != nil:
					r.Fatal(err)
				default:
					if !slices.ContainsFunc(subnets, func(p netip.Prefix) bool { return p.Contains(got[0]) }) {
						r.Fatalf("%s is in no subnet", got[0])
					}
					if other, held := model[got[0]]; held {
						r.Fatalf("%s is %s's", got[0], other)
					}
					switch {
					case len(had) < capacity && had[got[0]]:
						r.Fatalf("%s was given again, though there are fresh ones", got[0])
					case len(had) == capacity && !slices.Contains(freed[0], got[0]):
						r.Fatalf("%s was given, freed are %v", got[0], freed)
					}
					freed = without(freed, got[0])
					had[got[0]] = true
					model[got[0]] = id
				}
			},
			"mark": func(r *rapid.T) {
				id, addr := id.Draw(r, "id"), netip.MustParseAddr(rapid.SampledFrom(addrs[:capacity]).Draw(r, "address"))
				holder, held := model[addr]
				err := i.Reserve(context.Background(), addr, id, "eth0")
				if held && holder != id {
					var conflict *ConflictError
					if !errors.As(err, &conflict) || conflict.ContainerID != holder {
						r.Fatalf("%s is %s's: %v", addr, holder, err)
					}
					return
				}
				if err != nil {
					r.Fatal(err)
				}
				freed = without(freed, addr)
				had[addr], model[addr] = true, id
			},
			"release": func(r *rapid.T) {
				id := id.Draw(r, "id")
				if err := i.Release(context.Background(), id, "eth0"); err != nil {
					r.Fatal(err)
				}
				if list := holds(id); len(list) > 0 {
					freed = append(freed, list)
				}
				maps.DeleteFunc(model, func(_ netip.Addr, holder string) bool { return holder == id })
			},
			"restart": func(r *rapid.T) {
				if err := i.Close(); err != nil {
					r.Fatal(err)
				}
				i = reopen()
			},
			"grow": func(r *rapid.T) {
				if len(grown) == 0 {
					r.Skip("it has grown") // discards rapid's draw of a step, and skips no test
				}
				if err := i.Close(); err != nil {
					r.Fatal(err)
				}
				subnets, grown = append(subnets, grown[0]), grown[1:]
				capacity++
				i = reopen()
			},
			"": func(r *rapid.T) {
				leases, err := i.List()
				if err != nil {
					r.Fatal(err)
				}
				got := map[netip.Addr]string{}
				for _, l := range leases {
					got[l.Addr] = l.ContainerID
				}
				if diff := cmp.Diff(model, got); diff != "" {
					r.Fatal(diff)
				}
			},
		})
	})
}

// without takes an address out of the groups.
func without(groups [][]netip.Addr, addr netip.Addr) [][]netip.Addr {
	var left [][]netip.Addr
	for _, g := range groups {
		if g = slices.DeleteFunc(g, func(a netip.Addr) bool { return a == addr }); len(g) > 0 {
			left = append(left, g)
		}
	}
	return left
}
