package native_test

import (
	"strings"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// A client may change the database without waiting for vswitchd. The event must come after vswitchd has processed the change: flows that
// are added earlier are deleted.
func TestNativeReportsFlushes_noWait(t *testing.T) {
	tier.Parallel(t)
	s, n := startNative(t)
	events := watch(t, n)
	must(t, replace(t, n, []*ovs.Flow{flow(0, 1, "10.0.0.1/32", goovs.Drop())}))
	next := func() string { return s.VSCtl(t, "--no-wait", "get", "open_vswitch", ".", "next_cfg") }
	before := next()

	resume := s.PauseVSwitchd(t)
	s.VSCtl(t, "--no-wait", "del-fail-mode", ovstest.Bridge)
	poll(t, "the copy has the change", func() bool { return len(events) > 0 || next() != before })
	for range len(events) {
		if e := <-events; e.Kind == native.FlowsLost {
			t.Error("got FlowsLost while vswitchd is paused, want it later")
		}
	}
	resume()
	expect(t, events, "FlowsLost after vswitchd resumed", kind(native.FlowsLost))
	if diff := s.Diff(t, nil); !strings.Contains(diff, "actions=NORMAL") {
		t.Errorf("got the previous flows, want them deleted: %s", diff)
	}
}

// Flows that are added after the event are retained.
func TestNativeReportsFlushes_failMode(t *testing.T) {
	tier.Parallel(t)
	s, n := startNative(t)
	events := watch(t, n)
	flows := []*ovs.Flow{flow(0, 1, "10.0.0.1/32", goovs.Drop())}
	must(t, replace(t, n, flows))
	session := n.Session()

	s.VSCtl(t, "del-fail-mode", ovstest.Bridge)
	expect(t, events, "FlowsLost after another client changed the fail mode", kind(native.FlowsLost))
	if diff := s.Diff(t, flows); !strings.Contains(diff, "actions=NORMAL") {
		t.Errorf("got the previous flows, want them deleted: %s", diff)
	}
	must(t, replace(t, n, flows))

	must(t, n.EnsureBridge(t.Context(), bridge()))
	expect(t, events, "FlowsLost after the correction", kind(native.FlowsLost))
	if diff := s.Diff(t, nil); diff != "" {
		t.Errorf("got the previous flows, want them deleted: %s", diff)
	}
	must(t, replace(t, n, flows))
	must(t, n.EnsureBridge(t.Context(), bridge()))
	if diff := s.Diff(t, flows); diff != "" {
		t.Errorf("flows (-want +got):\n%s", diff)
	}
	if n.Session() != session {
		t.Errorf("got session %d, want %d", n.Session(), session)
	}
}

// vswitchd has flushed when ovs-vsctl returns, before the backend processes the change of the database.
func TestAwaitEvents_flush(t *testing.T) {
	tier.Parallel(t)
	s := ovstest.Start(t)
	runDir, hold := s.RelayDB(t)
	n := patient(native.New(ovstest.Bridge, runDir))
	t.Cleanup(n.Close)
	must(t, n.EnsureBridge(t.Context(), bridge()))
	events := watchFlows(t, s, n)
	for range 10 {
		for _, mode := range []string{"standalone", "secure"} {
			release := hold()
			s.VSCtl(t, "set-fail-mode", ovstest.Bridge, mode)
			returned := make(chan error, 1)
			go func() { returned <- n.AwaitEvents(t.Context()) }()
			release()
			must(t, <-returned)
			reported := false
			for range len(events) {
				reported = (<-events).Kind == native.FlowsLost || reported
			}
			if !reported {
				t.Fatal("AwaitEvents returned before FlowsLost, want it after")
			}
		}
	}
	s.StopDB(t)
	if err := n.AwaitEvents(t.Context()); !ovs.IsUnavailable(err) {
		t.Errorf("got error %v without OVSDB, want an unavailable error", err)
	}
}

// While the backend is not connected to OVSDB, the fail mode may be changed and restored.
func TestNativeReportsFlushes_databaseDisconnected(t *testing.T) {
	tier.Parallel(t)
	s, n := startNative(t)
	events := watchFlows(t, s, n)
	s.StopDB(t)
	s.StartDB(t)
	must(t, n.AwaitEvents(t.Context()))
	for range len(events) {
		if (<-events).Kind == native.FlowsLost {
			return
		}
	}
	t.Error("got no FlowsLost after a new connection to OVSDB, want one")
}

// TestNativeReportsFlushes_controller: vswitchd flushes when a bridge gets its first controller and when it loses its last one.
func TestNativeReportsFlushes_controller(t *testing.T) {
	tier.Parallel(t)
	s, n := startNative(t)
	events := watch(t, n)
	flows := []*ovs.Flow{flow(0, 1, "10.0.0.1/32", goovs.Drop())}
	for _, change := range [][]string{{"set-controller", ovstest.Bridge, "tcp:127.0.0.1:1"}, {"del-controller", ovstest.Bridge}} {
		must(t, replace(t, n, flows))
		s.VSCtl(t, change...)
		expect(t, events, change[0], kind(native.FlowsLost))
		if diff := s.Diff(t, nil); diff != "" {
			t.Errorf("after %s: got flows, want none: %s", change[0], diff)
		}
	}
}
