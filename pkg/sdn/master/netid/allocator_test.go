package netid

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/seed"
)

// known is the model of a VNID that Allocate has returned.
type known struct {
	inUse bool
	until time.Time // the end of its quarantine
}

// namesOf returns the names that have the VNID, sorted.
func namesOf(vnids map[string]config.VNID, vnid config.VNID) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(vnids)) {
		if vnids[name] == vnid {
			names = append(names, name)
		}
	}
	return names
}

// No VNID is allocated while it is in use or in quarantine: compares with a model, with few VNIDs so that they collide.
func TestAllocator_equalsModel(t *testing.T) {
	seed.Fix(t)
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(0, 0)
		random := func(n uint32) uint32 { return rapid.Uint32Range(0, 3).Draw(t, "random") % n }
		term := rapid.IntRange(0, 1000).Draw(t, "term")
		start := func() *Allocator { return NewAllocator(term, random, func() time.Time { return now }) }
		a := start()
		names := map[string]config.VNID{}
		pending := map[config.VNID]int{}
		model := map[config.VNID]*known{}
		terms := 0

		users := func(vnid config.VNID) int { return len(namesOf(names, vnid)) + pending[vnid] }
		step := func() { // the quarantine of VNIDs that are no longer in use begins
			for vnid, k := range model {
				inUse := users(vnid) > 0
				if k.inUse && !inUse {
					k.until = now.Add(quarantine)
				}
				k.inUse = inUse
			}
		}
		allocate := func(t *rapid.T) config.VNID {
			vnid, err := a.Allocate()
			if err != nil {
				t.Fatal(err)
			}
			if vnid < config.MinVNID || vnid > config.MaxVNID || uint32(vnid)%partitions != uint32(term)%partitions {
				t.Fatalf("got VNID %d in term %d, want one of its partition", vnid, term)
			}
			if n := users(vnid); n > 0 {
				t.Fatalf("got VNID %d, want one without users: it has %d", vnid, n)
			}
			if k := model[vnid]; k != nil && now.Before(k.until) {
				t.Fatalf("got VNID %d, which is in quarantine for another %v", vnid, k.until.Sub(now))
			}
			model[vnid] = &known{}
			pending[vnid]++
			return vnid
		}
		unreserve := func(vnid config.VNID) {
			a.Unreserve(vnid)
			if pending[vnid]--; pending[vnid] == 0 {
				delete(pending, vnid)
			}
		}
		name := rapid.StringMatching(`ns[0-9]`)
		used := func(t *rapid.T) (config.VNID, bool) {
			if len(names) == 0 {
				return 0, false
			}
			return names[rapid.SampledFrom(slices.Sorted(maps.Keys(names))).Draw(t, "user")], true
		}
		t.Repeat(map[string]func(*rapid.T){
			"create": func(t *rapid.T) {
				vnid, n := allocate(t), name.Draw(t, "name")
				a.Set(n, vnid)
				names[n] = vnid
				unreserve(vnid)
			},
			"fail to create": func(t *rapid.T) {
				vnid := allocate(t)
				step() // it is in use while the write is in progress
				unreserve(vnid)
			},
			"begin a write": func(t *rapid.T) { allocate(t) },
			"end a write": func(t *rapid.T) {
				if len(pending) > 0 {
					unreserve(rapid.SampledFrom(slices.Sorted(maps.Keys(pending))).Draw(t, "VNID"))
				}
			},
			"join": func(t *rapid.T) {
				vnid, ok := used(t)
				if !ok {
					return
				}
				a.Reserve(vnid)
				n := name.Draw(t, "name")
				if rapid.Bool().Draw(t, "succeeds") {
					a.Set(n, vnid)
					names[n] = vnid
				}
				a.Unreserve(vnid)
			},
			"write by hand": func(t *rapid.T) {
				n, vnid := name.Draw(t, "name"), config.VNID(rapid.Uint32Range(0, 3*partitions).Draw(t, "VNID"))
				a.Set(n, vnid)
				names[n] = vnid
			},
			"remove": func(t *rapid.T) {
				n := name.Draw(t, "name")
				a.Release(n)
				delete(names, n)
			},
			"wait": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, int(quarantine)).Draw(t, "time")))
			},
			// Writes in progress succeed or fail before the next leader loads its state.
			"another leader": func(t *rapid.T) {
				if terms++; terms == partitions {
					return
				}
				term++
				clear(pending)
				step()
				a = start()
				for n, vnid := range names {
					a.Set(n, vnid)
				}
			},
			"": func(t *rapid.T) {
				step()
				for n, want := range names {
					if got, ok := a.VNID(n); !ok || got != want {
						t.Fatalf("got VNID %d, %t of %s, want %d", got, ok, n, want)
					}
				}
				n := name.Draw(t, "compared")
				vnid, has := a.VNID(n)
				if _, want := names[n]; has != want {
					t.Fatalf("got a VNID of %s: %t, want %t", n, has, want)
				}
				if !has {
					return
				}
				others := slices.DeleteFunc(namesOf(names, vnid), func(other string) bool { return other == n })
				if diff := cmp.Diff(others, a.Others(n, vnid), cmpopts.EquateEmpty()); diff != "" {
					t.Fatalf("others (-want +got): %s", diff)
				}
				if got, want := a.IsShared(n, vnid), users(vnid) > 1; got != want {
					t.Fatalf("got VNID %d of %s shared: %t, want %t", vnid, n, got, want)
				}
			},
		})
	})
}

