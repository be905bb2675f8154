// Package reconcile turns informer events into calls of one function per key: many workers, one key never twice at a
// time, failures retried with back-off. Handlers only queue, so they never block an informer.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

// Back-off of a failing key, doubled each time.
const (
	retryFirst = 100 * time.Millisecond
	retryLast  = time.Minute
)

// Func makes the world (the switch, other objects) agree with the object of that key, present or gone. An error is logged
// and the key tried again; a Complaint not before complaintInterval, unless something of the key changes. The context's
// logger names the loop and the key.
type Func func(ctx context.Context, key string) error

// Loop is a queue of keys and the function that serves them.
type Loop struct {
	name     string
	serve    Func
	queue    workqueue.TypedInterface[string]
	failures workqueue.TypedRateLimiter[string]

	mu      sync.Mutex
	delayed workqueue.TypedDelayingInterface[string] // the queue with its clock, a goroutine: Run's, nil before it
}

// New returns a loop that serves keys by the function. One that never runs leaves nothing behind.
func New(name string, serve Func) *Loop {
	return &Loop{
		name:     name,
		serve:    serve,
		queue:    workqueue.NewTyped[string](),
		failures: workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryFirst, retryLast),
	}
}

// Add queues a key.
func (l *Loop) Add(key string) { l.queue.Add(key) }

// AddUnlessFailing queues a key, but one that failed keeps its back-off. It is for events that serving the key may itself cause.
func (l *Loop) AddUnlessFailing(key string) {
	if l.failures.NumRequeues(key) == 0 {
		l.queue.Add(key)
	}
}

// AddAfter queues a key after a while, and at once before Run; keys added meanwhile are served once.
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

// Watch queues the key of every object that the informer tells of.
func (l *Loop) Watch(informer cache.SharedInformer) error {
	return l.WatchUnless(informer, func(_, _ any) bool { return false })
}

// WatchUnless is Watch, but passes over updates after which the object is the same to the loop as before.
func (l *Loop) WatchUnless(informer cache.SharedInformer, same func(before, now any) bool) error {
	add := func(obj any) {
		// Deleted objects may come as tombstones; their key is known all the same.
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
			l.queue.Add(key)
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
		return fmt.Errorf("%s: watching: %w", l.name, err)
	}
	return nil
}

// Run serves keys with that many workers until the context ends, and returns when the last worker has. It is called once.
func (l *Loop) Run(ctx context.Context, workers int) {
	delayed := workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{Queue: l.queue})
	l.mu.Lock()
	l.delayed = delayed
	l.mu.Unlock()
	stop := context.AfterFunc(ctx, delayed.ShutDown)
	defer stop()
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for l.next(ctx) {
			}
		})
	}
	running.Wait()
}

// next serves a key, and returns false when there will be none.
func (l *Loop) next(ctx context.Context) bool {
	key, shutdown := l.queue.Get()
	if shutdown {
		return false
	}
	defer l.queue.Done(key)
	logger := klog.FromContext(ctx).WithValues("loop", l.name, "key", key)
	err := l.serve(klog.NewContext(ctx, logger), key)
	if ctx.Err() != nil { // what is still queued is served at the next start
		return false
	}
	switch _, told := errors.AsType[Complaint](err); {
	case err == nil:
		l.failures.Forget(key)
	case told:
		logger.Error(err, "Is for people to mend")
		l.failures.Forget(key)
		l.AddAfter(key, wait.Jitter(complaintInterval, 0.2))
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		logger.V(2).Info("Somebody else wrote meanwhile, will try again", "err", err)
		l.AddAfter(key, l.failures.When(key))
	default:
		logger.Error(err, "Will try again", "failures", l.failures.NumRequeues(key)+1)
		l.AddAfter(key, l.failures.When(key))
	}
	return true
}
