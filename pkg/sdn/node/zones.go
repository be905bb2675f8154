package node

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// zoneLimitsInterval is the time between two looks at the tracker's free room, by which the limits of zones follow it.
const zoneLimitsInterval = 250 * time.Millisecond

// The limits are set again when the free room has changed by more than one part in zoneLimitsStep.
const zoneLimitsStep = 8

// zoneLimits limits the conntrack zones of this node's pods to shares of the tracker's free room (docs/decisions/0001-conntrack.md).
type zoneLimits struct {
	bridge *ovs.Native
	node   pipeline.Node
	runner *reconcile.Runner

	lost atomic.Bool // vswitchd may have none of the limits
	free int         // room that the limits were set for last; only the runner uses it
}

func newZoneLimits(bridge *ovs.Native, node pipeline.Node) *zoneLimits {
	l := &zoneLimits{bridge: bridge, node: node}
	l.runner = reconcile.NewRunner("zone limits", zoneLimitsInterval, l.serve)
	l.Reset()
	return l
}

// Reset sets the limits again. It is for each session with vswitchd, which may have lost them.
func (l *zoneLimits) Reset() {
	l.lost.Store(true)
	l.runner.Poke()
}

// Run has the limits follow the free room until the context ends.
func (l *zoneLimits) Run(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { l.runner.Run(ctx) })
	wait.UntilWithContext(ctx, func(context.Context) { l.runner.Poke() }, zoneLimitsInterval)
	parts.Wait()
}

// serve leaves it to the next interval if vswitchd does not answer: the limits must not wait for a back-off when it starts.
func (l *zoneLimits) serve(ctx context.Context) error {
	err := l.follow(ctx)
	if ovs.IsUnavailable(err) {
		return nil
	}
	return err
}

// follow sets the limits if the free room has changed.
func (l *zoneLimits) follow(ctx context.Context) error {
	lost := l.lost.Swap(false)
	tracker, err := l.bridge.Tracker(ctx)
	if err != nil {
		l.lost.Store(true)
		return err
	}
	free := tracker.Free()
	if change := max(free-l.free, l.free-free); !lost && change <= l.free/zoneLimitsStep {
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
