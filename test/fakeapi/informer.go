// Package fakeapi makes informers of client-go's fake clients, for tests that need watches and no API server.
package fakeapi

import (
	"context"

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

// NewInformer returns an informer of what the client lists; example is one such object.
func NewInformer[L runtime.Object](client Client[L], example runtime.Object) cache.SharedIndexInformer {
	return cache.NewSharedIndexInformer(listOnly{&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, o)
		},
		WatchFuncWithContext: client.Watch,
	}}, example, 0, cache.Indexers{})
}

// listOnly tells the reflector that fake clients can't stream their lists. The clients of OpenShift's kinds don't say so themselves.
type listOnly struct{ cache.ListerWatcher }

func (listOnly) IsWatchListSemanticsUnSupported() bool { return true }
