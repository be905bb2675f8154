package ovs_test

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
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// onReal runs a test of what a fake can't show with each backend, on a switch without the bridge.
func onReal(t *testing.T, test func(t *testing.T, s *ovstest.Switch, b ovs.Interface)) {
	t.Helper()
	t.Run("exec", func(t *testing.T) {
		s := ovstest.Start(t)
		test(t, s, ovs.NewExec(ovstest.Bridge, s.RunDir))
	})
	t.Run("native", func(t *testing.T) {
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

// patience bounds every wait for what calls of a minute may have to bring about.
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
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func TestEnsureBridgeCorrectsOnlyWhatDiffers(t *testing.T) {
	onBridge(t, func(t *testing.T, s *ovstest.Switch, e ovs.Interface) {
		get := func(args ...string) string { return strings.TrimSpace(s.VSCtl(t, args...)) }
		kept := flow(10, 1, "10.0.0.1/32", goovs.Drop())
		must(t, replace(t, e, []*ovs.Flow{kept}))

		before := get("get", "open_vswitch", ".", "next_cfg")
		must(t, e.EnsureBridge(t.Context(), bridge()))
		if after := get("get", "open_vswitch", ".", "next_cfg"); after != before {
			t.Errorf("a second call wrote to OVSDB: next_cfg %s → %s", before, after)
		}

		s.VSCtl(t, "set", "bridge", ovstest.Bridge, "protocols=OpenFlow10,OpenFlow14")
		b := bridge()
		b.TableNames = maps.Clone(b.TableNames)
		b.TableNames[10], b.TableNames[20] = "renamed", "pod-ingress"
		must(t, e.EnsureBridge(t.Context(), b))
		if got := get("get", "bridge", ovstest.Bridge, "fail_mode", "datapath_type", "protocols"); got != `secure
netdev
[OpenFlow10, OpenFlow13, OpenFlow14, OpenFlow15]` {
			t.Errorf("bridge: %s", got)
		}
		if got := get("--columns=_uuid", "--bare", "list", "flow_table"); strings.Count(got, "-") != 4*3 {
			t.Errorf("rows in Flow_Table, want 3:\n%s", got)
		}
		if got := s.OFCtl(t, "--names", "--no-stats", "dump-flows", ovstest.Bridge); !strings.Contains(got, "table=renamed") {
			t.Errorf("dump-flows does not know the new name: %s", got)
		}
		if diff := s.Diff(t, []*ovs.Flow{kept}); diff != "" {
			t.Errorf("the flows changed: %s", diff)
		}
	})
}

func TestEnsureBridgeTakesOverAnAlienBridge(t *testing.T) {
	onReal(t, func(t *testing.T, s *ovstest.Switch, e ovs.Interface) {
		s.VSCtl(t, "add-br", ovstest.Bridge, "--", "set", "bridge", ovstest.Bridge, "datapath_type=netdev", "fail_mode=standalone")
		s.VSCtl(t, "set", "bridge", ovstest.Bridge, "protocols=OpenFlow10,OpenFlow14")
		s.OFCtl(t, "add-flow", ovstest.Bridge, "table=3,priority=7,actions=drop")
		must(t, e.EnsureBridge(t.Context(), bridge()))
		if diff := s.Diff(t, nil); diff != "" {
			t.Errorf("vswitchd used to drop all flows, the NORMAL one too, when the fail mode changes; now: %s", diff)
		}
		if got := strings.TrimSpace(s.VSCtl(t, "get", "bridge", ovstest.Bridge, "fail_mode")); got != "secure" {
			t.Errorf("fail_mode %s", got)
		}
	})
}

func TestReplaceKeepsCounters(t *testing.T) {
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
			t.Errorf("%d flows kept their counters, want %d", got, counted)
		}
	})
}

