// Package reconcile turns informer events into calls of one function per key: many workers, one key never twice at a
// time, failures retried with back-off. Handlers only queue, so they never block an informer.
package reconcile

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

// Back-off of a failing key.
const (
	retryFirst = 100 * time.Millisecond
	retryLast  = time.Minute
)

// Func makes the switch agree with the object of that key, present or gone. An error is logged and the key tried again.
type Func func(ctx context.Context, key string) error

// Loop is a queue of keys and the function that serves them.
type Loop struct {
	name    string
	workers int
	serve   Func
	queue   workqueue.TypedRateLimitingInterface[string]
}

// New returns a loop that serves keys with the given number of workers.
func New(name string, workers int, serve Func) *Loop {
	return &Loop{
		name:    name,
		workers: workers,
		serve:   serve,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryFirst, retryLast),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: name}),
	}
}

// Add queues a key.
func (l *Loop) Add(key string) { l.queue.Add(key) }

// AddUnlessFailing queues a key, but one that failed keeps its back-off. It is for events that serving the key may itself cause.
func (l *Loop) AddUnlessFailing(key string) {
	if l.queue.NumRequeues(key) == 0 {
		l.queue.Add(key)
	}
}

// AddAfter queues a key after a while; keys added meanwhile are served once.
func (l *Loop) AddAfter(key string, d time.Duration) { l.queue.AddAfter(key, d) }

// Watch queues the key of every object that the informer tells of.
func (l *Loop) Watch(informer cache.SharedIndexInformer) (cache.ResourceEventHandlerRegistration, error) {
	add := func(obj any) {
		// Deleted objects may come as tombstones; their key is known all the same.
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
			l.queue.Add(key)
		}
	}
	reg, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    add,
		UpdateFunc: func(_, obj any) { add(obj) },
		DeleteFunc: add,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: watching: %w", l.name, err)
	}
	return reg, nil
}

// Run serves keys until the context ends, and returns when the last worker has.
func (l *Loop) Run(ctx context.Context) {
	stop := context.AfterFunc(ctx, l.queue.ShutDown)
	defer stop()
	var workers sync.WaitGroup
	for range l.workers {
		workers.Go(func() {
			for l.next(ctx) {
			}
		})
	}
	workers.Wait()
}

func (l *Loop) next(ctx context.Context) bool {
	key, shutdown := l.queue.Get()
	if shutdown {
		return false
	}
	defer l.queue.Done(key)
	err := l.serve(ctx, key)
	switch {
	case err == nil:
		l.queue.Forget(key)
	case ctx.Err() != nil: // we are stopping; the key is served at the next start
	default:
		klog.FromContext(ctx).Error(err, "Will try again", "loop", l.name, "key", key, "failures", l.queue.NumRequeues(key)+1)
		l.queue.AddRateLimited(key)
	}
	return true
}
