// Package restorewait arms and disarms Open vSwitch's setting flow-restore-wait (docs/decisions/0003): a vswitchd that starts lets the kernel
// datapath forward with its existing flows, and takes no packet, until the flow store has written all flows.
package restorewait

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
)

const (
	// retryInterval is the time between attempts to change the setting.
	retryInterval = time.Second

	// checkInterval is the time between checks: the agent gets no event for other bridges.
	checkInterval = 10 * time.Second
)

// Bridge is the flow store's switch. It changes the setting when all flows were written.
type Bridge struct {
	*native.Native

	due chan struct{} // the setting may have to change

	filled   atomic.Int64 // the last session in which the switch got all its flows
	released atomic.Int64 // the last session in which vswitchd was released
	armed    bool         // by this agent or by a previous one; only RunLoop uses it
}

// New returns a bridge whose setting RunLoop changes.
func New(bridge *native.Native) *Bridge {
	return &Bridge{Native: bridge, due: make(chan struct{}, 1), armed: true}
}

// Replace implements ovs.Interface. It does not wait for the change of the setting.
func (b *Bridge) Replace(ctx context.Context, want ovs.State) (ovs.Difference, error) {
	found, session, err := b.ReplaceIn(ctx, want)
	if err != nil {
		return found, err
	}
	b.filled.Store(session)
	select {
	case b.due <- struct{}{}:
	default: // already due
	}
	return found, nil
}

// RunLoop changes the setting until the context ends, and leaves it as it is then: the next vswitchd may start before the next agent.
func (b *Bridge) RunLoop(ctx context.Context) {
	failed := false
	for ctx.Err() == nil {
		next := checkInterval
		err := b.reconcile(ctx)
		if err != nil && ctx.Err() == nil {
			next = retryInterval
			if !failed && !ovs.IsUnavailable(err) {
				klog.FromContext(ctx).Error(err, "Failed to set flow-restore-wait", "retryAfter", next)
			}
		}
		failed = err != nil
		select {
		case <-ctx.Done():
		case <-b.due:
		case <-time.After(next):
		}
	}
}

func (b *Bridge) reconcile(ctx context.Context) error {
	wait, err := b.RestoreWait(ctx)
	if err != nil {
		return err
	}
	if !wait.Alone {
		return b.disarm(ctx, wait)
	}
	session := b.Session()
	if session == 0 || b.filled.Load() != session {
		return nil // vswitchd must wait for its flows
	}
	if b.released.Load() != session {
		// Also if the database does not have the setting: vswitchd may not have read the database since it was removed.
		if err := b.SetRestoreWait(ctx, false); err != nil {
			return err
		}
		b.released.Store(session)
	} else if wait.Armed {
		return nil
	}
	if err := b.SetRestoreWait(ctx, true); err != nil {
		return err
	}
	b.armed = true
	return nil
}

// disarm lets other bridges forward after the next start of vswitchd, even if the API server is unreachable. It does not change a setting that
// another program has made since.
func (b *Bridge) disarm(ctx context.Context, wait native.RestoreWait) error {
	if wait.Armed && b.armed {
		klog.FromContext(ctx).Info("Disarming flow-restore-wait: Open vSwitch has other bridges")
		if err := b.SetRestoreWait(ctx, false); err != nil {
			return err
		}
	}
	b.armed = false
	return nil
}
