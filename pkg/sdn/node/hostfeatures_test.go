package node

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/nodestatus"
)

// The remedy is that of the cause: loading modules does not fix a missing permission.
func TestHostFeatures_remedy(t *testing.T) {
	for feature, want := range map[hostnet.Feature]string{
		hostnet.FeatureNotrack: eventreason.TunnelTracked, hostnet.FeatureVTEPs: eventreason.TunnelUnrestricted, hostnet.FeaturePodLimit: eventreason.PodConnectionsUnlimited,
		hostnet.FeatureNotMasqueraded: eventreason.MasqueradeExceptionsIgnored, hostnet.FeatureAccept: eventreason.FirewallAcceptsOverridden,
	} {
		reason, _, err := skippedFeature(hostnet.Skipped{Feature: feature, Err: errors.New("operation not permitted"), Remedy: "allow it"})
		if message := err.Error(); reason != want || !strings.Contains(message, "operation not permitted; allow it") || strings.Contains(message, "load the modules") {
			t.Errorf("%s: got Event %s %q, want the reason %s and the remedy of the cause", feature, reason, message, want)
		}
	}
}

// Features that the firewall loses or gets while the agent runs change the message of the Node's condition, and each cause has one Event.
func TestHostFeatures_changes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var skipped atomic.Pointer[[]hostnet.Skipped]
		var events atomic.Int64
		features := &hostFeatures{
			skipped:  func() []hostnet.Skipped { return *skipped.Load() },
			warn:     func(string, error) { events.Add(1) },
			reported: map[hostnet.Feature]string{},
		}
		skipped.Store(&[]hostnet.Skipped{})
		a := &agent{condition: nodestatus.NewCondition(fake.NewClientset().CoreV1().Nodes(), "node1")}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go a.watchHealth(ctx, func() error { return nil }, func() string { return "ready" + features.effects() })
		missing := func(cause string) []hostnet.Skipped {
			return []hostnet.Skipped{{Feature: hostnet.FeatureVTEPs, Err: errors.New(cause), Remedy: "load the modules"}}
		}
		for _, step := range []struct {
			skipped []hostnet.Skipped
			message string
			events  int64
		}{
			{nil, "ready", 0},
			{missing("no ip_set"), "ready, VXLAN accepted from any address", 1},
			{missing("no ip_set"), "ready, VXLAN accepted from any address", 1},
			{nil, "ready", 1},
			{missing("no ip_set"), "ready, VXLAN accepted from any address", 1},
			{missing("another program created it"), "ready, VXLAN accepted from any address", 2},
		} {
			synctest.Wait()
			skipped.Store(&step.skipped)
			<-time.After(healthPeriod)
			synctest.Wait()
			if got := a.condition.Get(); got.Status != corev1.ConditionFalse || got.Message != step.message {
				t.Errorf("got %+v, want status False and message %q", got, step.message)
			}
			if got := events.Load(); got != step.events {
				t.Errorf("got %d Events, want %d", got, step.events)
			}
		}
	})
}
