package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"github.com/vishvananda/netlink"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/store"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// gated is a switch with one flow, which counts what comes from port in, and an agent's gate and store.
type gated struct {
	*ovstest.Switch
	bridge *ovs.Native
	gate   *gate
}

func newGated(t *testing.T) *gated {
	t.Helper()
	g := &gated{Switch: ovstest.Start(t)}
	g.bridge = ovs.NewNative(bridgeName, g.RunDir)
	t.Cleanup(g.bridge.Close)
	g.gate = newGate(g.bridge)
	if err := g.bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: bridgeName, DatapathType: "netdev"}); err != nil {
		t.Fatal(err)
	}
	if _, err := g.bridge.AddPort(t.Context(), ovs.Port{Name: "in", Type: "internal", OFPort: 1}); err != nil {
		t.Fatal(err)
	}
	err := g.NS.Do(func(ns.NetNS) error {
		link, err := netlinksafe.LinkByName("in")
		if err != nil {
			return err
		}
		addr, err := netlink.ParseAddr("192.0.2.1/24")
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, addr); err != nil {
			return err
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		return netlink.NeighSet(&netlink.Neigh{
			LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT,
			IP: net.IPv4(192, 0, 2, 2), HardwareAddr: net.HardwareAddr{0x0a, 0x58, 192, 0, 2, 2},
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// agent runs what an agent runs until the test ends, or stop is called.
func (g *gated) agent(t *testing.T, gate *gate) (stop func()) {
	t.Helper()
	return runGate(t, gate, &ovs.Flow{Table: 0, Priority: 100, InPort: 1, Actions: []ovs.Action{goovs.Drop()}})
}

// runGate runs a gate with a store that wants the flows.
func runGate(t *testing.T, gate *gate, flows ...*ovs.Flow) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	st := store.New(gate)
	st.Set(pipeline.Owner{Kind: pipeline.KindNode, Key: "n"}, pipeline.State{Flows: flows})
	var parts sync.WaitGroup
	parts.Go(func() { gate.run(ctx) })
	parts.Go(func() { _ = st.Run(ctx) })
	parts.Go(func() {
		gate.Watch(ctx, func(e ovs.Event) {
			if e.Kind == ovs.SwitchConnected {
				st.Resync()
			}
		})
	})
	stop = sync.OnceFunc(func() { cancel(); parts.Wait() })
	t.Cleanup(stop)
	return stop
}

// settles waits for the setting.
func (g *gated) settles(t *testing.T, want ovs.RestoreWait) {
	t.Helper()
	g.eventually(t, fmt.Sprintf("the setting is %+v", want), func() error {
		got, err := g.bridge.RestoreWait(t.Context())
		if err == nil && got != want {
			err = fmt.Errorf("it is %+v", got)
		}
		return err
	})
}

func (g *gated) eventually(t *testing.T, what string, look func() error) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := look()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: %v\n%s", what, err, g.Logs())
		}
	}
}

// forwards waits until packets reach the flow.
func (g *gated) forwards(t *testing.T) {
	t.Helper()
	g.eventually(t, "packets pass", func() error {
		g.send(t)
		n, err := g.counted(t)
		if err == nil && n == 0 {
			err = errors.New("the flow has seen none")
		}
		return err
	})
}

// drops replaces the flows by one that drops all, as somebody other than an agent. A session with the vswitchd before may have to end first.
func (g *gated) drops(t *testing.T) {
	t.Helper()
	g.eventually(t, "vswitchd has the flow", func() error {
		_, err := g.bridge.Replace(t.Context(), ovs.State{Flows: []*ovs.Flow{{Table: 0, Priority: 1, Actions: []ovs.Action{goovs.Drop()}}}})
		return err
	})
}

