package subnet

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWaitQueue_fifo(t *testing.T) {
	q := newWaitQueue()
	for _, name := range []string{"a", "b", "c", "b", "d", "e"} {
		q.add(name)
	}
	q.remove("c")
	q.remove("unknown")
	q.remove("d")
	q.add("d") // retains its position
	var got []string
	for name, ok := q.pop(); ok; name, ok = q.pop() {
		got = append(got, name)
	}
	if diff := cmp.Diff([]string{"a", "b", "d", "e"}, got); diff != "" {
		t.Error(diff)
	}
	if len(q.names) != 0 || len(q.waiting) != 0 {
		t.Errorf("got %+v, want an empty queue", q)
	}
}
