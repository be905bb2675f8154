package ipam

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// Against a model: no address is held twice or outside the subnets, full means full, those that nobody had come first and then those
// that have been free for longest, and a restart changes nothing.
func TestModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		dir, err := os.MkdirTemp("", "ipam")
		if err != nil {
			r.Fatal(err)
		}
		defer os.RemoveAll(dir)
		subnets := prefixes(small, "10.129.0.0/30")
		const capacity = 5 + 1
		reopen := func() *IPAM {
			i, err := Open(dir, "ovsdn", subnets)
			if err != nil {
				r.Fatal(err)
			}
			return i
		}
		i := reopen()
		defer func() { i.Close() }()
		model := map[string]netip.Addr{}
		var freed []netip.Addr // in their order
		had := map[netip.Addr]bool{}
		id := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g", "h"})
		r.Repeat(map[string]func(*rapid.T){
			"allocate": func(r *rapid.T) {
				id := id.Draw(r, "id")
				got, err := i.Allocate(context.Background(), id, "eth0")
				switch _, held := model[id]; {
				case held:
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
					if !subnets[0].Contains(got[0]) && !subnets[1].Contains(got[0]) {
						r.Fatalf("%s is in no subnet", got[0])
					}
					for other, addr := range model {
						if addr == got[0] {
							r.Fatalf("%s is %s's", addr, other)
						}
					}
					switch n := slices.Index(freed, got[0]); {
					case len(had) < capacity && had[got[0]]:
						r.Fatalf("%s was given again, though there are fresh ones", got[0])
					case len(had) == capacity && n != 0:
						r.Fatalf("%s was given, freed are %v", got[0], freed)
					case n == 0:
						freed = freed[1:]
					}
					had[got[0]] = true
					model[id] = got[0]
				}
			},
			"release": func(r *rapid.T) {
				id := id.Draw(r, "id")
				if err := i.Release(context.Background(), id, "eth0"); err != nil {
					r.Fatal(err)
				}
				if addr, held := model[id]; held {
					freed = append(freed, addr)
				}
				delete(model, id)
			},
			"restart": func(r *rapid.T) {
				if err := i.Close(); err != nil {
					r.Fatal(err)
				}
				i = reopen()
			},
			"": func(r *rapid.T) {
				leases, err := i.List()
				if err != nil {
					r.Fatal(err)
				}
				got := map[string]netip.Addr{}
				for _, l := range leases {
					got[l.ContainerID] = l.Addr
				}
				if diff := cmp.Diff(model, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
					r.Fatal(diff)
				}
			},
		})
	})
}
