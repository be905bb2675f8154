// Package fakeapi makes informers of client-go's fake clients, for tests that need watches and no API server.
package fakeapi

import (
	"context"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// Client is a typed client of one kind, whose lists are Ls.
type Client[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// Informer reports when its watch has begun. A fake client never reports objects that are deleted between the list and the watch.
type Informer struct {
	cache.SharedIndexInformer
	watching chan struct{} // closed
}

// NewInformer returns an informer of what the client lists; example is one such object.
func NewInformer[L runtime.Object](client Client[L], example runtime.Object) *Informer {
	i := &Informer{watching: make(chan struct{})}
	begun := sync.OnceFunc(func() { close(i.watching) })
	i.SharedIndexInformer = cache.NewSharedIndexInformer(listOnly{&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := client.Watch(ctx, o)
			if err == nil {
				begun()
			}
			return w, err
		},
	}}, example, 0, cache.Indexers{})
	return i
}

// listOnly disables streamed lists in the reflector, which fake clients do not support. The clients of OpenShift's kinds do not report that.
type listOnly struct{ cache.ListerWatcher }

func (listOnly) IsWatchListSemanticsUnSupported() bool { return true }
