package reconcile

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// observation is one call of an Observer.
type observation struct {
	loop  string
	kind  string
	after time.Duration
}

type observations chan observation

func (o observations) Reconciled(loop string, duration time.Duration, err error) {
	kind := "success"
	if err != nil {
		kind = "error"
	}
	o <- observation{loop, kind, duration}
}

func (o observations) Settled(loop string, since time.Duration) {
	o <- observation{loop, "settled", since}
}

// The time of an event includes that in the queue and failed calls; an event during a call counts for the next call.
func TestObserver_loop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := make(observations, 10)
		calls := 0
		var l *Loop
		l = New("test", func(context.Context, string) error {
			time.Sleep(time.Second) //nolint:forbidigo // of the bubble
			switch calls++; calls {
			case 1:
				return errors.New("not yet")
			case 2:
				l.Add("a")
			}
			return nil
		})
		ctx, stop := context.WithCancel(WithObserver(t.Context(), seen))
		l.Add("a")
		time.Sleep(10 * time.Second) //nolint:forbidigo // of the bubble
		go l.Run(ctx, 1)
		want := []observation{
			{"test", "error", time.Second},
			{"test", "success", time.Second}, {"test", "settled", 12*time.Second + minBackoff},
			{"test", "success", time.Second}, {"test", "settled", time.Second},
		}
		for _, w := range want {
			if got := <-seen; got != w {
				t.Error(cmp.Diff(w, got, cmp.AllowUnexported(observation{})))
			}
		}
		stop()
		synctest.Wait()
		if len(l.events.first) > 0 {
			t.Errorf("got events %v after all calls, want none", l.events.first)
		}
	})
}

// The time in which an object waits for its user is not that of an event: a later success without a new event settles nothing.
func TestObserver_userError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := make(observations, 10)
		results := []error{UserError{errors.New("no address")}, nil}
		l := New("test", func(context.Context, string) error {
			err := results[0]
			results = results[1:]
			return err
		})
		ctx, stop := context.WithCancel(WithObserver(t.Context(), seen))
		l.Add("a")
		go l.Run(ctx, 1)
		time.Sleep(2 * userErrorRetry) //nolint:forbidigo // of the bubble
		stop()
		synctest.Wait()
		close(seen)
		var got []string
		for o := range seen {
			got = append(got, o.kind)
		}
		if diff := cmp.Diff([]string{"error", "success"}, got); diff != "" {
			t.Error(diff)
		}
	})
}

func TestObserver_runner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := make(observations, 10)
		failures := 1
		r := NewRunner("test", time.Minute, func(context.Context) error {
			if failures--; failures >= 0 {
				return errors.New("not yet")
			}
			return nil
		})
		ctx, stop := context.WithCancel(WithObserver(t.Context(), seen))
		r.Trigger()
		go r.Run(ctx)
		for _, w := range []observation{{"test", "error", 0}, {"test", "success", 0}, {"test", "settled", time.Minute}} {
			if got := <-seen; got != w {
				t.Error(cmp.Diff(w, got, cmp.AllowUnexported(observation{})))
			}
		}
		stop()
		synctest.Wait()
	})
}
