package native_test

import (
	"testing"

	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

func TestRestoreWait(t *testing.T) {
	tier.Parallel(t)
	s, n := startNative(t)
	is := func(want native.RestoreWait) func() bool {
		return func() bool {
			got, err := n.RestoreWait(t.Context())
			must(t, err)
			return got == want
		}
	}
	poll(t, "not armed", is(native.RestoreWait{Alone: true}))
	must(t, n.SetRestoreWait(t.Context(), true))
	poll(t, "armed", is(native.RestoreWait{Armed: true, Alone: true}))
	s.VSCtl(t, "set", "open_vswitch", ".", "other_config:flow-restore-wait=false", "other_config:other=x")
	poll(t, "disarmed by another client", is(native.RestoreWait{Alone: true}))
	must(t, n.SetRestoreWait(t.Context(), true))
	poll(t, "armed again", is(native.RestoreWait{Armed: true, Alone: true}))
	s.VSCtl(t, "add-br", "other", "--", "set", "bridge", "other", "datapath_type=netdev")
	poll(t, "another bridge", is(native.RestoreWait{Armed: true}))
	must(t, n.SetRestoreWait(t.Context(), false))
	poll(t, "disarmed", is(native.RestoreWait{}))
	s.VSCtl(t, "del-br", "other", "--", "del-br", ovstest.Bridge)
	poll(t, "no bridge", is(native.RestoreWait{None: true}))
	if got := s.VSCtl(t, "get", "open_vswitch", ".", "other_config"); got != "{other=x}\n" {
		t.Errorf("got other_config %q, want the other keys unchanged", got)
	}
}
