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
	free int         // free entries when vswitchd's limits were set; used only by the runner
}

// New returns limits that are not set yet.
func New(bridge *native.Native, node pipeline.Node) *Limits {
	l := &Limits{bridge: bridge, node: node}
	l.runner = reconcile.NewRunner("zone limits", interval, l.reconcile)
	l.Reset()
	return l
}

// Reset sets the limits again if vswitchd has lost them. Call it for each new session with vswitchd.
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

// update sets the limits if the number of free entries has changed, or if vswitchd has none or others.
func (l *Limits) update(ctx context.Context) (err error) {
	lost := l.lost.Swap(false)
	defer func() {
		if err != nil {
			l.lost.Store(true)
		}
	}()
	tracker, err := l.bridge.Tracker(ctx)
	if err != nil {
		return err
	}
	free := tracker.Free()
	limits := l.node.ZoneLimits(free)
	if lost {
		l.free, lost, err = l.find(ctx, limits, free)
		if err != nil {
			return err
		}
	}
	if change := max(free-l.free, l.free-free); !lost && change <= l.free/step {
		return nil
	}
	for _, z := range limits {
		if err := l.bridge.LimitZones(ctx, z.Zones, z.Limit); err != nil {
			return err
		}
	}
	l.free = free
	klog.FromContext(ctx).V(2).Info("Set conntrack zone limits", "limits", limits, "size", tracker.Size, "used", tracker.Used)
	return nil
}

// One of sampled zones of a class is read, and its last one.
const sampled = 64

// find reads limits that vswitchd has, and returns how many entries were free when they were set, or that some are lost. So an agent that starts leaves the limits of the
// previous one: in userspace, vswitchd forwards nothing while it sets a thousand.
func (l *Limits) find(ctx context.Context, limits []pipeline.ZoneLimit, free int) (then int, lost bool, err error) {
	var zones []uint16
	for _, z := range limits {
		zones = append(zones, samples(z.Zones)...)
	}
	got, err := l.bridge.ZoneLimits(ctx, zones)
	if err != nil {
		return 0, false, err
	}
	for i, z := range limits {
		limit := got[z.Zones.First]
		for _, zone := range samples(z.Zones) {
			if got[zone] != limit {
				return 0, true, nil // for example of an agent that was killed
			}
		}
		was := free * limit / z.Limit
		if i == 0 {
			then = was
		}
		if limit == 0 || max(was-then, then-was) > then/100 { // of a version with other shares
			return 0, true, nil
		}
	}
	return then, false, nil
}

func samples(zones ovs.Zones) (all []uint16) {
	for zone := int(zones.First); zone < int(zones.Last); zone += sampled {
		all = append(all, uint16(zone)) //nolint:gosec // of 16 bits
	}
	return append(all, zones.Last)
}
