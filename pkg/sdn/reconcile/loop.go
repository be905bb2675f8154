// Package reconcile runs a function for the keys of changed objects: workers in parallel but one for each key, and retries with backoff.
// Informer handlers only add keys to the queue, so they never block an informer.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

// Backoff of a failing key, doubled for each attempt.
const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = time.Minute
)

// Func reconciles the object of the key, which may have been deleted. The loop logs an error and retries the key with backoff; after a
// UserError, it retries after userErrorRetry or when the key is added. The logger of the context has the loop and the key.
type Func func(ctx context.Context, key string) error

// Loop is a work queue of keys and the function that reconciles them.
type Loop struct {
	name      string
	reconcile Func
	queue     workqueue.TypedInterface[string]
	events    events
	limiter   workqueue.TypedRateLimiter[string]

	mu      sync.Mutex
	delayed workqueue.TypedDelayingInterface[string] // of queue; nil before Run, since it starts a goroutine
}

// New returns a loop that has no goroutine before Run.
func New(name string, reconcile Func) *Loop {
	return &Loop{
		name:      name,
		reconcile: reconcile,
		queue:     workqueue.NewTyped[string](),
		limiter:   workqueue.NewTypedItemExponentialFailureRateLimiter[string](minBackoff, maxBackoff),
	}
}

// WithMaxBackoff sets the maximum pause after an error, one minute by default. It must be called before Run.
func (l *Loop) WithMaxBackoff(d time.Duration) *Loop {
	l.limiter = workqueue.NewTypedItemExponentialFailureRateLimiter[string](minBackoff, d)
	return l
}

// Add adds a key to the queue.
func (l *Loop) Add(key string) {
	l.events.add(key) // before a worker can take the key
	l.queue.Add(key)
}

// AddUnlessFailing adds a key unless its retry is pending: events that reconciliation itself may cause must not bypass the backoff.
func (l *Loop) AddUnlessFailing(key string) {
	if l.limiter.NumRequeues(key) == 0 {
		l.Add(key)
	}
}

// AddAfter adds a key after the delay or, before Run, immediately.
func (l *Loop) AddAfter(key string, d time.Duration) {
	l.mu.Lock()
	delayed := l.delayed
	l.mu.Unlock()
	if delayed == nil {
		l.queue.Add(key)
		return
	}
	delayed.AddAfter(key, d)
}

// Watch adds the key of each object that is added, updated or deleted.
func (l *Loop) Watch(informer cache.SharedInformer) error {
	return l.WatchUnless(informer, func(_, _ any) bool { return false })
}

// WatchUnless is like Watch, but ignores updates for which same returns true.
func (l *Loop) WatchUnless(informer cache.SharedInformer, same func(before, now any) bool) error {
	add := func(obj any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
			l.Add(key)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: add,
		UpdateFunc: func(before, now any) {
			if !same(before, now) {
				add(now)
			}
		},
		DeleteFunc: add,
	})
	if err != nil {
		return fmt.Errorf("add event handler of loop %s: %w", l.name, err)
	}
	return nil
}

// SameVersion ignores updates without a change, for WatchUnless.
func SameVersion(before, now any) bool {
	b, ok := before.(metav1.Object)
	n, ok2 := now.(metav1.Object)
	return ok && ok2 && b.GetResourceVersion() == n.GetResourceVersion()
}

// Run reconciles keys with that many workers until the context ends, and returns when all workers have ended. It is called once.
func (l *Loop) Run(ctx context.Context, workers int) {
	delayed := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{Queue: l.queue})
	l.mu.Lock()
	l.delayed = delayed
	l.mu.Unlock()
	stop := context.AfterFunc(ctx, delayed.ShutDown)
	defer func() {
		stop()
		delayed.ShutDown() // workers may end with the context before the function has begun
	}()
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for l.next(ctx) {
			}
		})
	}
	running.Wait()
}

// next reconciles one key, and returns false after the shutdown of the queue.
func (l *Loop) next(ctx context.Context) bool {
	key, shutdown := l.queue.Get()
	if shutdown {
		return false
	}
	defer l.queue.Done(key)
	logger := klog.FromContext(ctx).WithValues("loop", l.name, "key", key)
	since, start := l.events.take(key), time.Now()
	err := l.reconcile(klog.NewContext(ctx, logger), key)
	if ctx.Err() != nil { // the queue may still have keys; informers add them again after a restart
		return false
	}
	observe(ctx, l.name, since, start, err)
	_, isUserError := errors.AsType[UserError](err)
	if err != nil && !isUserError { // the time until a user corrects an object is no latency of the loop
		l.events.restore(key, since)
	}
	switch {
	case err == nil:
		l.limiter.Forget(key)
	case isUserError:
		logger.Error(err, "User action required", "retryAfter", userErrorRetry)
		l.limiter.Forget(key)
		l.AddAfter(key, wait.Jitter(userErrorRetry, 0.2))
	default:
		retryAfter := l.limiter.When(key)
		if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
			logger.V(2).Info("Another client changed the object", "err", err, "retryAfter", retryAfter)
		} else {
			logger.Error(err, "Failed to reconcile", "failures", l.limiter.NumRequeues(key), "retryAfter", retryAfter)
		}
		l.AddAfter(key, retryAfter)
	}
	return true
}
