// Package netid gives every namespace its NetNamespace.
package netid

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// quarantine is how long a VNID that nobody has any more is given to nobody. A node that lags behind may still tag
// packets with it. Each way in which nodes catch up by themselves takes minutes: a watch whose server is gone is noticed
// after 45 s, and a node that is cut off loses its pods after 6 minutes. An hour is ten times that, and costs nothing:
// at 100 changes a second two of a hundred VNIDs are in quarantine.
const quarantine = time.Hour

// The VNIDs are divided into classes by their last bits. A term of a leader draws from its own: see New.
const (
	classBits = 8
	classes   = 1 << classBits
	perClass  = (uint32(config.MaxVNID) + 1) / classes
)

// Allocator remembers who has which VNID, and gives out free ones at random. It is safe for concurrent use. It does no
// I/O: it knows what it is told.
type Allocator struct {
	class  uint32
	size   uint32 // of a class
	random func(below uint32) uint32
	now    func() time.Time

	mu       sync.Mutex
	vnids    map[string]config.VNID    // by namespace
	holders  map[config.VNID]*holders  // of all that are not free
	resting  map[config.VNID]time.Time // in quarantine, and until when
	schedule []freed                   // of resting, in order; what was taken out of quarantine stays in until its time
}

// holders are who has a VNID.
type holders struct {
	names   map[string]struct{}
	pending int // writes under way
}

func (h *holders) count() int { return len(h.names) + h.pending }

type freed struct {
	vnid  config.VNID
	until time.Time
}

// FullError says that no VNID is free.
type FullError struct {
	Resting int // in quarantine
}

func (e *FullError) Error() string {
	return fmt.Sprintf("no VNID is free; %d are in quarantine for up to %v", e.Resting, quarantine)
}

// NewAllocator returns an Allocator that knows of nothing in use. It draws from the class of the term as long as that has
// free VNIDs, and then from those of the terms before. Random returns a number from 0 to below - 1.
func NewAllocator(term int, random func(below uint32) uint32, now func() time.Time) *Allocator {
	return &Allocator{
		class:   uint32(term) % classes,
		size:    perClass,
		random:  random,
		now:     now,
		vnids:   map[string]config.VNID{},
		holders: map[config.VNID]*holders{},
		resting: map[config.VNID]time.Time{},
	}
}

// Allocate returns a VNID that was free and is reserved now. The error is a *FullError.
func (a *Allocator) Allocate() (config.VNID, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.endQuarantine()
	start := a.random(a.size)
	for i := range classes {
		class := (a.class + classes - uint32(i)) % classes
		for k := range a.size {
			vnid := config.VNID((start+k)%a.size<<classBits | class)
			if a.isFree(vnid) {
				a.hold(vnid).pending++
				return vnid, nil
			}
		}
	}
	return 0, &FullError{Resting: len(a.resting)}
}

// Reserve keeps a VNID from becoming free, for a write that is under way.
func (a *Allocator) Reserve(vnid config.VNID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.hold(vnid).pending++
}

// Unreserve takes one reservation back. A VNID whose write has failed goes through quarantine too: the write may have
// arrived.
func (a *Allocator) Unreserve(vnid config.VNID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.holders[vnid].pending--
	a.free(vnid)
}

// Set makes the namespace have the VNID instead of the one that it had. Any number is accepted, and others may have it too.
func (a *Allocator) Set(name string, vnid config.VNID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	former, had := a.vnids[name]
	if had && former == vnid {
		return
	}
	a.hold(vnid).names[name] = struct{}{}
	a.vnids[name] = vnid
	if had {
		a.drop(name, former)
	}
}

// Remove takes the namespace's VNID away.
func (a *Allocator) Remove(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if former, had := a.vnids[name]; had {
		delete(a.vnids, name)
		a.drop(name, former)
	}
}

// HeldBy returns the namespace's VNID.
func (a *Allocator) HeldBy(name string) (config.VNID, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	vnid, ok := a.vnids[name]
	return vnid, ok
}

// IsShared says whether others than the namespace have the VNID, or may have it soon.
func (a *Allocator) IsShared(name string, vnid config.VNID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	h, ok := a.holders[vnid]
	if !ok {
		return false
	}
	others := h.count()
	if _, own := h.names[name]; own {
		others--
	}
	return others > 0
}

// Others returns all other namespaces that have the VNID, sorted.
func (a *Allocator) Others(name string, vnid config.VNID) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	h, ok := a.holders[vnid]
	if !ok {
		return nil
	}
	others := slices.Sorted(maps.Keys(h.names))
	return slices.DeleteFunc(others, func(other string) bool { return other == name })
}

func (a *Allocator) isFree(vnid config.VNID) bool {
	_, held := a.holders[vnid]
	_, resting := a.resting[vnid]
	return vnid >= config.MinVNID && !held && !resting
}

func (a *Allocator) hold(vnid config.VNID) *holders {
	h, ok := a.holders[vnid]
	if !ok {
		h = &holders{names: map[string]struct{}{}}
		a.holders[vnid] = h
		delete(a.resting, vnid)
	}
	return h
}

func (a *Allocator) drop(name string, vnid config.VNID) {
	delete(a.holders[vnid].names, name)
	a.free(vnid)
}

// free puts a VNID that nobody has any more into quarantine. Those that are never given out need none.
func (a *Allocator) free(vnid config.VNID) {
	if a.holders[vnid].count() > 0 {
		return
	}
	delete(a.holders, vnid)
	if vnid < config.MinVNID {
		return
	}
	a.endQuarantine()
	until := a.now().Add(quarantine)
	a.resting[vnid] = until
	a.schedule = append(a.schedule, freed{vnid, until})
}

func (a *Allocator) endQuarantine() {
	now := a.now()
	for len(a.schedule) > 0 && !a.schedule[0].until.After(now) {
		r := a.schedule[0]
		a.schedule = a.schedule[1:]
		if a.resting[r.vnid].Equal(r.until) {
			delete(a.resting, r.vnid)
		}
	}
}
