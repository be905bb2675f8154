package restorewait

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// On the kernel datapath, vswitchd may restart without the loss of a packet of an existing connection: the kernel forwards until the flows are
// installed again. The userspace datapath forwards again after the restart.
func TestPacketsFlow_vswitchdRestarts(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: counts lost packets of three restarts; TestCapabilities restarts vswitchd")
	}
	n := datapath.New(t, 1)
	node := n.Nodes[0]
	a, b := node.AddPod(t), node.AddPod(t)
	backend := native.New(ovstest.Bridge, node.Switch.RunDir)
	t.Cleanup(backend.Close)
	bridge := New(backend)
	runBridge(t, bridge,
		&ovs.Flow{Table: 0, Priority: 100, InPort: a.OFPort, Actions: []ovs.Action{goovs.Output(b.OFPort)}},
		&ovs.Flow{Table: 0, Priority: 100, InPort: b.OFPort, Actions: []ovs.Action{goovs.Output(a.OFPort)}})
	kernel := n.Type == ovstest.DatapathSystem
	f := &fixture{Switch: node.Switch, native: backend}
	// Userspace VXLAN needs a second bridge.
	f.awaitSetting(t, native.RestoreWait{Armed: kernel, Alone: kernel})

	from := wire.NetNS(fmt.Sprintf("/proc/self/fd/%d", a.NS.Fd()))
	ping := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return from.Ping(ctx, b.Addr, wire.Echo{})
	}
	f.eventually(t, "packets pass", ping)
	for range 3 {
		pings, err := from.PingEvery(t.Context(), 10*time.Millisecond, b.Addr)
		if err != nil {
			t.Fatal(err)
		}
		session := backend.Session()
		node.Switch.StopVSwitchd(t)
		node.Switch.StartVSwitchd(t)
		f.eventually(t, "the new vswitchd gets its flows", func() error {
			if now := backend.Session(); now == session || kernel && bridge.released.Load() != now {
				return fmt.Errorf("got session %d, want one after %d with all flows", now, session)
			}
			return nil
		})
		f.awaitSetting(t, native.RestoreWait{Armed: kernel, Alone: kernel})
		// vswitchd flushes the kernel's flows shortly after its release.
		f.eventually(t, "the kernel's flows of the previous vswitchd are flushed", func() error {
			if n := f.run(t, "coverage/read-counter", "dpif_flow_flush"); n == "0" {
				return errors.New("got 0 flushes")
			}
			return nil
		})
		f.eventually(t, "packets pass again", ping)
		sent, lost, err := pings.Stop()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d pings, %d lost", sent, len(lost))
		if kernel && len(lost) > 0 {
			t.Errorf("got %d pings of which %d were lost, want none lost; the first at %v", sent, len(lost), lost[0])
		}
	}
}
