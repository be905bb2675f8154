package netid

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// given is a VNID that Allocate has returned, and when it was last seen in use.
type given struct {
	inUse bool
	until time.Time
}

// TestNoVNIDIsGivenWhileItIsUsedOrRests allocates, joins, writes by hand, fails, frees, waits and restarts in any order,
// on a few VNIDs that all collide, and compares with the obvious.
func TestNoVNIDIsGivenWhileItIsUsedOrRests(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(0, 0)
		random := func(below uint32) uint32 { return rapid.Uint32Range(0, 3).Draw(t, "random") % below }
		term := rapid.IntRange(0, 1000).Draw(t, "term")
		start := func() *Allocator { return NewAllocator(term, random, func() time.Time { return now }) }
		a := start()
		names := map[string]config.VNID{}
		pending := map[config.VNID]int{}
		known := map[config.VNID]*given{}
		terms := 0

		holders := func(vnid config.VNID) (n int) {
			for _, v := range names {
				if v == vnid {
					n++
				}
			}
			return n + pending[vnid]
		}
		note := func() { // after each step: what is out of use since now rests from now on
			for vnid, g := range known {
				use := holders(vnid) > 0
				if g.inUse && !use {
					g.until = now.Add(quarantine)
				}
				g.inUse = use
			}
		}
		allocate := func(t *rapid.T) config.VNID {
			vnid, err := a.Allocate()
			if err != nil {
				t.Fatal(err)
			}
			if vnid < config.MinVNID || vnid > config.MaxVNID || uint32(vnid)%classes != uint32(term)%classes {
				t.Fatalf("term %d gives %d", term, vnid)
			}
			if n := holders(vnid); n > 0 {
				t.Fatalf("%d is given, and %d have it", vnid, n)
			}
			if g := known[vnid]; g != nil && now.Before(g.until) {
				t.Fatalf("%d is given %v too early", vnid, g.until.Sub(now))
			}
			known[vnid] = &given{}
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
		held := func(t *rapid.T) (config.VNID, bool) {
			if len(names) == 0 {
				return 0, false
			}
			return names[rapid.SampledFrom(slices.Sorted(maps.Keys(names))).Draw(t, "held by")], true
		}
		t.Repeat(map[string]func(*rapid.T){
			"give": func(t *rapid.T) {
				vnid, n := allocate(t), name.Draw(t, "name")
				a.Set(n, vnid)
				names[n] = vnid
				unreserve(vnid)
			},
			"fail to give": func(t *rapid.T) {
				vnid := allocate(t)
				note() // it is in use for as long as the write is under way
				unreserve(vnid)
			},
			"begin to give": func(t *rapid.T) { allocate(t) },
			"end a write": func(t *rapid.T) {
				if len(pending) > 0 {
					unreserve(rapid.SampledFrom(slices.Sorted(maps.Keys(pending))).Draw(t, "VNID"))
				}
			},
			"join": func(t *rapid.T) {
				vnid, ok := held(t)
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
				n, vnid := name.Draw(t, "name"), config.VNID(rapid.Uint32Range(0, 3*classes).Draw(t, "VNID"))
				a.Set(n, vnid)
				names[n] = vnid
			},
			"remove": func(t *rapid.T) {
				n := name.Draw(t, "name")
				a.Remove(n)
				delete(names, n)
			},
			"wait": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, int(quarantine)).Draw(t, "time")))
			},
			// Writes under way come to their end, or fail: the next leader sees which.
			"another leader": func(t *rapid.T) {
				if terms++; terms == classes {
					return
				}
				term++
				clear(pending)
				note()
				a = start()
				for n, vnid := range names {
					a.Set(n, vnid)
				}
			},
			"": func(t *rapid.T) {
				note()
				for n, want := range names {
					if got, ok := a.HeldBy(n); !ok || got != want {
						t.Fatalf("%s has %d, %v; want %d", n, got, ok, want)
					}
				}
				n := name.Draw(t, "asked")
				vnid, has := a.HeldBy(n)
				if _, want := names[n]; has != want {
					t.Fatalf("%s has a VNID: %v", n, has)
				}
				if !has {
					return
				}
				var others []string
				for other, v := range names {
					if v == vnid && other != n {
						others = append(others, other)
					}
				}
				slices.Sort(others)
				if diff := cmp.Diff(others, a.Others(n, vnid), cmpopts.EquateEmpty()); diff != "" {
					t.Fatal(diff)
				}
				if got, want := a.IsShared(n, vnid), holders(vnid) > 1; got != want {
					t.Fatalf("%d of %s is shared: %v", vnid, n, got)
				}
			},
		})
	})
}

