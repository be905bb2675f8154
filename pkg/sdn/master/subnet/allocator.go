// Package subnet gives every node its HostSubnet.
package subnet

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// Allocator remembers who holds which subnets, and gives out free ones of the cluster network's ranges in
// OpenShift SDN's order: the first range that has one; in it, the first behind the last one given, around the end. What
// overlaps anything held is not free, whatever its size.
//
// An Allocator is safe for concurrent use. It does no I/O: it knows what it is told.
type Allocator struct {
	mu       sync.Mutex
	spans    []*span
	byHolder map[string][]netip.Prefix
	holds    []Hold // sorted, see compareHolds
}

// Hold is a subnet in use.
type Hold struct {
	Holder string
	Subnet netip.Prefix
}

// FullError says that no range has a free subnet.
type FullError struct {
	Networks []config.ClusterNetwork
}

func (e *FullError) Error() string {
	ranges := make([]string, len(e.Networks))
	for i, n := range e.Networks {
		ranges[i] = n.String()
	}
	return "no subnet is free in the cluster network " + strings.Join(ranges, ", ")
}

// NewAllocator returns an allocator without ranges and with nothing held.
func NewAllocator() *Allocator {
	return &Allocator{byHolder: map[string][]netip.Prefix{}}
}

// SetNetworks makes these the ranges, in this order, if agree has no objection to that while all this is held; its error
// is returned. It must not call the allocator, which gives nothing out meanwhile. Holds stay as they are, also those that
// are outside of all ranges now. A range that grew or shrank goes on behind the last subnet that it gave.
func (a *Allocator) SetNetworks(networks []config.ClusterNetwork, agree func(held []Hold) error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := agree(a.holds); err != nil {
		return err
	}
	spans := make([]*span, len(networks))
	for i, n := range networks {
		spans[i] = newSpan(n)
		for _, h := range a.holds {
			spans[i].cover(h.Subnet, 1)
		}
		for _, former := range slices.Backward(a.spans) { // of several that became one the first counts
			spans[i].continueFrom(former)
		}
	}
	a.spans = spans
	return nil
}

// Allocate gives the holder one more subnet. The error is a *FullError.
func (a *Allocator) Allocate(holder string) (netip.Prefix, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	full := &FullError{}
	for _, s := range a.spans {
		if p, ok := s.take(); ok {
			a.hold(holder, p)
			return p, nil
		}
		full.Networks = append(full.Networks, s.ClusterNetwork)
	}
	return netip.Prefix{}, full
}

// MarkAllocated makes the holder hold exactly these subnets. They need not be subnets that Allocate gives out: other
// lengths are fine, and so are ranges outside of the cluster network and subnets that others hold. It returns
// whether the holder gave anything back.
func (a *Allocator) MarkAllocated(holder string, subnets ...netip.Prefix) (freed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.byHolder[holder]
	if slices.Equal(before, subnets) {
		return false
	}
	a.release(holder)
	for _, p := range subnets {
		a.hold(holder, p.Masked())
	}
	return slices.ContainsFunc(before, func(p netip.Prefix) bool { return !slices.Contains(a.byHolder[holder], p) })
}

// Release frees all that the holder holds, and returns whether that is anything.
func (a *Allocator) Release(holder string) (freed bool) {
	return a.MarkAllocated(holder)
}

// HeldBy returns what the holder holds, in the order in which it was marked or given.
func (a *Allocator) HeldBy(holder string) []netip.Prefix {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.byHolder[holder])
}

// Overlapping returns what has addresses in common with p and is held by others than the holder, sorted by address.
func (a *Allocator) Overlapping(holder string, p netip.Prefix) []Hold {
	a.mu.Lock()
	defer a.mu.Unlock()
	var found []Hold
	collect := func(from int, more func(netip.Prefix) bool) {
		for _, h := range a.holds[from:] {
			if !more(h.Subnet) {
				return
			}
			if h.Holder != holder {
				found = append(found, h)
			}
		}
	}
	p = p.Masked()
	for bits := range p.Bits() { // what contains p
		around := netip.PrefixFrom(p.Addr(), bits).Masked()
		collect(a.search(Hold{Subnet: around}), func(q netip.Prefix) bool { return q == around })
	}
	// p itself and what it contains follow each other.
	collect(a.search(Hold{Subnet: p}), p.Overlaps)
	return found
}

func (a *Allocator) hold(holder string, p netip.Prefix) {
	h := Hold{Holder: holder, Subnet: p}
	a.byHolder[holder] = append(a.byHolder[holder], p)
	a.holds = slices.Insert(a.holds, a.search(h), h)
	for _, s := range a.spans {
		s.cover(p, 1)
	}
}

func (a *Allocator) release(holder string) {
	for _, p := range a.byHolder[holder] {
		i := a.search(Hold{Holder: holder, Subnet: p})
		a.holds = slices.Delete(a.holds, i, i+1)
		for _, s := range a.spans {
			s.cover(p, -1)
		}
	}
	delete(a.byHolder, holder)
}

// search returns where h is in holds, or would be.
func (a *Allocator) search(h Hold) int {
	i, _ := slices.BinarySearchFunc(a.holds, h, compareHolds)
	return i
}

// compareHolds sorts by address, then the wider first, then by holder: a subnet is followed by those inside it.
func compareHolds(a, b Hold) int {
	return cmp.Or(
		a.Subnet.Addr().Compare(b.Subnet.Addr()),
		cmp.Compare(a.Subnet.Bits(), b.Subnet.Bits()),
		cmp.Compare(a.Holder, b.Holder),
	)
}

// String is for logs.
func (h Hold) String() string { return fmt.Sprintf("%s of %s", h.Subnet, h.Holder) }
