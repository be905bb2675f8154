package native_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

func bridge() ovs.Bridge {
	return ovs.Bridge{Name: ovstest.Bridge, DatapathType: "netdev", TableNames: map[int]string{0: "classify", 10: "tunnel-ingress"}}
}

func vxlan() ovs.Port {
	return ovs.Port{Name: "vxlan0", Type: "vxlan", OFPort: 1, Options: map[string]string{"remote_ip": "flow", "key": "flow"}}
}

func tun() ovs.Port {
	return ovs.Port{Name: "tun0", Type: "internal", OFPort: 2, MTURequest: 1450, MAC: "0a:58:0a:80:00:01"}
}

func flow(table, priority int, source string, actions ...ovs.Action) *ovs.Flow {
	return &ovs.Flow{
		Table: table, Priority: priority, Protocol: goovs.ProtocolIPv4, Cookie: 7,
		Matches: []ovs.Match{ovs.IPSource(netip.MustParsePrefix(source))}, Actions: actions,
	}
}

type contractCase struct {
	method string
	name   string
	test   func(t *testing.T, b backend)
}

// contract returns the cases of the contract of ovs.Interface, each with the method that it tests.
func contract() []contractCase {
	return append(bridgeContract(), groupContract()...)
}

func bridgeContract() []contractCase {
	return []contractCase{
		{"EnsureBridge", "a second call", func(t *testing.T, b backend) {
			must(t, replace(t, b, []*ovs.Flow{flow(0, 1, "10.0.0.1/32", goovs.Drop())}))
			must(t, b.EnsureBridge(t.Context(), bridge()))
			wantFlows(t, b, flow(0, 1, "10.0.0.1/32", goovs.Drop()))
		}},
		{"EnsureBridge", "other datapath type", func(t *testing.T, b backend) {
			must(t, replace(t, b, []*ovs.Flow{flow(0, 1, "10.0.0.1/32", goovs.Drop())}))
			other := bridge()
			other.DatapathType = "system"
			if err := b.EnsureBridge(t.Context(), other); !ovs.IsDatapathMismatch(err) {
				t.Errorf("got %v, want a datapath mismatch", err)
			}
			wantFlows(t, b, flow(0, 1, "10.0.0.1/32", goovs.Drop()))
		}},
		{"EnsureBridge", "table names removed and added again", func(t *testing.T, b backend) {
			nameless := bridge()
			nameless.TableNames = nil
			must(t, b.EnsureBridge(t.Context(), nameless))
			must(t, b.EnsureBridge(t.Context(), bridge()))
		}},
		{"EnsureBridge", "invalid input", func(t *testing.T, b backend) {
			for _, bad := range []ovs.Bridge{
				{Name: "br-other", DatapathType: "netdev"},
				{Name: ovstest.Bridge, DatapathType: "dpdk"},
				{Name: ovstest.Bridge, DatapathType: "netdev", TableNames: map[int]string{1: "same", 2: "same"}},
				{Name: ovstest.Bridge, DatapathType: "netdev", TableNames: map[int]string{254: "hidden"}},
				{Name: ovstest.Bridge, DatapathType: "netdev", TableNames: map[int]string{1: ""}},
			} {
				if err := b.EnsureBridge(t.Context(), bad); err == nil {
					t.Errorf("%+v: got no error, want one", bad)
				}
			}
		}},
		{"ListPorts", "none", func(t *testing.T, b backend) { wantPorts(t, b) }},
		{"ListPorts", "sorted by name", func(t *testing.T, b backend) {
			must1(t)(b.AddPort(t.Context(), vxlan()))
			must1(t)(b.AddPort(t.Context(), tun()))
			wantPorts(t, b, tun(), vxlan())
		}},
		{"AddPort", "returns the port", func(t *testing.T, b backend) {
			for _, want := range []ovs.Port{vxlan(), tun()} {
				got := must1(t)(b.AddPort(t.Context(), want))
				if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("port (-want +got):\n%s", diff)
				}
			}
		}},
		{"AddPort", "external IDs of any text", func(t *testing.T, b backend) {
			b.addDevice(t, "veth1")
			p := ovs.Port{Name: "veth1", ExternalIDs: map[string]string{
				"pod": `a "quoted", {braced}=[value] \ with ünïcode`, "empty": "", `k"e=y,`: "v", "multi": "two\nlines", "html": "<&>", "true": "true", "7": "7",
			}}
			got := must1(t)(b.AddPort(t.Context(), p))
			if got.OFPort < 1 {
				t.Errorf("got OFPort %d, want at least 1", got.OFPort)
			}
			p.OFPort = got.OFPort
			wantPorts(t, b, p)
		}},
		{"AddPort", "replaces maps and retains other properties", func(t *testing.T, b backend) {
			p := tun()
			p.ExternalIDs = map[string]string{"old": "1", "retained": "1"}
			must1(t)(b.AddPort(t.Context(), p))
			must1(t)(b.AddPort(t.Context(), ovs.Port{Name: tun().Name, Type: tun().Type, ExternalIDs: map[string]string{"retained": "2"}}))
			p.ExternalIDs = map[string]string{"retained": "2"}
			wantPorts(t, b, p)
			must1(t)(b.AddPort(t.Context(), ovs.Port{Name: tun().Name, Type: tun().Type}))
			p.ExternalIDs = nil
			wantPorts(t, b, p)
		}},
		{"AddPort", "no device", func(t *testing.T, b backend) {
			b.addDevice(t, "veth2")
			b.removeDevice(t, "veth2")
			if _, err := b.AddPort(t.Context(), ovs.Port{Name: "veth2"}); !ovs.IsPortError(err) {
				t.Errorf("got %v, want a port error", err)
			}
			wantPorts(t, b)
		}},
		{"AddPort", "device removed and added again", func(t *testing.T, b backend) {
			b.addDevice(t, "veth3")
			must1(t)(b.AddPort(t.Context(), ovs.Port{Name: "veth3"}))
			b.removeDevice(t, "veth3")
			if _, err := b.AddPort(t.Context(), ovs.Port{Name: "veth3"}); !ovs.IsPortError(err) {
				t.Errorf("without its device: got %v, want a port error", err)
			}
			wantPorts(t, b)
			b.addDevice(t, "veth3")
			got := must1(t)(b.AddPort(t.Context(), ovs.Port{Name: "veth3"}))
			if got.OFPort < 1 {
				t.Errorf("got OFPort %d, want at least 1", got.OFPort)
			}
		}},
		{"AddPort", "unknown type, then a valid one", func(t *testing.T, b backend) {
			if _, err := b.AddPort(t.Context(), ovs.Port{Name: "tun0", Type: "no-such-type"}); !ovs.IsPortError(err) {
				t.Errorf("got %v, want a port error", err)
			}
			wantPorts(t, b)
			must1(t)(b.AddPort(t.Context(), tun()))
			wantPorts(t, b, tun())
		}},
		{"AddPort", "another type", func(t *testing.T, b backend) {
			p := vxlan()
			p.Name = tun().Name
			must1(t)(b.AddPort(t.Context(), p))
			must1(t)(b.AddPort(t.Context(), tun()))
			wantPorts(t, b, tun())
		}},
		{"AddPort", "vxlan without remote_ip", func(t *testing.T, b backend) {
			if _, err := b.AddPort(t.Context(), ovs.Port{Name: "vxlan0", Type: "vxlan"}); !ovs.IsPortError(err) {
				t.Errorf("got %v, want a port error", err)
			}
			wantPorts(t, b)
		}},
		{"AddPort", "number in use", func(t *testing.T, b backend) {
			must1(t)(b.AddPort(t.Context(), tun()))
			p := vxlan()
			p.OFPort = tun().OFPort
			if _, err := b.AddPort(t.Context(), p); !ovs.IsPortError(err) {
				t.Errorf("got %v, want a port error", err)
			}
			wantPorts(t, b, tun())
		}},
		{"AddPort", "another number", func(t *testing.T, b backend) {
			must1(t)(b.AddPort(t.Context(), tun()))
			p := tun()
			p.OFPort = 9
			must1(t)(b.AddPort(t.Context(), p))
			wantPorts(t, b, p)
		}},
		{"AddPort", "concurrent calls", func(t *testing.T, b backend) {
			const n = 8
			var ports [n]ovs.Port
			var errs [n]error
			var adds sync.WaitGroup
			for i := range n {
				p := ovs.Port{Name: fmt.Sprintf("int%d", i), Type: "internal", ExternalIDs: map[string]string{"n": fmt.Sprint(i)}}
				adds.Go(func() { ports[i], errs[i] = b.AddPort(t.Context(), p) })
			}
			adds.Wait()
			numbers := map[int]bool{}
			for i := range n {
				must(t, errs[i])
				numbers[ports[i].OFPort] = true
			}
			if len(numbers) != n {
				t.Errorf("got %d different port numbers, want %d: %v", len(numbers), n, numbers)
			}
			wantPorts(t, b, ports[:]...)
		}},
		{"AddPort", "invalid input", func(t *testing.T, b backend) {
			for _, p := range []ovs.Port{
				{},
				{Name: "sixteen-bytes-xx"},
				{Name: "--all"},
				{Name: "p", OFPort: -1},
				{Name: "p", OFPort: 65535},
				{Name: "p", MAC: "0a:58"},
				{Name: "p", ExternalIDs: map[string]string{"k": "nul\x00"}},
				{Name: "p", Options: map[string]string{"k": "\xff"}},
			} {
				if _, err := b.AddPort(t.Context(), p); err == nil {
					t.Errorf("%+v: got no error, want one", p)
				}
			}
			wantPorts(t, b)
		}},
		{"AddPort", "context cancelled, existing port", func(t *testing.T, b backend) {
			must1(t)(b.AddPort(t.Context(), tun()))
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := b.AddPort(ctx, tun()); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want context.Canceled", err)
			}
			wantPorts(t, b, tun())
		}},
		{"DeletePort", "a second call", func(t *testing.T, b backend) {
			must1(t)(b.AddPort(t.Context(), tun()))
			must(t, b.DeletePort(t.Context(), tun().Name))
			must(t, b.DeletePort(t.Context(), tun().Name))
			wantPorts(t, b)
		}},
		{"DeletePort", "the local port", func(t *testing.T, b backend) {
			if err := b.DeletePort(t.Context(), ovstest.Bridge); err == nil {
				t.Error("got no error, want one")
			}
		}},
		{"NewTransaction", "retains the first error", func(t *testing.T, b backend) {
			tx := b.NewTransaction()
			tx.Add(flow(0, 1, "10.0.0.1/32"))
			tx.Add(flow(0, 1, "10.0.0.2/32", goovs.Drop()))
			first := tx.Err()
			if first == nil || tx.NumOperations() != 0 {
				t.Errorf("flow without actions: got error %v and %d operations, want an error and 0", first, tx.NumOperations())
			}
			if err := b.Run(t.Context(), tx); !errors.Is(err, first) {
				t.Errorf("Run: got %v, want %v", err, first)
			}
			wantFlows(t, b)
		}},
		{"Run", "no operations", func(t *testing.T, b backend) {
			must(t, b.Run(t.Context(), b.NewTransaction()))
		}},
		{"Run", "add, replace, delete", func(t *testing.T, b backend) {
			one, two := flow(0, 1, "10.0.0.1/32", goovs.Drop()), flow(3, 1, "10.0.0.1/32", goovs.Output(3))
			run(t, b, func(tx *ovs.Transaction) { tx.Add(one); tx.Add(two) })
			wantFlows(t, b, one, two)
			changed := flow(0, 1, "10.0.0.1/32", ovs.GotoTable(3))
			changed.Cookie = 8
			absent := flow(9, 1, "10.0.0.1/32")
			run(t, b, func(tx *ovs.Transaction) { tx.Add(changed); tx.Delete(two); tx.Delete(absent) })
			wantFlows(t, b, changed)
		}},
		{"Run", "flow operations in order", func(t *testing.T, b backend) {
			one, two := flow(0, 1, "10.0.0.1/32", goovs.Drop()), flow(0, 1, "10.0.0.1/32", goovs.Output(3))
			run(t, b, func(tx *ovs.Transaction) { tx.Add(one); tx.Delete(one); tx.Add(two) })
			wantFlows(t, b, two)
		}},
		{"Run", "strict delete of one flow only", func(t *testing.T, b backend) {
			all := []*ovs.Flow{
				flow(0, 1, "10.0.0.0/8", goovs.Drop()), flow(0, 2, "10.0.0.0/8", goovs.Drop()), flow(1, 1, "10.0.0.0/8", goovs.Drop()),
				flow(0, 1, "10.0.0.1/32", goovs.Drop()), {Table: 0, Priority: 1, Actions: []ovs.Action{goovs.Drop()}},
			}
			must(t, replace(t, b, all))
			run(t, b, func(tx *ovs.Transaction) { tx.Delete(all[4]); tx.Delete(all[0]) })
			wantFlows(t, b, all[1:4]...)
		}},
		{"Run", "atomic, error with the flow", func(t *testing.T, b backend) {
			good := flow(0, 1, "10.0.0.1/32", goovs.Drop())
			must(t, replace(t, b, []*ovs.Flow{good}))
			for name, bad := range map[string]*ovs.Flow{
				"rejected by the switch": flow(3, 6, "10.0.0.2/32", ovs.ToGroup(99)),
				"default priority":       flow(0, 32768, "10.0.0.2/32", ovs.ToGroup(99)),
				"every packet":           {Actions: []ovs.Action{ovs.ToGroup(99)}},
				"rejected by ovs-ofctl":  flow(3, 6, "10.0.0.2/32", ovs.GotoTable(2)),
				"goto to the same table": flow(3, 6, "10.0.0.2/32", ovs.GotoTable(3)),
				"long match with cookie": longFlow(ovs.ToGroup(99)),
			} {
				tx := b.NewTransaction()
				tx.Delete(good)
				tx.Add(flow(3, 6, "10.0.0.3/32", goovs.Drop()))
				tx.Add(bad)
				tx.Add(flow(3, 7, "10.0.0.3/32", goovs.Drop()))
				wantFlowError(t, name, b.Run(t.Context(), tx), bad)
				wantFlows(t, b, good)
			}
		}},
		{"Run", "context cancelled", func(t *testing.T, b backend) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			tx := b.NewTransaction()
			tx.Add(flow(0, 1, "10.0.0.1/32", goovs.Drop()))
			if err := b.Run(ctx, tx); !errors.Is(err, context.Canceled) || ovs.IsUnavailable(err) {
				t.Errorf("got %v, want context.Canceled", err)
			}
			wantFlows(t, b)
		}},
		{"Replace", "adds and deletes", func(t *testing.T, b backend) {
			one, two, three := flow(0, 1, "10.0.0.1/32", goovs.Drop()), flow(0, 1, "10.0.0.2/32", goovs.Drop()), longFlow(goovs.Drop())
			must(t, replace(t, b, []*ovs.Flow{one, two}))
			wantFlows(t, b, one, two)
			must(t, replace(t, b, []*ovs.Flow{three, two}))
			wantFlows(t, b, two, three)
			must(t, replace(t, b, nil))
			wantFlows(t, b)
		}},
		{"Replace", "all types of actions", func(t *testing.T, b backend) {
			f := flow(0, 1, "10.0.0.1/32",
				goovs.Move("NXM_NX_REG0[]", "NXM_NX_TUN_ID[0..31]"), goovs.SetField("192.0.2.1", "tun_dst"), goovs.Load("0x64", "NXM_NX_REG1[]"),
				ovs.Note([]byte{0, 0xaa}), goovs.OutputField("NXM_NX_REG2[]"), goovs.Output(1), goovs.ConnectionTracking("commit,zone=1,table=30"), ovs.GotoTable(30))
			f.IdleTimeout = 300
			must(t, replace(t, b, []*ovs.Flow{f}))
			wantFlows(t, b, f)
		}},
		{"Replace", "two flows with the same key", func(t *testing.T, b backend) {
			one, two := flow(0, 1, "10.0.0.1/32", goovs.Drop()), flow(0, 1, "10.0.0.1/32", goovs.Output(3))
			wantFlowError(t, "same key", replace(t, b, []*ovs.Flow{one, two}), two)
			wantFlows(t, b)
		}},
		{"Replace", "retains learned flows", func(t *testing.T, b backend) {
			if b.blind { // ovs-ofctl replace-flows deletes them
				return
			}
			learned, static, elsewhere, wanted := flow(64, 1, "10.0.0.1/32", goovs.Drop()), flow(64, 1, "10.0.0.2/32", goovs.Drop()), flow(65, 1, "10.0.0.3/32", goovs.Drop()),
				flow(64, 1, "10.0.0.4/32", goovs.Drop())
			learned.Cookie, static.Cookie, elsewhere.Cookie, wanted.Cookie = 0x0900000000000007, 0x0500000000000007, 0x0900000000000007, 0x0500000000000007
			must(t, replace(t, b, []*ovs.Flow{learned, static, elsewhere}))
			_, err := b.Replace(t.Context(), ovs.State{Flows: []*ovs.Flow{wanted}, Learned: ovs.LearnedFlows{Table: 64, Cookie: 0x09 << 56, CookieMask: 0xff << 56}})
			must(t, err)
			wantFlows(t, b, learned, wanted)
		}},
		{"Replace", "atomic, error with the flow", func(t *testing.T, b backend) {
			good, bad := flow(0, 1, "10.0.0.1/32", goovs.Drop()), flow(3, 6, "10.0.0.2/32", ovs.ToGroup(99))
			must(t, replace(t, b, []*ovs.Flow{good}))
			wantFlowError(t, "group", replace(t, b, []*ovs.Flow{flow(1, 1, "10.0.0.1/32", goovs.Drop()), bad}), bad)
			wantFlows(t, b, good)
		}},
	}
}

// longFlow returns a flow whose match is longer than the part of a request that an OpenFlow error must contain.
func longFlow(actions ...ovs.Action) *ovs.Flow {
	return &ovs.Flow{
		Table: 27, Priority: 1234, Protocol: goovs.ProtocolTCPv6, InPort: 12, Cookie: 0x0400000000000009,
		Matches: []ovs.Match{
			ovs.IPSource(netip.MustParsePrefix("fd00:1:2:3::/64")), ovs.IPDestination(netip.MustParsePrefix("fd00:1:2:3::77/128")),
			goovs.TransportDestinationMaskedPort(0x1f90, 0xfff0), ovs.Reg(0, 1), ovs.Reg(1, 77), goovs.ConnectionTrackingState("+trk", "+new"),
			goovs.DataLinkSource("0a:58:0a:80:00:02"), goovs.Metadata(7), goovs.TunnelID(9), goovs.FieldMatch("nw_tos", "184"),
		},
		Actions: actions,
	}
}
