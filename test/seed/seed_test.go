package seed

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// repeats reports whether tests of this run choose the same each time.
func repeats(t *testing.T) bool {
	t.Helper()
	return testing.Short() || flagged(t) != 0
}

func TestFix(t *testing.T) {
	want := repeats(t)
	draw := func() (drawn []uint64) {
		Fix(t)
		rapid.Check(t, func(t *rapid.T) { drawn = append(drawn, rapid.Uint64().Draw(t, "n")) })
		return drawn
	}
	if got := slices.Equal(draw(), draw()); got != want {
		t.Errorf("two checks draw the same: got %v, want %v", got, want)
	}
}

func TestValue(t *testing.T) {
	first, second := Value(t), Value(t)
	if got, want := first == second, repeats(t); got != want {
		t.Errorf("got seeds %d and %d, want the same: %v", first, second, want)
	}
	if first == 0 || second == 0 {
		t.Errorf("got seeds %d and %d, want none that lets rapid choose", first, second)
	}
}
