package keyedlock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

func TestLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := New()
		unlock, err := locks.Lock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := locks.TryLock("a"); ok {
			t.Error("TryLock locked a key that is locked")
		}
		other, ok := locks.TryLock("b")
		if !ok {
			t.Fatal("TryLock did not lock another key")
		}
		other()

		ended, end := context.WithCancel(t.Context())
		end()
		if _, err := locks.Lock(ended, "a"); !errors.Is(err, context.Canceled) {
			t.Errorf("Lock with a context that has ended: got %v, want %v", err, context.Canceled)
		}
		locked := make(chan func(), 1)
		go func() {
			next, err := locks.Lock(t.Context(), "a")
			if err != nil {
				t.Error(err)
				next = func() {}
			}
			locked <- next
		}()
		synctest.Wait()
		if len(locked) > 0 {
			t.Error("Lock returned while the key was locked")
		}
		unlock()
		(<-locked)()
		if got := locks.Len(); got != 0 {
			t.Errorf("got %d locks in use, want 0", got)
		}
	})
}
