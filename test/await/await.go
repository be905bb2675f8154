// Package await waits in tests for what other goroutines, programs and machines do.
package await

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"
)

// SyncTime is long enough for what follows from a change, on a machine that is busy with other work.
const SyncTime = 90 * time.Second

// PacketTime is the same for packets, which are sent again.
const PacketTime = 30 * time.Second

// interval is between two looks.
const interval = 20 * time.Millisecond

// OK returns when look returns no error. After the time limit it fails the test with look's last error. Look's context ends with the wait.
func OK(tb testing.TB, within time.Duration, look func(context.Context) error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), within) // cleanups wait too
	defer cancel()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var last error
	for ctx.Err() == nil {
		fault := look(ctx)
		if fault == nil {
			return
		}
		if last == nil || ctx.Err() == nil { // the timeout itself does not name the failure
			last = fault
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
	tb.Fatalf("not within %v: %v", within, last)
}

// Accept returns the listener's next connection. It waits until the end of the context: a client may be connected to a server that never accepts, if the
// last packet of the handshake is lost and the client sends nothing more.
func Accept(ctx context.Context, l net.Listener) (net.Conn, error) {
	limited, ok := l.(interface{ SetDeadline(time.Time) error })
	if !ok {
		return nil, fmt.Errorf("a listener of type %T has no deadline", l)
	}
	stop := context.AfterFunc(ctx, func() { _ = limited.SetDeadline(time.Unix(0, 1)) }) // it fails only for a closed listener
	defer stop()
	conn, err := l.Accept()
	if err != nil && ctx.Err() != nil {
		return nil, fmt.Errorf("no connection accepted: %w", context.Cause(ctx))
	}
	return conn, err
}
