package subnet

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWaitingIsFirstComeFirst(t *testing.T) {
	w := &waiting{present: map[string]bool{}}
	for _, name := range []string{"a", "b", "c", "b", "d", "e"} {
		w.add(name)
	}
	w.remove("c")
	w.remove("nobody")
	w.remove("d")
	w.add("d") // keeps its turn
	var got []string
	for name, ok := w.pop(); ok; name, ok = w.pop() {
		got = append(got, name)
	}
	if diff := cmp.Diff([]string{"a", "b", "d", "e"}, got); diff != "" {
		t.Error(diff)
	}
	if len(w.names) != 0 || len(w.present) != 0 {
		t.Errorf("left: %+v", w)
	}
}
