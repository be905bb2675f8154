package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/test/await"
)

// How long things may take before a test fails, several times what they take on two busy cores.
const (
	// packetTime is a packet's, its neighbour lookups and a retry included.
	packetTime = 5 * time.Second
	// syncTime is for a change of an object or of the host to reach the switch.
	syncTime = 20 * time.Second
	// programTime is for kubelet to start or to end one of our programs, and for what the program then has to do, after another's lease is over.
	programTime = 90 * time.Second
	// podTime is for some pods to start or to end. kubelet's watch pauses for up to a minute when it was cut off (client-go's reflector).
	podTime = 3 * time.Minute
	// nodeTime is for a node to come or to go, or to get another version.
	nodeTime = 6 * time.Minute
)

// pollInterval is between two looks.
const pollInterval = 50 * time.Millisecond

// eventually returns when the function has no fault to find any more. Its last fault is the test's.
func eventually(t *testing.T, within time.Duration, what string, look func(context.Context) error) {
	t.Helper()
	await.OK(t, within, func(ctx context.Context) error {
		if fault := look(ctx); fault != nil {
			return fmt.Errorf("%s: %w", what, fault)
		}
		return nil
	})
}

// within runs the function with a deadline, and fails the test on its error.
func within(t *testing.T, limit time.Duration, what string, do func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if err := do(ctx); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// resending sends, and again after each second in which nothing was received: the machine may lose a lone packet. It returns what receiving
// says, when the context ends at the latest.
func resending(ctx context.Context, receiver interface{ SetReadDeadline(time.Time) error }, send, receive func() error) error {
	for {
		if err := send(); err != nil {
			return err
		}
		if err := receiver.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		if err := receive(); !errors.Is(err, os.ErrDeadlineExceeded) || ctx.Err() != nil {
			return err
		}
	}
}
