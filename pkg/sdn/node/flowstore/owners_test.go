package flowstore

import (
	"fmt"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/seed"
)

// TestOwnersProperties compares few and many owners with a map.
func TestOwnersProperties(t *testing.T) {
	seed.Fix(t)
	rapid.Check(t, func(t *rapid.T) {
		var o owners
		want := map[pipeline.Owner]string{}
		for range rapid.IntRange(0, 60).Draw(t, "operations") {
			owner := pod(fmt.Sprint(rapid.IntRange(0, 3*maxUnindexed).Draw(t, "owner")))
			if rapid.IntRange(0, 2).Draw(t, "remove") == 0 {
				o.remove(owner)
				delete(want, owner)
			} else {
				text := rapid.StringN(1, 3, -1).Draw(t, "text")
				o.set(owner, contribution{body: body{text: text}})
				want[owner] = text
			}
			for owner, text := range want {
				if c, ok := o.get(owner); !ok || c.body.text != text {
					t.Fatalf("%s: got %q, want %q", owner, c.body.text, text)
				}
			}
			if len(o.all()) != len(want) || len(o.sorted()) != len(want) {
				t.Fatalf("got %d owners, %d sorted, want %d", len(o.all()), len(o.sorted()), len(want))
			}
			if o.many != nil && o.many.index != nil && len(o.many.index) != len(want) {
				t.Fatalf("got %d owners in the index, want %d", len(o.many.index), len(want))
			}
		}
	})
}

// TestEntrySize checks that the entry of a key fits a size class of the allocator: there may be 200,000, nearly all with one owner.
func TestEntrySize(t *testing.T) {
	const bound = 112
	if size := unsafe.Sizeof(entry{}); size > bound {
		t.Errorf("got %d bytes for an entry, want at most %d", size, bound)
	}
}
