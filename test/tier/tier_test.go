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

// restoreTier restores the tier after the test.
func restoreTier(t *testing.T) {
	t.Helper()
	before := flag.Lookup("test.short").Value.String()
	t.Cleanup(func() {
		if err := flag.Set("test.short", before); err != nil {
			t.Error(err)
		}
	})
}

func TestSize(t *testing.T) {
	restoreTier(t)
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

// A parallel test waits until the function of its parent has returned.
func TestParallel(t *testing.T) {
	restoreTier(t)
	for _, short := range []bool{false, true} {
		if err := flag.Set("test.short", fmt.Sprint(short)); err != nil {
			t.Fatal(err)
		}
		t.Run(fmt.Sprintf("short %t", short), func(t *testing.T) {
			ended := false
			t.Run("child", func(t *testing.T) {
				Parallel(t)
				ended = true
			})
			if ended == short {
				t.Errorf("the test ended beside its parent: %t, want %t", !ended, short)
			}
		})
	}
}
