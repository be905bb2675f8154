package reconcile

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestFirstNames(t *testing.T) {
	for most, want := range map[int]string{1: "a and 2 more", 2: "a, b and 1 more", 3: "a, b, c", 4: "a, b, c"} {
		if got := FirstNames([]string{"a", "b", "c"}, most); got != want {
			t.Errorf("at most %d: got %q, want %q", most, got, want)
		}
	}
}

// The end of a message, such as the remedy, remains.
func TestShortenBefore(t *testing.T) {
	const end = "; delete it"
	for _, length := range []int{0, MaxMessage - len(end), MaxMessage - len(end) + 1, 10 * MaxMessage} {
		got := ShortenBefore(strings.Repeat("x", length), end)
		cut, isCut := strings.CutSuffix(got, end)
		if !isCut || len(got) > MaxMessage+len("…") || strings.HasSuffix(cut, "…") != (length+len(end) > MaxMessage) {
			t.Errorf("%d bytes: got %d bytes, %q", length, len(got), got)
		}
	}
	if got := ShortenBefore(strings.Repeat("ü", MaxMessage), end); !utf8.ValidString(got) {
		t.Errorf("got %q, want valid UTF-8", got)
	}
}
