package reconcile

import (
	"context"
	"sync"
	"time"
)

// Observer receives the results of loops and runners. Its methods must not block, and are called concurrently.
type Observer interface {
	// Reconciled reports one call of the function of a loop or runner.
	Reconciled(loop string, duration time.Duration, err error)
	// Settled reports that the function succeeded, and the time since the first event that it had not succeeded for.
	Settled(loop string, since time.Duration)
}

type observerKey struct{}

// WithObserver returns a context whose loops and runners report to the observer.
func WithObserver(ctx context.Context, o Observer) context.Context {
	return context.WithValue(ctx, observerKey{}, o)
}

// observe reports a call that began at start, for an event at the time of since; zero: there was none.
func observe(ctx context.Context, loop string, since, start time.Time, err error) {
	o, ok := ctx.Value(observerKey{}).(Observer)
	if !ok {
		return
	}
	now := time.Now()
	o.Reconciled(loop, now.Sub(start), err)
	if err == nil && !since.IsZero() {
		o.Settled(loop, now.Sub(since))
	}
}

// events has the time of the first event of each key that no successful call followed.
type events struct {
	mu    sync.Mutex
	first map[string]time.Time
}

// add records an event now.
func (e *events) add(key string) { e.restore(key, time.Now()) }

// take returns and deletes the time of the key; zero if there is none.
func (e *events) take(key string) time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	since := e.first[key]
	delete(e.first, key)
	return since
}

// restore records the time of an event, unless it is zero or an earlier one is recorded.
func (e *events) restore(key string, since time.Time) {
	if since.IsZero() {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if earlier, ok := e.first[key]; ok && earlier.Before(since) {
		return
	}
	if e.first == nil {
		e.first = map[string]time.Time{}
	}
	e.first[key] = since
}
