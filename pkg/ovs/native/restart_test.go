package native_test

import (
	"testing"

	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/test/tier"
)

func TestNativeReportsRestartedSwitch(t *testing.T) {
	tier.Parallel(t)
	s, n := startNative(t)
	must(t, replace(t, n, manyFlows(10)))
	events := watch(t, n)
	s.StopVSwitchd(t)
	s.StartVSwitchd(t)
	expect(t, events, "SwitchConnected after the restart", kind(native.SwitchConnected))
	must(t, replace(t, n, manyFlows(10)))
	if diff := s.Diff(t, manyFlows(10)); diff != "" {
		t.Errorf("flows (-want +got):\n%s", diff)
	}
}

// A call may connect before Watch does. The event precedes its result, so that its caller knows that the flows are those of a restarted switch.
func TestNativeReportsRestartedSwitch_beforeCalls(t *testing.T) {
	tier.Parallel(t)
	s, n := startNative(t)
	events := watchFlows(t, s, n)
	s.StopVSwitchd(t)
	connected := make(chan int, 1) // number of events before the first result
	go func() {
		for t.Context().Err() == nil {
			if _, err := n.DumpFlows(t.Context()); err == nil {
				connected <- len(events)
				return
			}
		}
	}()
	s.StartVSwitchd(t)
	for range <-connected {
		if (<-events).Kind == native.SwitchConnected {
			return
		}
	}
	t.Error("got the flows of a restarted switch before SwitchConnected, want them after it")
}
