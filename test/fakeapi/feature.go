package fakeapi

import (
	"context"
	"sync"
	"testing"

	"k8s.io/client-go/tools/cache"
)

// Feature is a part of the node agent that follows an informer.
type Feature interface {
	Prime(ctx context.Context) error
	Run(ctx context.Context)
}

// Run runs a feature with its informer and the store that it writes to, as the agent does, until stop is called or the test ends.
func Run(t testing.TB, informer *Informer, feature Feature, store interface{ Run(context.Context) error }) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	stop = func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	running.Go(func() { informer.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("the cache did not sync")
	}
	select {
	case <-informer.watching:
	case <-ctx.Done():
		t.Fatal("there was no watch")
	}
	if err := feature.Prime(ctx); err != nil {
		t.Fatal(err)
	}
	running.Go(func() { feature.Run(ctx) })
	running.Go(func() {
		if err := store.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	return stop
}
