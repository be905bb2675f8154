package ovs_test

import (
	"testing"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

func TestRestoreWaitIsSeen(t *testing.T) {
	s, n := startNative(t)
	is := func(want ovs.RestoreWait) func() bool {
		return func() bool {
			got, err := n.RestoreWait(t.Context())
			must(t, err)
			return got == want
		}
	}
	poll(t, "not armed at first", is(ovs.RestoreWait{Alone: true}))
	must(t, n.SetRestoreWait(t.Context(), true))
	poll(t, "armed", is(ovs.RestoreWait{Armed: true, Alone: true}))
	s.VSCtl(t, "set", "open_vswitch", ".", "other_config:flow-restore-wait=false", "other_config:other=x")
	poll(t, "somebody wrote false", is(ovs.RestoreWait{Alone: true}))
	must(t, n.SetRestoreWait(t.Context(), true))
	poll(t, "armed again", is(ovs.RestoreWait{Armed: true, Alone: true}))
	s.VSCtl(t, "add-br", "other", "--", "set", "bridge", "other", "datapath_type=netdev")
	poll(t, "another bridge", is(ovs.RestoreWait{Armed: true}))
	must(t, n.SetRestoreWait(t.Context(), false))
	poll(t, "disarmed", is(ovs.RestoreWait{}))
	s.VSCtl(t, "del-br", "other", "--", "del-br", ovstest.Bridge)
	poll(t, "no bridge", is(ovs.RestoreWait{None: true}))
	if got := s.VSCtl(t, "get", "open_vswitch", ".", "other_config"); got != "{other=x}\n" {
		t.Errorf("others' settings are %q", got)
	}
}
