package node

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// zoneLimitsInterval is the interval at which the limits are adapted to the free entries of the conntrack table.
const zoneLimitsInterval = 250 * time.Millisecond

// The limits are set again when the number of free entries has changed by more than 1/zoneLimitsStep.
const zoneLimitsStep = 8

// limitsZones reports whether the node's zones have limits: otherwise nothing tracks connections.
func limitsZones(node pipeline.Node) bool {
	return node.Mode != config.ModeSubnet || node.BalancesServices
}

// zoneLimits limits the conntrack zones of this node's pods to shares of the free entries (docs/decisions/0001-conntrack.md).
type zoneLimits struct {
	bridge *native.Native
	node   pipeline.Node
	runner *reconcile.Runner

	lost atomic.Bool // vswitchd may have none of the limits
	free int         // free entries when the limits were set; used only by the runner
}

func newZoneLimits(bridge *native.Native, node pipeline.Node) *zoneLimits {
	l := &zoneLimits{bridge: bridge, node: node}
	l.runner = reconcile.NewRunner("zone limits", zoneLimitsInterval, l.reconcile)
	l.Reset()
	return l
}

// Reset sets the limits again. Call it for each new session with vswitchd, which may have lost them.
func (l *zoneLimits) Reset() {
	l.lost.Store(true)
	l.runner.Trigger()
}

// Run adapts the limits to the free entries until the context ends.
func (l *zoneLimits) Run(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { l.runner.Run(ctx) })
	wait.UntilWithContext(ctx, func(context.Context) { l.runner.Trigger() }, zoneLimitsInterval)
	parts.Wait()
}

// reconcile returns no error if vswitchd does not answer: the limits must be set at the next interval, not after a backoff.
func (l *zoneLimits) reconcile(ctx context.Context) error {
	err := l.update(ctx)
	if ovs.IsUnavailable(err) {
		return nil
	}
	return err
}

// update sets the limits if the number of free entries has changed.
func (l *zoneLimits) update(ctx context.Context) error {
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
