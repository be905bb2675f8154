package flowstore

import (
	"fmt"
	"testing"

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
			if len(o.list) != len(want) || len(o.sorted()) != len(want) || o.index != nil && len(o.index) != len(want) {
				t.Fatalf("got %d owners in the list and %d in the index, want %d", len(o.list), len(o.index), len(want))
			}
		}
	})
}
