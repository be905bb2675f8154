package reconcile

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

const interval = 100 * time.Millisecond

// run runs a runner in a synctest bubble, and returns the time of each call since the start of the bubble.
func run(t *testing.T, takes time.Duration, fail func(call int) error, events func(*Runner)) (calls []time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		ctx, stop := context.WithCancel(t.Context())
		r := NewRunner("test", interval, func(ctx context.Context) error {
			calls = append(calls, time.Since(start))
			select {
			case <-time.After(takes):
			case <-ctx.Done():
			}
			return fail(len(calls))
		})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			r.Run(ctx)
		}()
		synctest.Wait()
		events(r)
		<-time.After(time.Hour)
		stop()
		<-ended
	})
	return calls
}

func never(int) error { return nil }

func wantCalls(t *testing.T, got []time.Duration, want ...time.Duration) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("got calls at %v, want %v", got, want)
	}
}

func TestRunner_firstTrigger(t *testing.T) {
	wantCalls(t, run(t, 0, never, func(r *Runner) { r.Trigger() }), 0)
}

func TestRunner_noTrigger(t *testing.T) {
	wantCalls(t, run(t, 0, never, func(*Runner) {}))
}

func TestRunner_burst(t *testing.T) {
	got := run(t, 0, never, func(r *Runner) {
		for range 1000 { // each millisecond
			r.Trigger()
			<-time.After(time.Millisecond)
		}
	})
	if n := len(got); n != 11 {
		t.Errorf("got %d calls for a second of triggers, want 11: the first immediately, then one each %s", n, interval)
	}
	for i := range got[1:] {
		if d := got[i+1] - got[i]; d < interval {
			t.Errorf("got calls %s apart, want at least %s", d, interval)
		}
	}
	if last := got[len(got)-1]; last < 999*time.Millisecond {
		t.Errorf("got the last call at %s, want it after the last trigger", last)
	}
}

// The function may have read the state before the trigger.
func TestRunner_triggerDuringACall(t *testing.T) {
	got := run(t, 3*interval, never, func(r *Runner) {
		r.Trigger()
		<-time.After(interval)
		r.Trigger()
		r.Trigger()
	})
	wantCalls(t, got, 0, 3*interval)
}

func TestRunner_triggerAfterAPause(t *testing.T) {
	got := run(t, 0, never, func(r *Runner) {
		r.Trigger()
		<-time.After(10 * interval)
		r.Trigger()
	})
	wantCalls(t, got, 0, 10*interval)
}

func TestRunner_retriesFailure(t *testing.T) {
	got := run(t, 0, func(call int) error {
		if call <= 3 {
			return errors.New("not yet")
		}
		return nil
	}, func(r *Runner) { r.Trigger() })
	if len(got) != 4 {
		t.Fatalf("got %d calls, want 4: three failures, one success", len(got))
	}
	for i, least := range []time.Duration{minBackoff, 2 * minBackoff, 4 * minBackoff} {
		if d := got[i+1] - got[i]; d < least || d > 2*least {
			t.Errorf("attempt %d: got a delay of %s, want about %s", i+2, d, least)
		}
	}
}
