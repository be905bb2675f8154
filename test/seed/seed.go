// Package seed chooses the seeds of random tests: fixed in the short tier, random and printed in the complete tier. The flag -rapid.seed overrides both.
package seed

import (
	"flag"
	"math/rand/v2"
	"strconv"
	"testing"

	_ "pgregory.net/rapid" // defines the flag
)

const (
	name  = "rapid.seed"
	fixed = 1 // 0 lets rapid choose
)

// Fix makes the next rapid.Check of the short tier use the fixed seed. In the complete tier it has no effect: rapid prints a random seed on failure. It sets
// a flag of the process, so call it before t.Parallel, and before any goroutine of the test.
func Fix(tb testing.TB) {
	tb.Helper()
	if !testing.Short() || flagged(tb) != 0 {
		return
	}
	if err := flag.Set(name, strconv.Itoa(fixed)); err != nil {
		tb.Fatalf("set -%s: %v", name, err)
	}
}

// Value returns a seed for math/rand, and logs how to repeat the test with it. It is safe for concurrent use.
func Value(tb testing.TB) uint64 {
	tb.Helper()
	seed := flagged(tb)
	if seed == 0 && testing.Short() {
		seed = fixed
	}
	if seed == 0 {
		seed = max(rand.Uint64(), 1) //nolint:gosec // a test's
	}
	tb.Logf("to repeat the random choices: -%s=%d", name, seed)
	return seed
}

// Rand returns random choices that begin with Value.
func Rand(tb testing.TB) *rand.Rand {
	tb.Helper()
	return rand.New(rand.NewPCG(Value(tb), 0)) //nolint:gosec // a test's
}

// flagged returns the value of the flag, 0 without one.
func flagged(tb testing.TB) uint64 {
	tb.Helper()
	seed, err := strconv.ParseUint(flag.Lookup(name).Value.String(), 0, 64)
	if err != nil {
		tb.Fatalf("parse -%s: %v", name, err)
	}
	return seed
}
