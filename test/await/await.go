// Package await waits in tests for what other goroutines, programs and machines do.
package await

import (
	"context"
	"testing"
	"time"
)

// interval is between two looks.
const interval = 20 * time.Millisecond

// OK returns when look returns no error. After the time limit it fails the test with look's last error. Look's context ends with the wait.
func OK(tb testing.TB, within time.Duration, look func(context.Context) error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), within) // cleanups wait too
	defer cancel()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var last error
	for ctx.Err() == nil {
		fault := look(ctx)
		if fault == nil {
			return
		}
		if last == nil || ctx.Err() == nil { // the timeout itself does not name the failure
			last = fault
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
	tb.Fatalf("not within %v: %v", within, last)
}
