// Package pause waits for a time that the end of a context ends early. Loops of the controller and of the agent retry, poll and debounce with it.
package pause

import (
	"context"
	"time"
)

// For waits, and reports whether the whole time has passed.
func For(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
