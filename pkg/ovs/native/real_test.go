package native_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// onReal runs a test with each backend for Open vSwitch, on a switch without the bridge.
func onReal(t *testing.T, test func(t *testing.T, s *ovstest.Switch, b ovs.Interface)) {
	t.Helper()
	t.Run("exec", func(t *testing.T) {
		tier.Parallel(t)
		s := ovstest.Start(t)
		test(t, s, native.NewExec(ovstest.Bridge, s.RunDir))
	})
	t.Run("native", func(t *testing.T) {
		tier.Parallel(t)
		s := ovstest.Start(t)
		test(t, s, newNative(t, s))
	})
}

// onBridge is onReal with the bridge of the contract tests.
func onBridge(t *testing.T, test func(t *testing.T, s *ovstest.Switch, b ovs.Interface)) {
	t.Helper()
	onReal(t, func(t *testing.T, s *ovstest.Switch, b ovs.Interface) {
		must(t, b.EnsureBridge(t.Context(), bridge()))
		test(t, s, b)
	})
}

// patience is the time limit of poll. It is longer than the time limit of a call.
const patience = 2 * time.Minute

// poll waits until f returns true.
func poll(t *testing.T, what string, f func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: got false for %v, want true", what, patience)
		}
	}
}

func TestEnsureBridgeCorrectsOnlyWhatDiffers(t *testing.T) {
	onBridge(t, func(t *testing.T, s *ovstest.Switch, e ovs.Interface) {
		get := func(args ...string) string { return strings.TrimSpace(s.VSCtl(t, args...)) }
		retained := flow(10, 1, "10.0.0.1/32", goovs.Drop())
		must(t, replace(t, e, []*ovs.Flow{retained}))

		before := get("get", "open_vswitch", ".", "next_cfg")
		must(t, e.EnsureBridge(t.Context(), bridge()))
		if after := get("get", "open_vswitch", ".", "next_cfg"); after != before {
			t.Errorf("second call: got next_cfg %s, want %s (no write to OVSDB)", after, before)
		}

		s.VSCtl(t, "set", "bridge", ovstest.Bridge, "protocols=OpenFlow10,OpenFlow14")
		b := bridge()
		b.TableNames = maps.Clone(b.TableNames)
		b.TableNames[10], b.TableNames[20] = "renamed", "pod-ingress"
		must(t, e.EnsureBridge(t.Context(), b))
		if got := get("get", "bridge", ovstest.Bridge, "fail_mode", "datapath_type", "protocols"); got != `secure
netdev
[OpenFlow10, OpenFlow13, OpenFlow14, OpenFlow15]` {
			t.Errorf("got fail mode, datapath type and protocols %s, want secure, netdev and OpenFlow 1.0, 1.3, 1.4, 1.5", got)
		}
		if got := get("--columns=_uuid", "--bare", "list", "flow_table"); strings.Count(got, "-") != 4*3 {
			t.Errorf("got rows in Flow_Table:\n%s\nwant 3", got)
		}
		if got := s.OFCtl(t, "--names", "--no-stats", "dump-flows", ovstest.Bridge); !strings.Contains(got, "table=renamed") {
			t.Errorf("got dump %s, want the table name renamed", got)
		}
		if diff := s.Diff(t, []*ovs.Flow{retained}); diff != "" {
			t.Errorf("flows (-want +got):\n%s", diff)
		}
	})
}

func TestEnsureBridgeAdoptsBridgeWithoutPorts(t *testing.T) {
	onReal(t, func(t *testing.T, s *ovstest.Switch, e ovs.Interface) {
		s.VSCtl(t, "add-br", ovstest.Bridge, "--", "set", "bridge", ovstest.Bridge, "datapath_type=netdev", "fail_mode=standalone")
		s.VSCtl(t, "set", "bridge", ovstest.Bridge, "protocols=OpenFlow10,OpenFlow14")
		s.OFCtl(t, "add-flow", ovstest.Bridge, "table=3,priority=7,actions=drop")
		must(t, e.EnsureBridge(t.Context(), bridge()))
		if diff := s.Diff(t, nil); diff != "" {
			t.Errorf("flows after the change of the fail mode, with which vswitchd deletes all flows (-want +got):\n%s", diff)
		}
		if got := strings.TrimSpace(s.VSCtl(t, "get", "bridge", ovstest.Bridge, "fail_mode")); got != "secure" {
			t.Errorf("got fail_mode %s, want secure", got)
		}
	})
}

func TestReplaceRetainsCounters(t *testing.T) {
	onBridge(t, func(t *testing.T, s *ovstest.Switch, e ovs.Interface) {
		flows := []*ovs.Flow{
			{Table: 0, Priority: 1, Cookie: 5, Actions: []ovs.Action{ovs.GotoTable(253)}},
			{Table: 253, Cookie: 6, Actions: []ovs.Action{ovs.Note([]byte{1, 2, 3})}},
		}
		must(t, replace(t, e, flows))
		s.OFCtl(t, "packet-out", ovstest.Bridge, "in_port=LOCAL packet=ffffffffffff0a580a8000010806 actions=resubmit(,0)")
		const counted = 2
		counts := func() int {
			return strings.Count(s.OFCtl(t, "dump-flows", ovstest.Bridge), "n_packets=1,")
		}
		poll(t, "the packet is counted", func() bool { return counts() == counted })
		must(t, replace(t, e, append(flows, flow(9, 9, "10.0.0.1/32", goovs.Drop()))))
		if got := counts(); got != counted {
			t.Errorf("got %d flows with their counters, want %d", got, counted)
		}
	})
}

