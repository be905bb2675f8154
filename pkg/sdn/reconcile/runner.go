package reconcile

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// Runner calls one function for any number of triggers: immediately for the first, and at most once for each interval. The last trigger is
// always followed by a call.
type Runner struct {
	name     string
	interval time.Duration
	backoff  time.Duration // maximum
	run      func(ctx context.Context) error
	pending  chan struct{}
	events   events
}

// NewRunner returns a runner of the function, which is retried with backoff if it fails.
func NewRunner(name string, interval time.Duration, run func(ctx context.Context) error) *Runner {
	return &Runner{name: name, interval: interval, backoff: maxBackoff, run: run, pending: make(chan struct{}, 1)}
}

// WithMaxBackoff sets the maximum pause after an error, one minute by default. It must be called before Run.
func (r *Runner) WithMaxBackoff(d time.Duration) *Runner {
	r.backoff = d
	return r
}

// Trigger requests a call. It never blocks.
func (r *Runner) Trigger() {
	r.events.add("")
	r.wake()
}

func (r *Runner) wake() {
	select {
	case r.pending <- struct{}{}:
	default: // a call is already pending
	}
}

// Run calls the function until the context ends.
func (r *Runner) Run(ctx context.Context) {
	backoff := newBackoff(r.backoff)
	for {
		select {
		case <-r.pending:
		case <-ctx.Done():
			return
		}
		pause := time.After(r.interval)
		since, start := r.events.take(""), time.Now()
		err := r.run(ctx)
		if ctx.Err() != nil {
			return
		}
		observe(ctx, r.name, since, start, err)
		switch {
		case err != nil:
			r.events.restore("", since)
			retryAfter := max(backoff.Step(), r.interval)
			klog.FromContext(ctx).Error(err, "Failed to reconcile", "loop", r.name, "retryAfter", retryAfter)
			r.wake()
			pause = time.After(retryAfter)
		default:
			backoff = newBackoff(r.backoff)
		}
		select {
		case <-pause:
		case <-ctx.Done():
			return
		}
	}
}

func newBackoff(limit time.Duration) wait.Backoff {
	return wait.Backoff{Duration: minBackoff, Cap: limit, Factor: 2, Jitter: 0.1, Steps: 10}
}
