package native_test

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// backend is an implementation of ovs.Interface, with functions to inspect and change its switch.
type backend struct {
	ovs.Interface
	addDevice    func(t *testing.T, name string)
	removeDevice func(t *testing.T, name string)
	diff         func(t testing.TB, want []*ovs.Flow) string // "" if the flows on the switch are the wanted ones
	groups       func(t testing.TB) []string                 // as ovs-ofctl prints them
	meters       func(t testing.TB) []string                 // as ovs-ofctl prints them
	connect      func(t testing.TB, c ovs.Connections)       // adds a conntrack entry of UDP
	tracked      func(t testing.TB) int                      // returns the number of conntrack entries
	injected     func(t testing.TB) int                      // returns the number of injected packets that the flow of injectionFlow has matched
	stop         func(t testing.TB)                          // stops Open vSwitch
	blind        bool                                        // Exec: Replace returns no difference, because ovs-ofctl reports none
}

func newFakeBackend(t *testing.T) backend {
	f := ovs.NewFake(ovstest.Bridge)
	return backend{
		Interface:    f,
		addDevice:    func(t *testing.T, name string) { f.AddDevice(name) },
		removeDevice: func(t *testing.T, name string) { f.RemoveDevice(name) },
		diff: func(t testing.TB, flows []*ovs.Flow) string {
			want := make([]string, 0, len(flows))
			for _, flow := range flows {
				text, err := ovs.FlowText(flow)
				if err != nil {
					t.Fatal(err)
				}
				want = append(want, text)
			}
			return cmp.Diff(want, f.Flows(), cmpopts.SortSlices(strings.Compare), cmpopts.EquateEmpty())
		},
		groups:   func(testing.TB) []string { return f.Groups() },
		meters:   func(testing.TB) []string { return f.Meters() },
		connect:  func(_ testing.TB, c ovs.Connections) { f.Connect(c) },
		tracked:  func(testing.TB) int { return len(f.Tracked()) },
		injected: func(testing.TB) int { return len(f.Injections()) },
		stop:     func(t testing.TB) { f.SetUnavailable(true) },
	}
}

func newExecBackend(t *testing.T) backend {
	b := newRealBackend(t, func(s *ovstest.Switch) ovs.Interface { return native.NewExec(ovstest.Bridge, s.RunDir) })
	b.blind = true
	return b
}

func newNativeBackend(t *testing.T) backend {
	b := newRealBackend(t, func(s *ovstest.Switch) ovs.Interface { return newNative(t, s) })
	diff, meters := b.diff, b.meters
	b.diff = func(t testing.TB, want []*ovs.Flow) string {
		waitForMessages(t, b)
		return diff(t, want)
	}
	b.meters = func(t testing.TB) []string {
		waitForMessages(t, b)
		return meters(t)
	}
	return b
}

// waitForMessages waits until vswitchd has processed all messages of earlier calls: Run and Replace do not wait for the deletion of meters.
func waitForMessages(t testing.TB, i ovs.Interface) {
	t.Helper()
	tx := i.NewTransaction()
	tx.Delete(flow(199, 1, "192.0.2.1/32", goovs.Drop()))
	if err := i.Run(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
}

func newRealBackend(t *testing.T, implementation func(*ovstest.Switch) ovs.Interface) backend {
	s := ovstest.Start(t)
	inNS := func(t *testing.T, f func() error) {
		t.Helper()
		if err := s.NS.Do(func(ns.NetNS) error { return f() }); err != nil {
			t.Fatal(err)
		}
	}
	return backend{
		Interface: implementation(s),
		addDevice: func(t *testing.T, name string) {
			inNS(t, func() error {
				return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "peer-" + name})
			})
		},
		removeDevice: func(t *testing.T, name string) {
			inNS(t, func() error {
				link, err := netlinksafe.LinkByName(name)
				if err != nil {
					return err
				}
				return netlink.LinkDel(link)
			})
		},
		diff:   s.Diff,
		groups: func(t testing.TB) []string { return dumped(t, s, "dump-groups") },
		meters: func(t testing.TB) []string { return dumped(t, s, "dump-meters") },
		connect: func(t testing.TB, c ovs.Connections) {
			s.OFCtl(t, "packet-out", ovstest.Bridge, fmt.Sprintf("in_port=LOCAL packet=%x actions=ct(commit,zone=%d)", udpPacket(c.Original), c.Zone))
		},
		tracked: func(t testing.TB) int { return strings.Count(s.Conntrack(t), "\n") },
		injected: func(t testing.TB) int {
			found := regexp.MustCompile(`cookie=0x1e,.* n_packets=(\d+)`).FindStringSubmatch(s.OFCtl(t, "dump-flows", ovstest.Bridge))
			if found == nil {
				t.Fatal("the flow of injectionFlow is missing")
			}
			n, err := strconv.Atoi(found[1])
			must(t, err)
			return n
		},
		stop: s.StopVSwitchd,
	}
}

