// Package tier has what differs between the tiers in tests that both run.
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

// Parallel runs a test beside others of its package in the short tier, where it mostly waits, for packets that must not arrive or for processes. Its
// switches and network namespaces must be its own. The complete tier, with the race detector, runs it alone.
func Parallel(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Parallel()
	}
}