func TestScriptReplays(t *testing.T) {
	onBridge(t, func(t *testing.T, s *ovstest.Switch, e ovs.Interface) {
		deleted, one, two := flow(0, 5, "10.0.0.9/32", goovs.Drop()), flow(0, 1, "10.0.0.1/32", ovs.GotoTable(7)), longFlow(goovs.Output(3))
		three := flow(0, 1, "10.0.0.3/32", ovs.ToGroup(9))
		must(t, replace(t, e, []*ovs.Flow{deleted}))
		tx := e.NewTransaction()
		tx.Add(one)
		tx.Delete(deleted)
		tx.Add(two)
		tx.SetGroup(ovs.Group{ID: 9, Buckets: []ovs.Bucket{{Actions: []ovs.Action{goovs.Output(3)}}}})
		tx.SetMeter(ovs.Meter{ID: 5, Unit: ovs.Packets, Rate: 10})
		tx.Add(three)
		if tx.NumOperations() != 6 {
			t.Errorf("got %d operations, want 6", tx.NumOperations())
		}
		file := filepath.Join(t.TempDir(), "script")
		must(t, os.WriteFile(file, []byte(tx.String()), 0o600))
		s.OFCtl(t, "bundle", ovstest.Bridge, file)
		if diff := s.Diff(t, []*ovs.Flow{one, two, three}); diff != "" {
			t.Errorf("flows (-want +got):\n%s", diff)
		}
	})
}

// If a device is replaced by another of the same name, OVSDB shows no change, while the userspace datapath still reads the old device.
func TestAddPortOpensAReplacedDevice(t *testing.T) {
	onBridge(t, func(t *testing.T, s *ovstest.Switch, e ovs.Interface) {
		must(t, replace(t, e, []*ovs.Flow{{Cookie: 1, Actions: []ovs.Action{goovs.Drop()}}}))
		counter := regexp.MustCompile(`n_packets=([1-9]\d*),`)
		for range 2 {
			must(t, s.NS.Do(func(ns.NetNS) error {
				veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "veth1"}, PeerName: "peer1"}
				if old, err := netlinksafe.LinkByName(veth.Name); err == nil {
					if err := netlink.LinkDel(old); err != nil {
						return err
					}
				}
				return netlink.LinkAdd(veth)
			}))
			must1(t)(e.AddPort(t.Context(), ovs.Port{Name: "veth1"}))
			must(t, replace(t, e, nil))
			must(t, replace(t, e, []*ovs.Flow{{Cookie: 1, Actions: []ovs.Action{goovs.Drop()}}}))
			must(t, s.NS.Do(func(ns.NetNS) error { // its IPv6 stack sends packets when it comes up
				for _, name := range []string{"veth1", "peer1"} { // veth1 after AddPort: vswitchd may set it down when it closes the old device
					link, err := netlinksafe.LinkByName(name)
					if err != nil {
						return err
					}
					if err := netlink.LinkSetUp(link); err != nil {
						return err
					}
				}
				return nil
			}))
			poll(t, "a packet arrives from the device", func() bool {
				return counter.MatchString(s.OFCtl(t, "dump-flows", ovstest.Bridge))
			})
		}
	})
}

func TestUnconfirmedPortIsRemoved(t *testing.T) {
	tier.Parallel(t)
	onBridge(t, func(t *testing.T, s *ovstest.Switch, e ovs.Interface) {
		must1(t)(e.AddPort(t.Context(), tun()))
		native.SetTimeout(e, time.Second)
		resume := s.PauseVSwitchd(t)
		_, err := e.AddPort(t.Context(), vxlan())
		if !ovs.IsUnavailable(err) {
			t.Errorf("timeout: got %v, want an unavailable error", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if _, err = e.AddPort(ctx, vxlan()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("deadline of the caller: got %v, want context.DeadlineExceeded", err)
		}
		tx := e.NewTransaction()
		tx.Add(flow(0, 1, "10.0.0.1/32", goovs.Drop()))
		if err := e.Run(t.Context(), tx); !ovs.IsUnavailable(err) {
			t.Errorf("Run: got %v, want an unavailable error", err)
		}
		native.SetTimeout(e, time.Minute)
		resume()
		ports, err := e.ListPorts(t.Context())
		must(t, err)
		if diff := cmp.Diff([]ovs.Port{tun()}, ports); diff != "" {
			t.Errorf("ports (-want +got):\n%s", diff)
		}
	})
}

func TestWithoutOpenVSwitch(t *testing.T) {
	onReal(t, func(t *testing.T, s *ovstest.Switch, e ovs.Interface) {
		if _, err := e.ListPorts(t.Context()); err == nil || ovs.IsUnavailable(err) {
			t.Errorf("ListPorts without the bridge: got %v, want an error other than unavailable", err)
		}
		if err := replace(t, e, nil); !ovs.IsUnavailable(err) {
			t.Errorf("Replace without the bridge: got %v, want an unavailable error", err)
		}
		s.StopDB(t)
		if err := e.EnsureBridge(t.Context(), bridge()); !ovs.IsUnavailable(err) {
			t.Errorf("EnsureBridge: got %v, want an unavailable error", err)
		}
		if _, err := e.ListPorts(t.Context()); !ovs.IsUnavailable(err) {
			t.Errorf("ListPorts: got %v, want an unavailable error", err)
		}
		if _, err := e.AddPort(t.Context(), tun()); !ovs.IsUnavailable(err) {
			t.Errorf("AddPort: got %v, want an unavailable error", err)
		}
		if err := e.DeletePort(t.Context(), "tun0"); !ovs.IsUnavailable(err) {
			t.Errorf("DeletePort: got %v, want an unavailable error", err)
		}
	})
}