// The quarantine holds after a restart too, since the next term uses other VNIDs.
func TestAllocate_partitionOfTerm(t *testing.T) {
	same := func(uint32) uint32 { return 7 }
	seen := map[config.VNID]bool{}
	for term := range partitions {
		vnid, err := NewAllocator(term, same, time.Now).Allocate()
		if err != nil || seen[vnid] {
			t.Fatalf("term %d: got %d, %v, want a VNID of no other term", term, vnid, err)
		}
		seen[vnid] = true
	}
}

func TestAllocate_fullPartition(t *testing.T) {
	random := seed.Rand(t)
	a := NewAllocator(3, random.Uint32N, time.Now)
	for i := range partitionSize {
		a.Set(fmt.Sprint("ns", i), config.VNID(i<<partitionBits|3))
	}
	seen := map[config.VNID]bool{}
	for range 100 {
		vnid, err := a.Allocate()
		if err != nil || seen[vnid] || uint32(vnid)%partitions != 2 {
			t.Fatalf("got %d, %v, want another VNID of the previous partition", vnid, err)
		}
		seen[vnid] = true
	}
}

func TestAllocate_full(t *testing.T) {
	a := NewAllocator(0, func(uint32) uint32 { return 0 }, time.Now)
	a.partitionSize = 1
	for i := range partitions - int(config.MinVNID) {
		vnid, err := a.Allocate()
		if err != nil {
			t.Fatalf("allocate after %d: %v", i, err)
		}
		a.Set(fmt.Sprint("ns", i), vnid)
		a.Unreserve(vnid)
	}
	a.Release("ns0")
	_, err := a.Allocate()
	if full, is := errors.AsType[*FullError](err); !is || full.Quarantined != 1 {
		t.Errorf("got %v, want a FullError with 1 VNID in quarantine", err)
	}
}

// A VNID leaves quarantine early if a user writes it into a NetNamespace. The next release starts a new quarantine.
func TestQuarantine_restarts(t *testing.T) {
	now := time.Unix(0, 0)
	a := NewAllocator(0, func(uint32) uint32 { return 1 }, func() time.Time { return now })
	const vnid = partitions
	a.Set("red", vnid)
	a.Release("red")
	now = now.Add(quarantine / 2)
	a.Set("red", vnid)
	a.Release("red")
	now = now.Add(quarantine / 2)
	if got, _ := a.Allocate(); got == vnid {
		t.Error("got the VNID half an hour before the end of its quarantine")
	}
	now = now.Add(quarantine / 2)
	if got, _ := a.Allocate(); got != vnid {
		t.Errorf("got VNID %d after the quarantine, want %d", got, vnid)
	}
	if len(a.expiries) != 0 || len(a.quarantined) != 0 {
		t.Errorf("got expiries %v and quarantined %v, want none", a.expiries, a.quarantined)
	}
}

// A clock that is set back extends the quarantine, by a limited time.
func TestQuarantine_clockSetBack(t *testing.T) {
	now := time.Unix(1e9, 0)
	a := NewAllocator(0, func(uint32) uint32 { return 1 }, func() time.Time { return now })
	const before, after = partitions, 2 * partitions
	for name, vnid := range map[string]config.VNID{"red": before, "blue": after} {
		a.Set(name, vnid)
	}
	a.Release("red")
	now = now.Add(-quarantine)
	a.Release("blue")
	for passed := time.Duration(0); passed < 2*quarantine; passed += quarantine / 4 {
		vnid, err := a.Allocate()
		if err != nil {
			t.Fatal(err)
		}
		if passed < quarantine && (vnid == before || vnid == after) {
			t.Errorf("got VNID %d %v after its release, want at least %v", vnid, passed, quarantine)
		}
		a.Set(passed.String(), vnid)
		a.Unreserve(vnid)
		now = now.Add(quarantine / 4)
	}
	if len(a.quarantined) != 0 {
		a.endQuarantine()
	}
	for _, vnid := range []config.VNID{before, after} {
		if !a.isFree(vnid) {
			t.Errorf("got VNID %d in use %v after its release, want it free", vnid, 2*quarantine)
		}
	}
}
