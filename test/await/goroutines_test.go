package await

import (
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// errored is a test that collects its errors.
type errored struct {
	testing.TB
	errors []string
}

func (e *errored) Helper() {}

func (e *errored) Error(args ...any) { e.errors = append(e.errors, fmt.Sprint(args...)) }

// A goroutine may need more time than goleak gives on its own.
func TestNoGoroutines_slow(t *testing.T) {
	before, got := goleak.IgnoreCurrent(), &errored{TB: t}
	go func() { <-time.After(2 * time.Second) }()
	if NoGoroutines(got, before); len(got.errors) > 0 {
		t.Errorf("got errors %q, want none", got.errors)
	}
}