func TestMain(m *testing.M) {
	await.VerifyTestMain(m)
}

func TestFakeContract(t *testing.T) { testContract(t, newFakeBackend) }

func TestExecContract(t *testing.T) { testContract(t, newExecBackend) }

func TestNativeContract(t *testing.T) { testContract(t, newNativeBackend) }

func testContract(t *testing.T, newBackend func(*testing.T) backend) {
	t.Helper()
	tier.Parallel(t)
	b := newBackend(t)
	must(t, b.EnsureBridge(t.Context(), bridge()))
	for _, c := range contract() {
		t.Run(c.method+"/"+c.name, func(t *testing.T) {
			c.test(t, b)
			// Clean up for the next case.
			must(t, replace(t, b, nil))
			for _, p := range listPorts(t, b) {
				must(t, b.DeletePort(t.Context(), p.Name))
			}
		})
	}
	t.Run("unavailable", func(t *testing.T) {
		b.stop(t)
		tx := b.NewTransaction()
		tx.Add(flow(0, 1, "10.0.0.1/32", goovs.Drop()))
		if err := b.Run(t.Context(), tx); !ovs.IsUnavailable(err) {
			t.Errorf("Run: got %v, want an unavailable error", err)
		}
		if err := replace(t, b, nil); !ovs.IsUnavailable(err) {
			t.Errorf("Replace: got %v, want an unavailable error", err)
		}
		if err := b.ListConnections(t.Context(), ovs.Zones{First: 1, Last: 9}, func(ovs.Connection) {}); !ovs.IsUnavailable(err) {
			t.Errorf("ListConnections: got %v, want an unavailable error", err)
		}
		if err := b.Inject(t.Context(), 5, make([]byte, 60)); !ovs.IsUnavailable(err) {
			t.Errorf("Inject: got %v, want an unavailable error", err)
		}
		if err := b.AwaitDatapath(t.Context()); !ovs.IsUnavailable(err) {
			t.Errorf("AwaitDatapath: got %v, want an unavailable error", err)
		}
	})
}

func TestContractIsComplete(t *testing.T) {
	methods := reflect.TypeFor[ovs.Interface]()
	for m := range methods.Methods() {
		if !slices.ContainsFunc(contract(), func(c contractCase) bool { return c.method == m.Name }) {
			t.Errorf("got no case for method %s, want at least one", m.Name)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func must1(t *testing.T) func(ovs.Port, error) ovs.Port {
	return func(p ovs.Port, err error) ovs.Port {
		t.Helper()
		must(t, err)
		return p
	}
}

func listPorts(t *testing.T, b backend) []ovs.Port {
	t.Helper()
	ports, err := b.ListPorts(t.Context())
	must(t, err)
	return ports
}

func run(t *testing.T, b backend, fill func(*ovs.Transaction)) {
	t.Helper()
	tx := b.NewTransaction()
	fill(tx)
	must(t, b.Run(t.Context(), tx))
}

func wantFlows(t *testing.T, b backend, want ...*ovs.Flow) {
	t.Helper()
	if diff := b.diff(t, want); diff != "" {
		t.Errorf("flows (-want +got):\n%s", diff)
	}
}

// replace makes the flows the only ones, without groups and meters.
func replace(t testing.TB, b ovs.Interface, flows []*ovs.Flow) error {
	t.Helper()
	_, err := b.Replace(t.Context(), ovs.State{Flows: flows})
	return err
}

func wantPorts(t *testing.T, b backend, want ...ovs.Port) {
	t.Helper()
	if diff := cmp.Diff(want, listPorts(t, b), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("ports (-want +got):\n%s", diff)
	}
}

func wantFlowError(t *testing.T, name string, err error, want *ovs.Flow) {
	t.Helper()
	var rejected *ovs.FlowError
	if !errors.As(err, &rejected) || ovs.IsUnavailable(err) {
		t.Errorf("%s: got %v, want a FlowError", name, err)
		return
	}
	text, err := ovs.FlowText(want)
	must(t, err)
	key, err := ovs.FlowKey(want)
	must(t, err)
	if rejected.Flow != text || rejected.Key != key || rejected.Reason == "" {
		t.Errorf("%s: got an error with flow %q, key %q, reason %q, want flow %q, key %q and a reason", name, rejected.Flow, rejected.Key, rejected.Reason, text, key)
	}
}