// Quarantine is kept by a restart as well: the next term draws from other VNIDs.
func TestTermsDrawFromDifferentVNIDs(t *testing.T) {
	same := func(uint32) uint32 { return 7 }
	seen := map[config.VNID]bool{}
	for term := range classes {
		vnid, err := NewAllocator(term, same, time.Now).Allocate()
		if err != nil || seen[vnid] {
			t.Fatalf("term %d: %d, %v", term, vnid, err)
		}
		seen[vnid] = true
	}
}

// A class that is full is no end: more namespaces than that get VNIDs, each another.
func TestAllocatorGivesMoreThanOneClass(t *testing.T) {
	a := NewAllocator(3, rand.Uint32N, time.Now)
	for i := range perClass {
		a.Set(fmt.Sprint("ns", i), config.VNID(i<<classBits|3))
	}
	seen := map[config.VNID]bool{}
	for range 100 {
		vnid, err := a.Allocate()
		if err != nil || seen[vnid] || uint32(vnid)%classes != 2 {
			t.Fatalf("%d, %v", vnid, err)
		}
		seen[vnid] = true
	}
}

// The error of an allocator that has nothing left says how much of that comes back by itself.
func TestFullAllocatorSaysWhatRests(t *testing.T) {
	a := NewAllocator(0, func(uint32) uint32 { return 0 }, time.Now)
	a.size = 1
	for i := range classes - int(config.MinVNID) {
		vnid, err := a.Allocate()
		if err != nil {
			t.Fatalf("after %d: %v", i, err)
		}
		a.Set(fmt.Sprint("ns", i), vnid)
		a.Unreserve(vnid)
	}
	a.Remove("ns0")
	_, err := a.Allocate()
	if full, is := errors.AsType[*FullError](err); !is || full.Resting != 1 {
		t.Errorf("got %v", err)
	}
}

// What left quarantine early, because somebody wrote the VNID by hand, and came back later, is not freed at the first time.
func TestQuarantineBeginsAnew(t *testing.T) {
	now := time.Unix(0, 0)
	a := NewAllocator(0, func(uint32) uint32 { return 1 }, func() time.Time { return now })
	const vnid = classes
	a.Set("red", vnid)
	a.Remove("red")
	now = now.Add(quarantine / 2)
	a.Set("red", vnid)
	a.Remove("red")
	now = now.Add(quarantine / 2)
	if got, _ := a.Allocate(); got == vnid {
		t.Error("given half an hour too early")
	}
	now = now.Add(quarantine / 2)
	if got, _ := a.Allocate(); got != vnid {
		t.Errorf("after its time: %d is given instead", got)
	}
	if len(a.schedule) != 0 || len(a.resting) != 0 {
		t.Errorf("left behind: %v, %v", a.schedule, a.resting)
	}
}

// A clock that is set back prolongs the quarantine of VNIDs, not for ever, and no VNID is allocated early.
func TestQuarantineOverAClockThatIsSetBack(t *testing.T) {
	now := time.Unix(1e9, 0)
	a := NewAllocator(0, func(uint32) uint32 { return 1 }, func() time.Time { return now })
	const before, after = classes, 2 * classes
	for name, vnid := range map[string]config.VNID{"red": before, "blue": after} {
		a.Set(name, vnid)
	}
	a.Remove("red")
	now = now.Add(-quarantine)
	a.Remove("blue")
	for passed := time.Duration(0); passed < 2*quarantine; passed += quarantine / 4 {
		vnid, err := a.Allocate()
		if err != nil {
			t.Fatal(err)
		}
		if passed < quarantine && (vnid == before || vnid == after) {
			t.Errorf("%d was allocated %v after it came free", vnid, passed)
		}
		a.Set(passed.String(), vnid)
		a.Unreserve(vnid)
		now = now.Add(quarantine / 4)
	}
	if len(a.resting) != 0 {
		a.endQuarantine()
	}
	for _, vnid := range []config.VNID{before, after} {
		if !a.isFree(vnid) {
			t.Errorf("%d is not free %v after it came free", vnid, 2*quarantine)
		}
	}
}
