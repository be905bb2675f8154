package ovstest_test

import (
	"os"
	"strings"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

func TestSwitch(t *testing.T) {
	var dir string
	t.Run("life", func(t *testing.T) {
		s := ovstest.Start(t)
		dir = s.RunDir
		s.VSCtl(t, "add-br", ovstest.Bridge, "--", "set", "bridge", ovstest.Bridge, "datapath_type=netdev", "fail_mode=secure", "protocols=[]")
		s.OFCtl(t, "add-flow", ovstest.Bridge, "table=3,priority=7,ip,nw_src=10.0.0.1,cookie=0x9,actions=drop")

		if diff := cmp.Diff([]string{"cookie=0x9, table=3, priority=7,ip,nw_src=10.0.0.1 actions=drop"}, s.Dump(t)); diff != "" {
			t.Errorf("Dump (-want +got):\n%s", diff)
		}
		flow := &ovs.Flow{Table: 3, Priority: 7, Protocol: "ip", Cookie: 9, Matches: []ovs.Match{goovs.NetworkSource("10.0.0.1")}, Actions: []ovs.Action{goovs.Drop()}}
		if diff := s.Diff(t, []*ovs.Flow{flow}); diff != "" {
			t.Errorf("Diff of equal flows: %s", diff)
		}
		if diff := s.Diff(t, nil); !strings.HasPrefix(diff, "-") {
			t.Errorf("Diff of different flows: %q", diff)
		}
		if got := s.Trace(t, "ip,nw_src=10.0.0.2"); !strings.Contains(got, "Datapath actions: drop") {
			t.Errorf("Trace: %s", got)
		}
		s.StopVSwitchd(t)
		s.StartVSwitchd(t)
		if got := s.Dump(t); len(got) != 0 {
			t.Errorf("flows after a restart: %v", got)
		}
	})
	if dir == "" {
		t.Skip("needs root")
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there (%v)", dir, err)
	}
}
