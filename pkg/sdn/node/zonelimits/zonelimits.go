// Package zonelimits limits the conntrack zones of this node's pods, so that none of them can fill the conntrack table (docs/decisions/0001-conntrack.md).
package zonelimits

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// interval is the interval at which the limits are adapted to the free entries of the conntrack table.
const interval = 250 * time.Millisecond

// The limits are set again when the number of free entries has changed by more than 1/step.
const step = 8

// Limits limits the conntrack zones of this node's pods to shares of the free entries.
type Limits struct {
	bridge *native.Native
	node   pipeline.Node
	runner *reconcile.Runner

	lost atomic.Bool // vswitchd may have none of the limits
	free int         // free entries when the limits were set; used only by the runner
}

// New returns limits that are not set yet.
func New(bridge *native.Native, node pipeline.Node) *Limits {
	l := &Limits{bridge: bridge, node: node}
	l.runner = reconcile.NewRunner("zone limits", interval, l.reconcile)
	l.Reset()
	return l
}

// Reset sets the limits again. Call it for each new session with vswitchd, which may have lost them.
func (l *Limits) Reset() {
	l.lost.Store(true)
	l.runner.Trigger()
}

// Run adapts the limits to the free entries until the context ends.
func (l *Limits) Run(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { l.runner.Run(ctx) })
	wait.UntilWithContext(ctx, func(context.Context) { l.runner.Trigger() }, interval)
	parts.Wait()
}

// reconcile returns no error if vswitchd does not answer: the limits must be set at the next interval, not after a backoff.
func (l *Limits) reconcile(ctx context.Context) error {
	err := l.update(ctx)
	if ovs.IsUnavailable(err) {
		return nil
	}
	return err
}

// update sets the limits if the number of free entries has changed.
func (l *Limits) update(ctx context.Context) error {
	lost := l.lost.Swap(false)
	tracker, err := l.bridge.Tracker(ctx)
	if err != nil {
		l.lost.Store(true)
		return err
	}
	free := tracker.Free()
	if change := max(free-l.free, l.free-free); !lost && change <= l.free/step {
		return nil
	}
	limits := l.node.ZoneLimits(free)
	for _, z := range limits {
		if err := l.bridge.LimitZones(ctx, z.Zones, z.Limit); err != nil {
			l.lost.Store(true)
			return err
		}
	}
	l.free = free
	klog.FromContext(ctx).V(2).Info("Set conntrack zone limits", "limits", limits, "size", tracker.Size, "used", tracker.Used)
	return nil
}
