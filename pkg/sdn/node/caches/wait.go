package caches

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// ReportInterval is the interval of repeated reports of what the agent waits for.
const ReportInterval = 30 * time.Second

// cacheSyncTimeout limits the wait for caches. After it, WaitFor reports why it waits.
const cacheSyncTimeout = 5 * time.Second

// errAPIServerUnavailable is reported while a cache has not synced.
var errAPIServerUnavailable = errors.New("the API server does not answer (--kube-apiserver), or does not have the kinds and permissions of this installation (deploy/crds, deploy/rbac): " +
	"see the agent's log; existing pods still have their network")

// WaitFor calls try until it succeeds, and returns its result. It calls try again for each event of the informers. It reports the error of try when it
// changes and every ReportInterval.
func WaitFor[T any](ctx context.Context, informers []cache.SharedIndexInformer, report func(error), try func() (T, error)) (T, error) {
	var none T
	changed := make(chan struct{}, 1)
	poke := func(any) {
		select {
		case changed <- struct{}{}:
		default: // try is scheduled
		}
	}
	var synced []cache.InformerSynced
	for _, informer := range informers {
		reg, err := informer.AddEventHandler(handlerFuncs(poke))
		if err != nil {
			return none, fmt.Errorf("add event handler: %w", err)
		}
		defer func() {
			if err := informer.RemoveEventHandler(reg); err != nil {
				klog.FromContext(ctx).Error(err, "Failed to remove event handler from informer")
			}
		}()
		synced = append(synced, informer.HasSynced)
	}

	// Without this wait, each start would report objects as missing before the first list.
	syncing, stop := context.WithTimeout(ctx, cacheSyncTimeout)
	defer stop()
	cache.WaitForCacheSync(syncing.Done(), synced...)

	again := time.NewTicker(ReportInterval)
	defer again.Stop()
	var reported string
	for {
		got, err := try()
		if err == nil {
			return got, nil
		}
		if slices.ContainsFunc(synced, func(hasSynced cache.InformerSynced) bool { return !hasSynced() }) {
			err = errAPIServerUnavailable // the missing object may exist
		}
		if reported != err.Error() {
			reported = err.Error()
			report(err)
		}
		select {
		case <-ctx.Done():
			return none, ctx.Err()
		case <-changed:
		case <-again.C:
			reported = ""
		}
	}
}

// HandlerOf calls handle for each event of the object with the name.
func HandlerOf(name string, handle func(any)) cache.FilteringResourceEventHandler {
	return cache.FilteringResourceEventHandler{
		FilterFunc: func(obj any) bool {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				return tombstone.Key == name
			}
			o, err := meta.Accessor(obj)
			return err == nil && o.GetName() == name
		},
		Handler: handlerFuncs(handle),
	}
}

// handlerFuncs calls handle with the current object for each event.
func handlerFuncs(handle func(any)) cache.ResourceEventHandlerFuncs {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    handle,
		UpdateFunc: func(_, obj any) { handle(obj) },
		DeleteFunc: handle,
	}
}
