package restorewait

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
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

const bridgeName = "br0"

// fixture is a switch with one flow, which counts the packets from port in, and an agent's bridge.
type fixture struct {
	*ovstest.Switch
	native *native.Native
	bridge *Bridge
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{Switch: ovstest.Start(t)}
	f.native = native.New(bridgeName, f.RunDir)
	t.Cleanup(f.native.Close)
	f.bridge = New(f.native)
	if err := f.native.EnsureBridge(t.Context(), ovs.Bridge{Name: bridgeName, DatapathType: "netdev"}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.native.AddPort(t.Context(), ovs.Port{Name: "in", Type: "internal", OFPort: 1}); err != nil {
		t.Fatal(err)
	}
	err := f.NS.Do(func(ns.NetNS) error {
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
	return f
}

// agent runs the bridge and a store until the test ends, or stop is called.
func (f *fixture) agent(t *testing.T, bridge *Bridge) (stop func()) {
	t.Helper()
	return runBridge(t, bridge, &ovs.Flow{Table: 0, Priority: 100, InPort: 1, Actions: []ovs.Action{goovs.Drop()}})
}

// runBridge runs the bridge with a store that wants the flows.
func runBridge(t *testing.T, bridge *Bridge, flows ...*ovs.Flow) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	st := flowstore.New(bridge)
	st.Set(pipeline.Owner{Kind: pipeline.KindNode, Key: "n"}, pipeline.State{Flows: flows})
	var parts sync.WaitGroup
	parts.Go(func() { bridge.RunLoop(ctx) })
	parts.Go(func() { _ = st.Run(ctx) })
	parts.Go(func() {
		bridge.Watch(ctx, func(e native.Event) {
			if e.Kind == native.SwitchConnected {
				st.Resync()
			}
		})
	})
	stop = sync.OnceFunc(func() { cancel(); parts.Wait() })
	t.Cleanup(stop)
	return stop
}

// awaitSetting waits until the database has the setting.
func (f *fixture) awaitSetting(t *testing.T, want native.RestoreWait) {
	t.Helper()
	f.eventually(t, fmt.Sprintf("flow-restore-wait %+v", want), func() error {
		got, err := f.native.RestoreWait(t.Context())
		if err == nil && got != want {
			err = fmt.Errorf("got %+v", got)
		}
		return err
	})
}

func (f *fixture) eventually(t *testing.T, what string, look func() error) {
	t.Helper()
	deadline := time.After(90 * time.Second)
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
			t.Fatalf("%s: %v\n%s", what, err, f.Logs())
		}
	}
}

// awaitForwarding waits until packets reach the flow.
func (f *fixture) awaitForwarding(t *testing.T) {
	t.Helper()
	f.eventually(t, "packets reach the flow", func() error {
		f.send(t)
		n, err := f.packets(t)
		if err == nil && n == 0 {
			err = errors.New("got 0 packets")
		}
		return err
	})
}

// setDropFlow replaces the flows by one that drops all, without an agent. It retries, since the session with the previous vswitchd may have to end first.
func (f *fixture) setDropFlow(t *testing.T) {
	t.Helper()
	f.eventually(t, "replace the flows", func() error {
		_, err := f.native.Replace(t.Context(), ovs.State{Flows: []*ovs.Flow{{Table: 0, Priority: 1, Actions: []ovs.Action{goovs.Drop()}}}})
		return err
	})
}

