package subnet

// line is a row of 2^bits numbered places with blocks laid over them, also one over another. It is a binary tree
// that grows only where blocks lie: its memory goes with the blocks, not with the places, of which a /8 with 2 host
// bits has four million.
type line struct {
	bits int
	root *branch
}

// branch is an aligned run of places. None at all stands for a run without blocks.
type branch struct {
	blocks int        // that cover exactly this run
	full   bool       // no place of this run is free
	halves [2]*branch // nil for a run of one place
}

// lay puts a block of 2^size places on the line, or takes one away (delta 1 or -1). Blocks are aligned: first is a
// multiple of 2^size.
func (l *line) lay(first uint64, size int, delta int) {
	l.root = l.root.lay(first, l.bits-size, l.bits, delta)
}

// lay walks depth levels down, in a run of 2^bits places.
func (b *branch) lay(first uint64, depth, bits, delta int) *branch {
	if b == nil {
		b = &branch{}
	}
	if depth == 0 {
		b.blocks += delta
	} else {
		half := &b.halves[first>>(bits-1)&1]
		*half = (*half).lay(first, depth-1, bits-1, delta)
	}
	if b.blocks == 0 && b.halves[0] == nil && b.halves[1] == nil {
		return nil
	}
	b.full = b.blocks > 0 || b.halves[0].isFull() && b.halves[1].isFull()
	return b
}

func (b *branch) isFull() bool { return b != nil && b.full }

// free returns the first place at or behind from that no block covers.
func (l *line) free(from uint64) (uint64, bool) {
	return l.root.free(from, l.bits)
}

func (b *branch) free(from uint64, bits int) (uint64, bool) {
	switch {
	case b == nil:
		return from, true
	case b.full:
		return 0, false
	}
	half := uint64(1) << (bits - 1)
	if from < half {
		if place, ok := b.halves[0].free(from, bits-1); ok {
			return place, true
		}
		from = half
	}
	place, ok := b.halves[1].free(from-half, bits-1)
	return half + place, ok
}
