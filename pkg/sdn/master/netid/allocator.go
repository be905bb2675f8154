// Package netid allocates a VNID and a NetNamespace for every Namespace.
package netid

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// quarantine is the time for which a released VNID is not allocated again, since a node with an outdated configuration may still use it. Nodes
// catch up within minutes: a node detects a broken watch after 45 s, and an unreachable node loses its pods after 6 minutes. An hour is
// ten times that, and cheap: at 100 changes a second, 2 % of the VNIDs are in quarantine.
const quarantine = time.Hour

// The VNIDs are divided into partitions by their last bits. Each term of a leader allocates from its own partition: see Controller.
const (
	partitionBits = 8
	partitions    = 1 << partitionBits
	partitionSize = (uint32(config.MaxVNID) + 1) / partitions
)

// Allocator allocates VNIDs at random. A VNID is free if no namespace has it, no write of it is in progress, and it is not in quarantine.
//
// An Allocator is safe for concurrent use. It does no I/O.
type Allocator struct {
	partition     uint32
	partitionSize uint32
	random        func(n uint32) uint32
	now           func() time.Time

	mu          sync.Mutex
	byNamespace map[string]config.VNID
	allocations map[config.VNID]*allocation
	quarantined map[config.VNID]time.Time // end of the quarantine
	expiries    []expiry                  // sorted; may contain VNIDs that left quarantine early
}

// allocation is the use of a VNID that is not free.
type allocation struct {
	namespaces map[string]struct{}
	pending    int // writes in progress
}

func (a *allocation) count() int { return len(a.namespaces) + a.pending }

// expiry is the end of the quarantine of a VNID.
type expiry struct {
	vnid config.VNID
	at   time.Time
}

// FullError is returned if no VNID is free.
type FullError struct {
	Quarantined int // VNIDs in quarantine
}

func (e *FullError) Error() string {
	return fmt.Sprintf("no VNID is free; %d are in quarantine for up to %v", e.Quarantined, quarantine)
}

// NewAllocator returns an allocator without allocations. It uses the partition of the term while that has free VNIDs, and then
// those of the previous terms. random returns a number in [0, n).
func NewAllocator(term int, random func(n uint32) uint32, now func() time.Time) *Allocator {
	return &Allocator{
		partition:     uint32(term) % partitions,
		partitionSize: partitionSize,
		random:        random,
		now:           now,
		byNamespace:   map[string]config.VNID{},
		allocations:   map[config.VNID]*allocation{},
		quarantined:   map[config.VNID]time.Time{},
	}
}

// Allocate reserves a free VNID. The error is a *FullError.
func (a *Allocator) Allocate() (config.VNID, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.endQuarantine()
	start := a.random(a.partitionSize)
	for i := range partitions {
		partition := (a.partition + partitions - uint32(i)) % partitions
		for k := range a.partitionSize {
			vnid := config.VNID((start+k)%a.partitionSize<<partitionBits | partition)
			if a.isFree(vnid) {
				a.allocation(vnid).pending++
				return vnid, nil
			}
		}
	}
	return 0, &FullError{Quarantined: len(a.quarantined)}
}

// Reserve prevents that a VNID becomes free while it is written.
func (a *Allocator) Reserve(vnid config.VNID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.allocation(vnid).pending++
}

// Unreserve cancels one reservation. A VNID whose write has failed is quarantined too, since the write may have succeeded all the same.
func (a *Allocator) Unreserve(vnid config.VNID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.allocations[vnid].pending--
	a.releaseUnused(vnid)
}

// Set replaces the VNID of the namespace. It accepts any number, and one that other namespaces have.
func (a *Allocator) Set(namespace string, vnid config.VNID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	previous, had := a.byNamespace[namespace]
	if had && previous == vnid {
		return
	}
	a.allocation(vnid).namespaces[namespace] = struct{}{}
	a.byNamespace[namespace] = vnid
	if had {
		a.release(namespace, previous)
	}
}

// Release releases the VNID of the namespace.
func (a *Allocator) Release(namespace string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if vnid, ok := a.byNamespace[namespace]; ok {
		delete(a.byNamespace, namespace)
		a.release(namespace, vnid)
	}
}

// VNID returns the VNID of the namespace.
func (a *Allocator) VNID(namespace string) (config.VNID, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	vnid, ok := a.byNamespace[namespace]
	return vnid, ok
}

// IsShared reports whether another namespace has the VNID, or a write of it is in progress.
func (a *Allocator) IsShared(namespace string, vnid config.VNID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	x, ok := a.allocations[vnid]
	if !ok {
		return false
	}
	others := x.count()
	if _, has := x.namespaces[namespace]; has {
		others--
	}
	return others > 0
}

// Others returns the other namespaces that have the VNID, sorted.
func (a *Allocator) Others(namespace string, vnid config.VNID) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	x, ok := a.allocations[vnid]
	if !ok {
		return nil
	}
	others := slices.Sorted(maps.Keys(x.namespaces))
	return slices.DeleteFunc(others, func(other string) bool { return other == namespace })
}

func (a *Allocator) isFree(vnid config.VNID) bool {
	_, allocated := a.allocations[vnid]
	_, quarantined := a.quarantined[vnid]
	return vnid >= config.MinVNID && !allocated && !quarantined
}

// allocation returns the allocation of the VNID. If there is none, it creates an empty one and ends the quarantine of the VNID.
func (a *Allocator) allocation(vnid config.VNID) *allocation {
	x, ok := a.allocations[vnid]
	if !ok {
		x = &allocation{namespaces: map[string]struct{}{}}
		a.allocations[vnid] = x
		delete(a.quarantined, vnid)
	}
	return x
}

func (a *Allocator) release(namespace string, vnid config.VNID) {
	delete(a.allocations[vnid].namespaces, namespace)
	a.releaseUnused(vnid)
}

// releaseUnused starts the quarantine of a VNID without users. VNIDs that are never allocated need none.
func (a *Allocator) releaseUnused(vnid config.VNID) {
	if a.allocations[vnid].count() > 0 {
		return
	}
	delete(a.allocations, vnid)
	if vnid < config.MinVNID {
		return
	}
	a.endQuarantine()
	until := a.now().Add(quarantine)
	a.quarantined[vnid] = until
	a.expiries = append(a.expiries, expiry{vnid, until})
}

// endQuarantine makes VNIDs free whose quarantine has expired.
func (a *Allocator) endQuarantine() {
	now := a.now()
	for len(a.expiries) > 0 && !a.expiries[0].at.After(now) {
		e := a.expiries[0]
		a.expiries = a.expiries[1:]
		if a.quarantined[e.vnid].Equal(e.at) { // not if it was allocated and quarantined again
			delete(a.quarantined, e.vnid)
		}
	}
}
