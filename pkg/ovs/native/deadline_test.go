package native_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// The switch sends a hello and then hangs.
func TestHungSwitchIsUnavailable(t *testing.T) {
	tier.Parallel(t)
	for name, isLast := range map[string]func(openflow.Message) bool{
		"version":   func(m openflow.Message) bool { _, ok := m.(*openflow.DescRequest); return ok },
		"fragments": func(m openflow.Message) bool { _, ok := m.(*openflow.SetConfig); return ok },
	} {
		t.Run(name, func(t *testing.T) {
			s, first := startNative(t)
			first.Close()
			hang := make(chan struct{})
			n := native.New(ovstest.Bridge, s.Relay(t, func(m openflow.Message) {
				if isLast(m) {
					<-hang
				}
			}))
			t.Cleanup(n.Close)
			t.Cleanup(func() { close(hang) })
			n.SetDialTimeout(300 * time.Millisecond)
			_, err := n.Missing(t.Context(), nil)
			if !ovs.IsUnavailable(err) {
				t.Errorf("got %v, want an unavailable error", err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if _, err := n.Missing(ctx, nil); !errors.Is(err, context.DeadlineExceeded) || ovs.IsUnavailable(err) {
				t.Errorf("deadline of the caller: got %v, want context.DeadlineExceeded", err)
			}
		})
	}
}

func TestHungDatapathIsUnavailable(t *testing.T) {
	tier.Parallel(t)
	s, n := startNative(t)
	must(t, n.AwaitDatapath(t.Context()))
	native.SetTimeout(n, 300*time.Millisecond)
	resume := s.PauseVSwitchd(t)
	defer resume()
	if err := n.AwaitDatapath(t.Context()); !ovs.IsUnavailable(err) {
		t.Errorf("got %v, want an unavailable error", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := n.AwaitDatapath(ctx); !errors.Is(err, context.DeadlineExceeded) || ovs.IsUnavailable(err) {
		t.Errorf("deadline of the caller: got %v, want context.DeadlineExceeded", err)
	}
}
