package subnet

// Usage is the use of the subnets of all ranges. A subnet that overlaps any allocation is not free.
type Usage struct{ Total, Free uint64 }

// Usage returns the use of the cluster network.
func (c *Controller) Usage() Usage { return c.allocator.Usage() }

// Usage returns the use of the ranges.
func (a *Allocator) Usage() (u Usage) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range a.ranges {
		u.Total += 1 << r.used.bits
		u.Free += r.used.root.free(r.used.bits)
	}
	return u
}

// free returns the number of free entries in a run of 2^bits.
func (n *treeNode) free(bits int) uint64 {
	switch {
	case n == nil:
		return 1 << bits
	case n.full:
		return 0
	}
	return n.children[0].free(bits-1) + n.children[1].free(bits-1)
}