func (f *fixture) send(t *testing.T) {
	t.Helper()
	err := f.NS.Do(func(ns.NetNS) error {
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

// packets returns the packet counter of the only flow.
func (f *fixture) packets(t *testing.T) (uint64, error) {
	t.Helper()
	f.run(t, "revalidator/purge") // else the datapath's count is added later
	flows, err := f.native.DumpFlows(t.Context())
	if err != nil {
		return 0, err
	}
	if len(flows) != 1 {
		return 0, fmt.Errorf("got flows %v, want one", flows)
	}
	return flows[0].Packets, nil
}

func (f *fixture) run(t *testing.T, args ...string) string {
	t.Helper()
	cmd := f.Command(t.Context(), "ovs-appctl", append([]string{"--target=" + f.RunDir + "/ovs-vswitchd.ctl"}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("ovs-appctl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// A vswitchd that restarts takes no packets before an agent has written its flows, whether the agent runs at the time or starts later.
func TestBridge_vswitchdWaitsForFlows(t *testing.T) {
	f := newFixture(t)
	stop := f.agent(t, f.bridge)
	f.awaitSetting(t, native.RestoreWait{Armed: true, Alone: true})
	f.awaitForwarding(t)

	f.StopVSwitchd(t)
	f.StartVSwitchd(t)
	f.awaitForwarding(t)
	f.awaitSetting(t, native.RestoreWait{Armed: true, Alone: true})

	stop()
	f.StopVSwitchd(t)
	f.StartVSwitchd(t)
	f.setDropFlow(t)
	for range 10 {
		f.send(t)
	}
	if n, err := f.packets(t); err != nil || n != 0 {
		t.Errorf("got %d packets (error %v) while vswitchd waits for its flows, want 0", n, err)
	}
	f.agent(t, New(f.native))
	f.awaitForwarding(t)
	f.awaitSetting(t, native.RestoreWait{Armed: true, Alone: true})
}

// A vswitchd that hangs and does not read the change is released again, before the setting is armed for the next one.
func TestBridge_vswitchdHangs(t *testing.T) {
	f := newFixture(t)
	if err := f.native.SetRestoreWait(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	f.StopVSwitchd(t)
	f.StartVSwitchd(t)
	f.eventually(t, "replace the flows", func() error {
		_, err := f.bridge.Replace(t.Context(), ovs.State{Flows: []*ovs.Flow{{Table: 0, Priority: 100, InPort: 1, Actions: []ovs.Action{goovs.Drop()}}}})
		return err
	})
	resume := f.PauseVSwitchd(t)
	reconcile := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		return f.bridge.reconcile(ctx)
	}
	f.eventually(t, "flow-restore-wait is removed", func() error {
		if err := reconcile(); err == nil {
			t.Fatal("reconcile: got no error while vswitchd hangs")
		}
		wait, err := f.native.RestoreWait(t.Context())
		if err == nil && wait.Armed {
			err = errors.New("got flow-restore-wait armed")
		}
		return err
	})
	if err := reconcile(); err == nil {
		t.Error("reconcile again: got no error while vswitchd hangs")
	}
	f.awaitSetting(t, native.RestoreWait{Alone: true})
	resume()
	f.eventually(t, "vswitchd is released", func() error { return f.bridge.reconcile(t.Context()) })
	f.awaitSetting(t, native.RestoreWait{Armed: true, Alone: true})
	f.awaitForwarding(t)
}

// A vswitchd with bridges of other programs, which may connect the node to the API server, never waits. One that waits is released before the
// agent reads from the API server.
func TestBridge_otherBridges(t *testing.T) {
	f := newFixture(t)
	stop := f.agent(t, f.bridge)
	f.awaitSetting(t, native.RestoreWait{Armed: true, Alone: true})
	stop()

	f.VSCtl(t, "add-br", "br-ex", "--", "set", "bridge", "br-ex", "datapath_type=netdev")
	f.StopVSwitchd(t)
	f.StartVSwitchd(t)
	f.setDropFlow(t)
	// An agent that has no store yet.
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { New(f.native).RunLoop(ctx) })
	defer running.Wait()
	defer cancel()
	f.awaitSetting(t, native.RestoreWait{})
	f.awaitForwarding(t)

	// A setting of another program, such as ovs-ctl, is not removed.
	f.VSCtl(t, "set", "open_vswitch", ".", "other_config:flow-restore-wait=true")
	f.awaitSetting(t, native.RestoreWait{Armed: true})
	cancel()
	running.Wait()
	f.awaitSetting(t, native.RestoreWait{Armed: true})
}
