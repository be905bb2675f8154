package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
)

// socketCheck is how often the CNI socket is looked for. Runtimes repeat an ADD that finds none.
const socketCheck = 2 * time.Second

// socketKeeper makes the CNI socket again when it is deleted, as by a program that empties /run.
type socketKeeper struct {
	socket interface {
		Restore() (restored bool, err error)
	}
	report func(eventType, reason, message string)
	period time.Duration

	mu    sync.Mutex
	fault error
}

// run keeps the socket until the context ends. It returns an error only when another agent has taken the node.
func (k *socketKeeper) run(ctx context.Context) error {
	ticker := time.NewTicker(k.period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		restored, err := k.socket.Restore()
		if cniserver.IsInUse(err) {
			return fmt.Errorf("the lock beside the CNI socket was deleted: %w", err)
		}
		k.note(ctx, restored, err)
	}
}

func (k *socketKeeper) note(ctx context.Context, restored bool, err error) {
	k.mu.Lock()
	was := k.fault
	k.fault = err
	k.mu.Unlock()
	if restored {
		klog.FromContext(ctx).Info("Restored the CNI socket")
		k.report(corev1.EventTypeWarning, reasonSocketRestored,
			"the CNI socket or its lock was deleted while the agent ran; both exist again, and no pod could start or end here in between")
	}
	if err != nil && (was == nil || was.Error() != err.Error()) {
		klog.FromContext(ctx).Error(err, "Failed to restore the CNI socket", "retryAfter", k.period)
		k.report(corev1.EventTypeWarning, reasonFailed, fmt.Sprintf("restore the CNI socket: %v; no pod can start or end here", err))
	}
}

// healthy returns why the runtime can't reach the agent, nil if it can.
func (k *socketKeeper) healthy() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fault != nil {
		return errors.Join(errors.New("the container runtime can't reach the agent"), k.fault)
	}
	return nil
}
