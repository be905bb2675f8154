package pause

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if !For(ctx, 2*time.Second) || time.Since(start) != 2*time.Second {
			t.Errorf("got the end after %v, want it after 2s", time.Since(start))
		}
		if For(ctx, time.Hour) || time.Since(start) != 3*time.Second {
			t.Errorf("got the end after %v, want it with the context after 3s", time.Since(start))
		}
	})
}
