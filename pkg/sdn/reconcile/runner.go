package reconcile

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// Runner calls one function for any number of events: at once for the first of them, and at most once an interval. However many come
// meanwhile, and however long a call takes, what has been poked for is served by the next call.
type Runner struct {
	name     string
	interval time.Duration
	serve    func(ctx context.Context) error
	due      chan struct{}
}

// NewRunner returns a runner of the function. One that failed is called again with back-off.
func NewRunner(name string, interval time.Duration, serve func(ctx context.Context) error) *Runner {
	return &Runner{name: name, interval: interval, serve: serve, due: make(chan struct{}, 1)}
}

// Poke says that there is something to do. It never blocks.
func (r *Runner) Poke() {
	select {
	case r.due <- struct{}{}:
	default: // the next call is due already
	}
}

// Run serves until the context ends.
func (r *Runner) Run(ctx context.Context) {
	failed := newBackoff()
	for {
		select {
		case <-r.due:
		case <-ctx.Done():
			return
		}
		pause := time.After(r.interval)
		err := r.serve(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			delay := failed.Step()
			klog.FromContext(ctx).Error(err, "Will try again", "runner", r.name, "in", delay)
			r.Poke()
			pause = time.After(max(delay, r.interval))
		default:
			failed = newBackoff()
		}
		select {
		case <-pause:
		case <-ctx.Done():
			return
		}
	}
}

func newBackoff() wait.Backoff {
	return wait.Backoff{Duration: retryFirst, Cap: retryLast, Factor: 2, Jitter: 0.1, Steps: 10}
}
