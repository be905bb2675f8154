package policy

import (
	"cmp"
	"slices"
	"testing"

	"github.com/ovsdn/ovsdn/test/seed"
)

// The list of active conjunctions equals that of a model that sorts them all, after any additions and deletions between two merges.
func TestPriorityBucketsMerge(t *testing.T) {
	random := seed.Rand(t)
	var s priorityBuckets
	conjs := make([]*conj, 300)
	for i := range conjs {
		conjs[i] = &conj{id: uint32(i), rule: &rule{}} //nolint:gosec // small
	}
	random.Shuffle(len(conjs), func(i, j int) { conjs[i], conjs[j] = conjs[j], conjs[i] })
	for range 200 {
		for range random.IntN(60) {
			c := conjs[random.IntN(len(conjs))]
			c.active = !c.active
			s.markChanged(c)
		}
		s.merge()
		want := slices.DeleteFunc(slices.Clone(conjs), func(c *conj) bool { return !c.active })
		slices.SortFunc(want, func(x, y *conj) int { return cmp.Compare(x.id, y.id) })
		if !slices.Equal(s.conjs, want) {
			t.Fatalf("got %d conjunctions, want %d, by ID", len(s.conjs), len(want))
		}
	}
}
