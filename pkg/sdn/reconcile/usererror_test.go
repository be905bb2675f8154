package reconcile

import "testing"

func TestFirstNames(t *testing.T) {
	for most, want := range map[int]string{1: "a and 2 more", 2: "a, b and 1 more", 3: "a, b, c", 4: "a, b, c"} {
		if got := FirstNames([]string{"a", "b", "c"}, most); got != want {
			t.Errorf("at most %d: got %q, want %q", most, got, want)
		}
	}
}
