package tier

import (
	"flag"
	"fmt"
	"testing"
)

// logged is a test that collects what it logs.
type logged struct {
	testing.TB
	lines []string
}

func (l *logged) Helper() {}

func (l *logged) Logf(format string, args ...any) {
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
}

func TestSize(t *testing.T) {
	before := flag.Lookup("test.short").Value.String()
	t.Cleanup(func() {
		if err := flag.Set("test.short", before); err != nil {
			t.Error(err)
		}
	})
	for _, tc := range []struct {
		tier            string
		short, complete int
		want            int
		line            string
	}{
		{"false", 2, 5, 5, ""},
		{"true", 2, 5, 2, "short tier: 2 of 5: slow"},
		{"true", 5, 3, 3, ""}, // a flag makes the complete size smaller
	} {
		if err := flag.Set("test.short", tc.tier); err != nil {
			t.Fatal(err)
		}
		var l logged
		if got := Size(&l, tc.short, tc.complete, "slow"); got != tc.want || fmt.Sprint(l.lines) != "["+tc.line+"]" {
			t.Errorf("short=%s: Size(%d, %d) = %d with log %q, want %d with %q", tc.tier, tc.short, tc.complete, got, l.lines, tc.want, tc.line)
		}
	}
}