func (g *gated) send(t *testing.T) {
	t.Helper()
	err := g.NS.Do(func(ns.NetNS) error {
		conn, err := net.Dial("udp", "192.0.2.2:9")
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.Write([]byte("x"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// counted is the packet counter of the one flow that is there.
func (g *gated) counted(t *testing.T) (uint64, error) {
	t.Helper()
	g.run(t, "revalidator/purge") // else the datapath's count comes later
	flows, err := g.bridge.DumpFlows(t.Context())
	if err != nil {
		return 0, err
	}
	if len(flows) != 1 {
		return 0, fmt.Errorf("there are the flows %v, want one", flows)
	}
	return flows[0].Packets, nil
}

func (g *gated) run(t *testing.T, args ...string) string {
	t.Helper()
	cmd := g.Command(t.Context(), "ovs-appctl", append([]string{"--target=" + g.RunDir + "/ovs-vswitchd.ctl"}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("ovs-appctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// A vswitchd that starts anew takes no packets before the agent has written its flows, whether that runs at the time or comes later.
func TestVSwitchdWaitsForItsFlows(t *testing.T) {
	g := newGated(t)
	stop := g.agent(t, g.gate)
	g.settles(t, ovs.RestoreWait{Armed: true, Alone: true})
	g.forwards(t)

	g.StopVSwitchd(t)
	g.StartVSwitchd(t)
	g.forwards(t)
	g.settles(t, ovs.RestoreWait{Armed: true, Alone: true})

	stop()
	g.StopVSwitchd(t)
	g.StartVSwitchd(t)
	g.drops(t)
	for range 10 {
		g.send(t)
	}
	if n, err := g.counted(t); err != nil || n != 0 {
		t.Errorf("%d packets (%v) were taken while vswitchd waits for its flows", n, err)
	}
	g.agent(t, newGate(g.bridge))
	g.forwards(t)
	g.settles(t, ovs.RestoreWait{Armed: true, Alone: true})
}

// A vswitchd that was too busy to see that it need not wait any more is told again, before the next one is told to wait.
func TestVSwitchdIsToldUntilItHasHeard(t *testing.T) {
	g := newGated(t)
	if err := g.bridge.SetRestoreWait(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	g.StopVSwitchd(t)
	g.StartVSwitchd(t)
	g.eventually(t, "vswitchd has its flow", func() error {
		_, err := g.gate.Replace(t.Context(), ovs.State{Flows: []*ovs.Flow{{Table: 0, Priority: 100, InPort: 1, Actions: []ovs.Action{goovs.Drop()}}}})
		return err
	})
	resume := g.PauseVSwitchd(t)
	shortly := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		return g.gate.settle(ctx)
	}
	g.eventually(t, "the setting is taken away", func() error {
		if err := shortly(); err == nil {
			t.Fatal("a vswitchd that hangs is said to have heard")
		}
		wait, err := g.bridge.RestoreWait(t.Context())
		if err == nil && wait.Armed {
			err = errors.New("it is there")
		}
		return err
	})
	if err := shortly(); err == nil {
		t.Error("a vswitchd that still hangs is said to have heard")
	}
	g.settles(t, ovs.RestoreWait{Alone: true})
	resume()
	g.eventually(t, "vswitchd has heard", func() error { return g.gate.settle(t.Context()) })
	g.settles(t, ovs.RestoreWait{Armed: true, Alone: true})
	g.forwards(t)
}

// Where the vswitchd serves others too, perhaps the node's only way to the cluster, it never waits, and one that does is released before
// the cluster is asked for anything.
func TestVSwitchdOfOthersDoesNotWait(t *testing.T) {
	g := newGated(t)
	stop := g.agent(t, g.gate)
	g.settles(t, ovs.RestoreWait{Armed: true, Alone: true})
	stop()

	g.VSCtl(t, "add-br", "br-ex", "--", "set", "bridge", "br-ex", "datapath_type=netdev")
	g.StopVSwitchd(t)
	g.StartVSwitchd(t)
	g.drops(t)
	// An agent that has not got as far as to a store.
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { newGate(g.bridge).run(ctx) })
	defer running.Wait()
	defer cancel()
	g.settles(t, ovs.RestoreWait{})
	g.forwards(t)

	// What somebody else sets, as ovs-ctl does, is not taken away.
	g.VSCtl(t, "set", "open_vswitch", ".", "other_config:flow-restore-wait=true")
	g.settles(t, ovs.RestoreWait{Armed: true})
	cancel()
	running.Wait()
	g.settles(t, ovs.RestoreWait{Armed: true})
}
