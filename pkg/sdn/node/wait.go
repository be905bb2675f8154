package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// sayAgain is how often the agent repeats what it waits for.
const sayAgain = 30 * time.Second

// fillTime is how long a cache may take to fill before what is missing in it is taken for missing.
const fillTime = 5 * time.Second

// errUnheard is what the agent waits for when it could read nothing yet.
var errUnheard = errors.New("the API server does not answer (--kube-apiserver), or does not have the kinds and rights of this installation (deploy/crds, deploy/rbac): " +
	"the agent's log says which; what is on the node already goes on")

// waitFor returns what try gives once it gives no error, and asks it again whenever one of the informers tells of a change. say is
// told why the agent waits, when the reason changes and every now and then.
func waitFor[T any](ctx context.Context, informers []cache.SharedIndexInformer, say func(error), try func() (T, error)) (T, error) {
	var none T
	changed := make(chan struct{}, 1)
	poke := func(any) {
		select {
		case changed <- struct{}{}:
		default: // one look is due already
		}
	}
	var filled []cache.InformerSynced
	for _, informer := range informers {
		reg, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    poke,
			UpdateFunc: func(_, obj any) { poke(obj) },
			DeleteFunc: poke,
		})
		if err != nil {
			return none, fmt.Errorf("watching: %w", err)
		}
		defer func() {
			if err := informer.RemoveEventHandler(reg); err != nil {
				klog.FromContext(ctx).Error(err, "Informer keeps a handler that is not needed any more")
			}
		}()
		filled = append(filled, informer.HasSynced)
	}

	// Else every start would warn of what it has merely not heard of yet. If it can't be had at all, say what is missed.
	filling, stop := context.WithTimeout(ctx, fillTime)
	defer stop()
	cache.WaitForCacheSync(filling.Done(), filled...)

	again := time.NewTicker(sayAgain)
	defer again.Stop()
	var said string
	for {
		got, err := try()
		if err == nil {
			return got, nil
		}
		if slices.ContainsFunc(filled, func(synced cache.InformerSynced) bool { return !synced() }) {
			err = errUnheard // so what is missing may be there
		}
		if said != err.Error() {
			said = err.Error()
			say(err)
		}
		select {
		case <-ctx.Done():
			return none, ctx.Err()
		case <-changed:
		case <-again.C:
			said = ""
		}
	}
}
