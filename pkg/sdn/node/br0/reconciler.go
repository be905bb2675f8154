package br0

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// checkInterval is the interval of checks of the bridge and of Open vSwitch's sockets, for changes that cause no event.
const checkInterval = 10 * time.Second

// podPorts repairs ports of pods (*pods.Manager).
type podPorts interface {
	Repair(ctx context.Context, port string) error
}

// Reconciler restores the bridge and its ports after other programs changed them. The keys of its loop are names of ports; br0 is the key of
// the bridge with its fixed ports.
type Reconciler struct {
	bridge   *Bridge
	pods     podPorts
	report   func(error)
	restored func(message string) // reports on the Node that ports were deleted and restored
	period   time.Duration        // of checks of the bridge for changes that cause no event
	loop     *reconcile.Loop
	changes  *reconcile.Runner   // adds the bridge to the loop after changes of it
	last     reconcile.LastError // of the set-up of the bridge
}

// workers is the number of ports that are repaired at the same time: each may wait for vswitchd.
const workers = 4

// NewReconciler returns a reconciler of the bridge and, by the pod manager, of the ports of pods. It reports errors of the set-up of the bridge.
func NewReconciler(b *Bridge, pods podPorts, report func(error), restored func(message string)) *Reconciler {
	r := &Reconciler{bridge: b, pods: pods, report: report, restored: restored, period: checkInterval}
	r.loop = reconcile.New("bridge", r.reconcile)
	r.changes = reconcile.NewRunner("bridge repair", repairInterval, func(context.Context) error {
		r.loop.AddUnlessFailing(b.wanted.Name)
		return nil
	})
	return r
}

// enqueue schedules a check of the port. The bridge is checked at most once in repairInterval: another program may change it again after each repair.
func (r *Reconciler) enqueue(port string) {
	if r.bridge.hasFixed(port) {
		r.changes.Trigger()
		return
	}
	r.loop.AddUnlessFailing(port)
}

// Run restores the bridge and its ports until the context ends.
func (r *Reconciler) Run(ctx context.Context) {
	r.enqueue(r.bridge.wanted.Name)
	var parts sync.WaitGroup
	defer parts.Wait()
	parts.Go(func() { r.changes.Run(ctx) })
	r.loop.Run(ctx, workers)
}

func (r *Reconciler) reconcile(ctx context.Context, port string) error {
	if !r.bridge.hasFixed(port) {
		return r.pods.Repair(ctx, port)
	}
	missing, err := r.bridge.missing(ctx)
	if err == nil {
		err = r.bridge.Ensure(ctx)
	}
	if ctx.Err() != nil {
		return err
	}
	fault := err
	if ovs.IsUnavailable(err) {
		fault = nil // Manager.Healthy reports it
	}
	if r.last.Set(fault) {
		r.report(fault)
	}
	if err == nil && len(missing) > 0 {
		klog.FromContext(ctx).Info("Restored ports of the bridge", "bridge", Name, "ports", missing)
		r.restored(fmt.Sprintf("ports %s of bridge %s were deleted, alone or with the bridge, while the agent ran, and are restored; find the program that deletes them",
			strings.Join(missing, " and "), Name))
	}
	if err == nil {
		r.loop.AddAfter(port, r.period) // only changes of port numbers cause events
	}
	return err
}

// Healthy returns the error that prevents the set-up of the bridge, nil if there is none.
func (r *Reconciler) Healthy() error { return r.last.Get() }
