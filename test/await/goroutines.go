package await

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

// goroutines is the time that goroutines have to end. goleak gives less than 2 s, which a loaded machine exceeds.
const goroutines = 30 * time.Second

// VerifyTestMain runs the tests of a package, and fails unless all goroutines end within 30 s.
func VerifyTestMain(m *testing.M, options ...goleak.Option) {
	goleak.VerifyTestMain(runner(func() int {
		code := m.Run()
		if code == 0 {
			_ = noGoroutines(options...) // goleak finds and reports them again
		}
		return code
	}), options...)
}

// NoGoroutines fails the test unless all goroutines that the options do not ignore end within 30 s.
func NoGoroutines(tb testing.TB, options ...goleak.Option) {
	tb.Helper()
	if err := noGoroutines(options...); err != nil {
		tb.Error(err)
	}
}

func noGoroutines(options ...goleak.Option) error {
	for deadline := time.Now().Add(goroutines); ; {
		err := goleak.Find(options...) // sleeps between its retries
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// runner is a goleak.TestingM.
type runner func() int

// Run implements goleak.TestingM.
func (r runner) Run() int { return r() }
