package cnifiles

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// socketCheck is the interval of checks of the CNI socket. Runtimes repeat an ADD that finds no socket.
const socketCheck = 2 * time.Second

// Socket restores the CNI socket and its lock after they were deleted, for example by a program that empties /run.
type Socket struct {
	socket interface {
		Restore() (restored bool, err error)
	}
	report func(eventType, reason, message string)
	period time.Duration
	last   reconcile.LastError
}

// NewSocket returns a reconciler of the socket that reports by Events on the Node.
func NewSocket(socket *cniserver.Listener, report func(eventType, reason, message string)) *Socket {
	return &Socket{socket: socket, report: report, period: socketCheck}
}

// Run restores the socket until the context ends. It returns an error only when another agent holds the lock.
func (k *Socket) Run(ctx context.Context) error {
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
			return fmt.Errorf("restore the deleted lock of the CNI socket: %w", err)
		}
		k.record(ctx, restored, err)
	}
}

func (k *Socket) record(ctx context.Context, restored bool, err error) {
	if restored {
		klog.FromContext(ctx).Info("Restored the CNI socket")
		k.report(corev1.EventTypeWarning, eventreason.CNISocketRestored,
			"the CNI socket or its lock was deleted while the agent ran, and both are restored; pods could not start or end in the meantime; find the program that deletes files in the socket's directory")
	}
	if k.last.Set(err) {
		klog.FromContext(ctx).Error(err, "Failed to restore the CNI socket", "retryAfter", k.period)
		k.report(corev1.EventTypeWarning, eventreason.NetworkSetupFailed, fmt.Sprintf("restore the CNI socket: %v; pods can't start or end on this node until its directory is writable", err))
	}
}

// Healthy returns the error of the last restoration, nil if the socket exists.
func (k *Socket) Healthy() error {
	if err := k.last.Get(); err != nil {
		return errors.Join(errors.New("the container runtime can't reach the agent"), err)
	}
	return nil
}
