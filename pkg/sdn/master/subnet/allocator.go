// Package subnet allocates a HostSubnet for every Node.
package subnet

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// Allocator allocates subnets from the ranges of the cluster network, in the order of OpenShift SDN: from the first range with a free
// subnet, the first one after the subnet that was allocated last, wrapping around. A subnet is free if it overlaps no allocation,
// of any length.
//
// An Allocator is safe for concurrent use. It does no I/O.
type Allocator struct {
	mu          sync.Mutex
	ranges      []*subnetRange
	byOwner     map[string][]netip.Prefix
	allocations []Allocation // sorted by compareAllocations
}

// Allocation is a subnet in use.
type Allocation struct {
	Owner  string // the name of the HostSubnet
	Subnet netip.Prefix
}

// FullError is returned if no range has a free subnet.
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

// NewAllocator returns an allocator without ranges and allocations.
func NewAllocator() *Allocator {
	return &Allocator{byOwner: map[string][]netip.Prefix{}}
}

// SetNetworks replaces the ranges, unless validate returns an error for the current allocations, which SetNetworks returns. validate runs under the
// allocator's lock, so that no subnet is allocated in between, and must not call the allocator. Allocations outside of the new ranges
// are retained. A range that was extended or reduced continues after its last allocated subnet.
func (a *Allocator) SetNetworks(networks []config.ClusterNetwork, validate func([]Allocation) error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := validate(a.allocations); err != nil {
		return err
	}
	ranges := make([]*subnetRange, len(networks))
	for i, n := range networks {
		ranges[i] = newRange(n)
		for _, x := range a.allocations {
			ranges[i].mark(x.Subnet, 1)
		}
		for _, previous := range slices.Backward(a.ranges) { // if several were merged, the first one determines the position
			ranges[i].continueAfter(previous)
		}
	}
	a.ranges = ranges
	return nil
}

// Allocate allocates another subnet for the owner. The error is a *FullError.
func (a *Allocator) Allocate(owner string) (netip.Prefix, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	full := &FullError{}
	for _, r := range a.ranges {
		if p, ok := r.nextFree(); ok {
			a.add(owner, p)
			return p, nil
		}
		full.Networks = append(full.Networks, r.ClusterNetwork)
	}
	return netip.Prefix{}, full
}

// MarkAllocated replaces the allocations of the owner, and returns whether a subnet was released. The subnets may have any length, and
// may be outside of the ranges or overlap other allocations.
func (a *Allocator) MarkAllocated(owner string, subnets ...netip.Prefix) (released bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.byOwner[owner]
	if slices.Equal(before, subnets) {
		return false
	}
	a.removeAll(owner)
	for _, p := range subnets {
		a.add(owner, p.Masked())
	}
	return slices.ContainsFunc(before, func(p netip.Prefix) bool { return !slices.Contains(a.byOwner[owner], p) })
}

// Release releases all subnets of the owner, and returns whether it had any.
func (a *Allocator) Release(owner string) (released bool) {
	return a.MarkAllocated(owner)
}

// Subnets returns the allocations of the owner, oldest first.
func (a *Allocator) Subnets(owner string) []netip.Prefix {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.byOwner[owner])
}

// Overlapping returns the allocations of other owners that overlap p, sorted by address.
func (a *Allocator) Overlapping(owner string, p netip.Prefix) []Allocation {
	a.mu.Lock()
	defer a.mu.Unlock()
	var found []Allocation
	for _, x := range a.allocations {
		if x.Owner != owner && x.Subnet.Overlaps(p) {
			found = append(found, x)
		}
	}
	return found
}

func (a *Allocator) add(owner string, p netip.Prefix) {
	x := Allocation{Owner: owner, Subnet: p}
	a.byOwner[owner] = append(a.byOwner[owner], p)
	a.allocations = slices.Insert(a.allocations, a.search(x), x)
	for _, r := range a.ranges {
		r.mark(p, 1)
	}
}

func (a *Allocator) removeAll(owner string) {
	for _, p := range a.byOwner[owner] {
		i := a.search(Allocation{Owner: owner, Subnet: p})
		a.allocations = slices.Delete(a.allocations, i, i+1)
		for _, r := range a.ranges {
			r.mark(p, -1)
		}
	}
	delete(a.byOwner, owner)
}

// search returns the index at which x is or would be inserted.
func (a *Allocator) search(x Allocation) int {
	i, _ := slices.BinarySearchFunc(a.allocations, x, compareAllocations)
	return i
}

// compareAllocations orders by address, then by mask length, then by owner.
func compareAllocations(a, b Allocation) int {
	return cmp.Or(
		a.Subnet.Addr().Compare(b.Subnet.Addr()),
		cmp.Compare(a.Subnet.Bits(), b.Subnet.Bits()),
		cmp.Compare(a.Owner, b.Owner),
	)
}
