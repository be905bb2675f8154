package subnet

// bitmap is a sparse bitmap of 2^bits entries, in which aligned blocks are marked. Blocks may overlap: an entry is free if no block
// contains it. It is a binary tree that has nodes only for marked blocks, since a /8 with 2 host bits has four million entries.
type bitmap struct {
	bits int
	root *treeNode
}

// treeNode is an aligned run of entries; nil is a run without blocks.
type treeNode struct {
	blocks   int          // that are exactly this run
	full     bool         // no entry is free
	children [2]*treeNode // the halves of the run
}

// mark adds a block of 2^size entries, or removes one (delta 1 or -1). first is a multiple of 2^size.
func (b *bitmap) mark(first uint64, size int, delta int) {
	b.root = b.root.mark(first, b.bits-size, b.bits, delta)
}

// mark descends depth levels in a run of 2^bits entries.
func (n *treeNode) mark(first uint64, depth, bits, delta int) *treeNode {
	if n == nil {
		n = &treeNode{}
	}
	if depth == 0 {
		n.blocks += delta
	} else {
		child := &n.children[first>>(bits-1)&1]
		*child = (*child).mark(first, depth-1, bits-1, delta)
	}
	if n.blocks == 0 && n.children[0] == nil && n.children[1] == nil {
		return nil
	}
	n.full = n.blocks > 0 || n.children[0].isFull() && n.children[1].isFull()
	return n
}

func (n *treeNode) isFull() bool { return n != nil && n.full }

// nextFree returns the first free entry at or after from.
func (b *bitmap) nextFree(from uint64) (uint64, bool) {
	return b.root.nextFree(from, b.bits)
}

func (n *treeNode) nextFree(from uint64, bits int) (uint64, bool) {
	switch {
	case n == nil:
		return from, true
	case n.full:
		return 0, false
	}
	half := uint64(1) << (bits - 1)
	if from < half {
		if index, ok := n.children[0].nextFree(from, bits-1); ok {
			return index, true
		}
		from = half
	}
	index, ok := n.children[1].nextFree(from-half, bits-1)
	return half + index, ok
}
