package ovs_test

import (
	"strings"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

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
