package ovs_test

import (
	"strings"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// Who changes the database need not ask vswitchd to confirm it. The flows are lost when vswitchd has taken note, not before: who writes
// them earlier has them flushed.
func TestNativeTellsOfFlushesThatNobodyAwaits(t *testing.T) {
	s, n := startNative(t)
	events := watch(t, n)
	must(t, replace(t, n, []*ovs.Flow{flow(0, 1, "10.0.0.1/32", goovs.Drop())}))
	next := func() string { return s.VSCtl(t, "--no-wait", "get", "open_vswitch", ".", "next_cfg") }
	before := next()

	resume := s.PauseVSwitchd(t)
	s.VSCtl(t, "--no-wait", "del-fail-mode", ovstest.Bridge)
	poll(t, "the change is seen", func() bool { return len(events) > 0 || next() != before })
	for range len(events) {
		if e := <-events; e.Kind == ovs.FlowsLost {
			t.Error("the flows are told lost while vswitchd stands still")
		}
	}
	resume()
	expect(t, events, "the flows are lost", kind(ovs.FlowsLost))
	if diff := s.Diff(t, nil); !strings.Contains(diff, "actions=NORMAL") {
		t.Errorf("the bridge has its flows yet: %s", diff)
	}
}

// Who writes the flows after the event finds them still there a moment later.
func TestNativeTellsOfFlushes(t *testing.T) {
	s, n := startNative(t)
	events := watch(t, n)
	flows := []*ovs.Flow{flow(0, 1, "10.0.0.1/32", goovs.Drop())}
	must(t, replace(t, n, flows))
	session := n.Session()

	s.VSCtl(t, "del-fail-mode", ovstest.Bridge)
	expect(t, events, "somebody changed the fail mode", kind(ovs.FlowsLost))
	if diff := s.Diff(t, flows); !strings.Contains(diff, "actions=NORMAL") {
		t.Errorf("the bridge has its flows yet: %s", diff)
	}
	must(t, replace(t, n, flows))

	must(t, n.EnsureBridge(t.Context(), bridge()))
	expect(t, events, "it was corrected", kind(ovs.FlowsLost))
	if diff := s.Diff(t, nil); diff != "" {
		t.Errorf("the bridge has its flows yet: %s", diff)
	}
	must(t, replace(t, n, flows))
	must(t, n.EnsureBridge(t.Context(), bridge()))
	if diff := s.Diff(t, flows); diff != "" {
		t.Errorf("the flows changed: %s", diff)
	}
	if n.Session() != session {
		t.Error("there was another connection")
	}
}

// TestNativeReportsFlushes_controller: vswitchd flushes when a bridge gets its first controller and when it loses its last one.
func TestNativeReportsFlushes_controller(t *testing.T) {
	s, n := startNative(t)
	events := watch(t, n)
	flows := []*ovs.Flow{flow(0, 1, "10.0.0.1/32", goovs.Drop())}
	for _, change := range [][]string{{"set-controller", ovstest.Bridge, "tcp:127.0.0.1:1"}, {"del-controller", ovstest.Bridge}} {
		must(t, replace(t, n, flows))
		s.VSCtl(t, change...)
		expect(t, events, change[0], kind(ovs.FlowsLost))
		if diff := s.Diff(t, nil); diff != "" {
			t.Errorf("after %s the bridge still has flows: %s", change[0], diff)
		}
	}
}
