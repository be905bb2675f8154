// Package tier has the sizes of tests that both tiers run.
package tier

import "testing"

// Size returns the size of a test: complete, or in the short tier short, at most complete. It logs what the short tier omits, and why.
func Size(tb testing.TB, short, complete int, reason string) int {
	tb.Helper()
	if !testing.Short() || short >= complete {
		return complete
	}
	tb.Logf("short tier: %d of %d: %s", short, complete, reason)
	return short
}
