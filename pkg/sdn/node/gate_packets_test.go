package node

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// On the kernel datapath, vswitchd may die and start anew without the loss of a packet that flows already: the kernel goes on until the
// flows are back. On the userspace datapath, where nothing can go on, packets flow again.
func TestPacketsFlowWhileVSwitchdStartsAnew(t *testing.T) {
	n := datapath.New(t, 1)
	node := n.Nodes[0]
	a, b := node.AddPod(t), node.AddPod(t)
	bridge := ovs.NewNative(ovstest.Bridge, node.Switch.RunDir)
	t.Cleanup(bridge.Close)
	gate := newGate(bridge)
	runGate(t, gate,
		&ovs.Flow{Table: 0, Priority: 100, InPort: a.OFPort, Actions: []ovs.Action{goovs.Output(b.OFPort)}},
		&ovs.Flow{Table: 0, Priority: 100, InPort: b.OFPort, Actions: []ovs.Action{goovs.Output(a.OFPort)}})
	kernel := n.Type == ovstest.DatapathSystem
	g := &gated{Switch: node.Switch, bridge: bridge}
	// Userspace VXLAN needs a second bridge.
	g.settles(t, ovs.RestoreWait{Armed: kernel, Alone: kernel})

	from := wire.NetNS(fmt.Sprintf("/proc/self/fd/%d", a.NS.Fd()))
	ping := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return from.Ping(ctx, b.Addr, wire.Echo{})
	}
	g.eventually(t, "packets pass", ping)
	for range 3 {
		pings, err := from.PingEvery(t.Context(), 10*time.Millisecond, b.Addr)
		if err != nil {
			t.Fatal(err)
		}
		session := bridge.Session()
		node.Switch.StopVSwitchd(t)
		node.Switch.StartVSwitchd(t)
		g.eventually(t, "the new vswitchd has its flows", func() error {
			if now := bridge.Session(); now == session || kernel && gate.opened.Load() != now {
				return fmt.Errorf("it has not")
			}
			return nil
		})
		g.settles(t, ovs.RestoreWait{Armed: kernel, Alone: kernel})
		// What the kernel went on with is flushed a moment after the gate has opened.
		g.eventually(t, "the flows of the last vswitchd are gone", func() error {
			if n := g.run(t, "coverage/read-counter", "dpif_flow_flush"); n == "0" {
				return errors.New("they are not")
			}
			return nil
		})
		g.eventually(t, "packets pass again", ping)
		sent, lost, err := pings.Stop()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("of %d pings %d were lost", sent, len(lost))
		if kernel && len(lost) > 0 {
			t.Errorf("of %d pings %d were lost, the first at %v", sent, len(lost), lost[0])
		}
	}
}