func TestScriptReplays(t *testing.T) {
	onBridge(t, func(t *testing.T, s *ovstest.Switch, e ovs.Interface) {
		gone, one, two := flow(0, 5, "10.0.0.9/32", goovs.Drop()), flow(0, 1, "10.0.0.1/32", ovs.GotoTable(7)), longFlow(goovs.Output(3))
		three := flow(0, 1, "10.0.0.3/32", ovs.ToGroup(9))
		must(t, replace(t, e, []*ovs.Flow{gone}))
		tx := e.NewTransaction()
		tx.Add(one)
		tx.Delete(gone)
		tx.Add(two)
		tx.SetGroup(ovs.Group{ID: 9, Buckets: []ovs.Bucket{{Actions: []ovs.Action{goovs.Output(3)}}}})
		tx.SetMeter(ovs.Meter{ID: 5, Unit: ovs.Packets, Rate: 10})
		tx.Add(three)
		if tx.NumOperations() != 6 {
			t.Errorf("%d operations", tx.NumOperations())
		}
		file := filepath.Join(t.TempDir(), "script")
		must(t, os.WriteFile(file, []byte(tx.String()), 0o600))
		s.OFCtl(t, "bundle", ovstest.Bridge, file)
		if diff := s.Diff(t, []*ovs.Flow{one, two, three}); diff != "" {
			t.Errorf("%s", diff)
		}
	})
}

// A device that was replaced under its name keeps its number in OVSDB, while the userspace datapath still reads the old one.
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
				if err := netlink.LinkAdd(veth); err != nil {
					return err
				}
				return netlink.LinkSetUp(veth)
			}))
			must1(t)(e.AddPort(t.Context(), ovs.Port{Name: "veth1"}))
			must(t, replace(t, e, nil))
			must(t, replace(t, e, []*ovs.Flow{{Cookie: 1, Actions: []ovs.Action{goovs.Drop()}}}))
			must(t, s.NS.Do(func(ns.NetNS) error { // its IPv6 stack has something to say when it comes up
				peer, err := netlinksafe.LinkByName("peer1")
				if err != nil {
					return err
				}
				return netlink.LinkSetUp(peer)
			}))
			poll(t, "a packet arrives from the device", func() bool {
				return counter.MatchString(s.OFCtl(t, "dump-flows", ovstest.Bridge))
			})
		}
	})
}

func TestUnconfirmedPortIsTakenBack(t *testing.T) {
	onBridge(t, func(t *testing.T, s *ovstest.Switch, e ovs.Interface) {
		must1(t)(e.AddPort(t.Context(), tun()))
		ovs.SetTimeout(e, time.Second)
		resume := s.PauseVSwitchd(t)
		_, err := e.AddPort(t.Context(), vxlan())
		if !ovs.IsUnavailable(err) {
			t.Errorf("time-out: got %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if _, err = e.AddPort(ctx, vxlan()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the caller's deadline: got %v", err)
		}
		tx := e.NewTransaction()
		tx.Add(flow(0, 1, "10.0.0.1/32", goovs.Drop()))
		if err := e.Run(t.Context(), tx); !ovs.IsUnavailable(err) {
			t.Errorf("Run: got %v", err)
		}
		ovs.SetTimeout(e, time.Minute)
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
			t.Errorf("ListPorts without the bridge: %v", err)
		}
		if err := replace(t, e, nil); !ovs.IsUnavailable(err) {
			t.Errorf("Replace without the bridge: %v", err)
		}
		s.StopDB(t)
		if err := e.EnsureBridge(t.Context(), bridge()); !ovs.IsUnavailable(err) {
			t.Errorf("EnsureBridge: %v", err)
		}
		if _, err := e.ListPorts(t.Context()); !ovs.IsUnavailable(err) {
			t.Errorf("ListPorts: %v", err)
		}
		if _, err := e.AddPort(t.Context(), tun()); !ovs.IsUnavailable(err) {
			t.Errorf("AddPort: %v", err)
		}
		if err := e.DeletePort(t.Context(), "tun0"); !ovs.IsUnavailable(err) {
			t.Errorf("DeletePort: %v", err)
		}
	})
}
