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

// run lets a runner work in a bubble of fake time, and returns when each call began, from the start of the bubble.
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
		t.Errorf("called at %v, want %v", got, want)
	}
}

func TestRunnerServesTheFirstAtOnce(t *testing.T) {
	wantCalls(t, run(t, 0, never, func(r *Runner) { r.Poke() }), 0)
}

func TestRunnerIsNotCalledForNothing(t *testing.T) {
	wantCalls(t, run(t, 0, never, func(*Runner) {}))
}

func TestRunnerGathersAStorm(t *testing.T) {
	got := run(t, 0, never, func(r *Runner) {
		for range 1000 { // an event each millisecond
			r.Poke()
			<-time.After(time.Millisecond)
		}
	})
	if n := len(got); n != 11 {
		t.Errorf("%d calls for a second of events, want 11: one at once, then one each %s", n, interval)
	}
	for i := range got[1:] {
		if d := got[i+1] - got[i]; d < interval {
			t.Errorf("calls %s apart, want at least %s", d, interval)
		}
	}
	if last := got[len(got)-1]; last < 999*time.Millisecond {
		t.Errorf("the last call was at %s, before the last event", last)
	}
}

// What comes while the function works is not lost: it may have looked already.
func TestRunnerServesWhatComesMeanwhile(t *testing.T) {
	got := run(t, 3*interval, never, func(r *Runner) {
		r.Poke()
		<-time.After(interval)
		r.Poke()
		r.Poke()
	})
	wantCalls(t, got, 0, 3*interval)
}

func TestRunnerAfterAPause(t *testing.T) {
	got := run(t, 0, never, func(r *Runner) {
		r.Poke()
		<-time.After(10 * interval)
		r.Poke()
	})
	wantCalls(t, got, 0, 10*interval)
}

func TestRunnerTriesAgain(t *testing.T) {
	got := run(t, 0, func(call int) error {
		if call <= 3 {
			return errors.New("not yet")
		}
		return nil
	}, func(r *Runner) { r.Poke() })
	if len(got) != 4 {
		t.Fatalf("%d calls, want 4: three that fail and one that does not", len(got))
	}
	for i, least := range []time.Duration{retryFirst, 2 * retryFirst, 4 * retryFirst} {
		if d := got[i+1] - got[i]; d < least || d > 2*least {
			t.Errorf("attempt %d came %s after the one before, want about %s", i+2, d, least)
		}
	}
}
