package node

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// gateRetry is how long a change of the gate that failed rests.
const gateRetry = time.Second

// gate is the switch with its setting flow-restore-wait (docs/decisions/0003): a vswitchd that starts anew lets the kernel go on with
// the flows that it has, and takes no packet, until the store has written all flows.
type gate struct {
	*ovs.Native

	due chan struct{} // there may be something to do

	filled atomic.Int64 // the session in which the switch last got all its flows
	opened atomic.Int64 // the session in which it was last told so
	armed  bool         // by this agent or by an earlier one; run's own
}

func newGate(bridge *ovs.Native) *gate {
	return &gate{Native: bridge, due: make(chan struct{}, 1), armed: true}
}

// Replace implements ovs.Interface. What follows from it does not hold up those who wait for their flows.
func (g *gate) Replace(ctx context.Context, want ovs.State) (ovs.Difference, error) {
	found, session, err := g.ReplaceIn(ctx, want)
	if err != nil {
		return found, err
	}
	g.filled.Store(session)
	select {
	case g.due <- struct{}{}:
	default: // it is due already
	}
	return found, nil
}

// run arms and opens until the context ends, and leaves it as it is then: the next vswitchd may start before the next agent.
func (g *gate) run(ctx context.Context) {
	failed := false
	for {
		next := hostCheck // of bridges that come and go nothing tells
		err := g.settle(ctx)
		if err != nil && ctx.Err() == nil {
			next = gateRetry
			if !failed && !ovs.IsUnavailable(err) {
				klog.FromContext(ctx).Error(err, "Could not say what Open vSwitch is to do when it starts, will try again")
			}
		}
		failed = err != nil
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
		case <-g.due:
		case <-timer.C:
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

func (g *gate) settle(ctx context.Context) error {
	wait, err := g.RestoreWait(ctx)
	if err != nil {
		return err
	}
	if !wait.Alone {
		return g.disarm(ctx, wait)
	}
	session := g.Session()
	if session == 0 || g.filled.Load() != session {
		return nil // it may be waiting, and shall
	}
	if g.opened.Load() != session {
		// Whether the database has the setting or not: vswitchd may not have looked since it was taken away.
		if err := g.SetRestoreWait(ctx, false); err != nil {
			return err
		}
		g.opened.Store(session)
	} else if wait.Armed {
		return nil
	}
	if err := g.SetRestoreWait(ctx, true); err != nil {
		return err
	}
	g.armed = true
	return nil
}

// disarm lets bridges that are not ours forward, whether the cluster can be asked for flows or not. A setting that somebody else
// has made since is theirs.
func (g *gate) disarm(ctx context.Context, wait ovs.RestoreWait) error {
	if wait.Armed && g.armed {
		klog.FromContext(ctx).Info("Open vSwitch has other bridges than the pods': it will not wait for their flows when it starts", "bridge", bridgeName)
		if err := g.SetRestoreWait(ctx, false); err != nil {
			return err
		}
	}
	g.armed = false
	return nil
}
