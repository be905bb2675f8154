package native_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// service returns a group like that of a service: each bucket sends a connection to one endpoint.
func service(id uint32, endpoints ...string) ovs.Group {
	g := ovs.Group{ID: id}
	for _, e := range endpoints {
		g.Buckets = append(g.Buckets, ovs.Bucket{Actions: []ovs.Action{goovs.ConnectionTracking("commit,table=27,zone=1,nat(dst=" + e + ")")}})
	}
	return g
}

func limit(id, rate uint32) ovs.Meter { return ovs.Meter{ID: id, Unit: ovs.Packets, Rate: rate} }

// dumped returns the groups or meters as ovs-ofctl prints them, one per line.
func dumped(t testing.TB, s *ovstest.Switch, command string) []string {
	t.Helper()
	out := s.OFCtl(t, command, ovstest.Bridge)
	var lines []string
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		switch {
		case strings.Contains(line, " reply (OF1."), line == "":
		case strings.HasPrefix(line, "type="): // a band of the meter in the previous line
			lines[len(lines)-1] += " " + line
		default:
			lines = append(lines, line)
		}
	}
	return lines
}

func wantGroups(t *testing.T, b backend, want ...ovs.Group) {
	t.Helper()
	canonical := func(text string) string {
		g, err := openflow.ParseGroup(text)
		must(t, err)
		s, err := g.Canonical()
		must(t, err)
		return s
	}
	var wanted, is []string
	for _, g := range want {
		text, err := ovs.GroupText(g)
		must(t, err)
		wanted = append(wanted, canonical(text))
	}
	for _, text := range b.groups(t) {
		is = append(is, canonical(text))
	}
	slices.Sort(wanted)
	slices.Sort(is)
	if !slices.Equal(wanted, is) {
		t.Errorf("got groups %q\nwant %v", b.groups(t), want)
	}
}

// wantMeters compares the properties that all text forms contain: ID, unit, rate and burst size.
func wantMeters(t *testing.T, b backend, want ...ovs.Meter) {
	t.Helper()
	facts := func(text string) string {
		return strings.Join(regexp.MustCompile(`meter=\d+|[kp]k?tps|kbps|rate=\d+|burst_size=\d+`).FindAllString(text, -1), " ")
	}
	var wanted, is []string
	for _, m := range want {
		text, err := ovs.MeterText(m)
		must(t, err)
		wanted = append(wanted, facts(text))
	}
	for _, text := range b.meters(t) {
		is = append(is, facts(text))
	}
	if diff := cmp.Diff(wanted, is, cmpopts.SortSlices(strings.Compare), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("meters (-want +got):\n%s", diff)
	}
	dumper, ok := b.Interface.(interface {
		DumpMeters(ctx context.Context) ([]ovs.Meter, error)
	})
	if !ok {
		return // Exec
	}
	dumped, err := dumper.DumpMeters(t.Context())
	must(t, err)
	if diff := cmp.Diff(want, dumped, cmpopts.SortSlices(func(a, b ovs.Meter) bool { return a.ID < b.ID }), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("DumpMeters (-want +got):\n%s", diff)
	}
}

func wantDifference(t *testing.T, b backend, want ovs.State, missing, altered, foreign int) {
	t.Helper()
	got, err := b.Replace(t.Context(), want)
	must(t, err)
	if b.blind {
		return
	}
	if got.Missing != missing || got.Altered != altered || got.Foreign != foreign {
		t.Errorf("got %d missing, %d altered, %d foreign, want %d, %d, %d (%q)", got.Missing, got.Altered, got.Foreign, missing, altered, foreign, got.Examples)
	}
}

// groupContract returns the cases for groups, meters and connections.
func groupContract() []contractCase {
	to := func(action ovs.Action) *ovs.Flow { return flow(60, 100, "10.0.0.0/8", action) }
	metered := func(id uint32) *ovs.Flow { return flow(20, 100, "10.0.0.0/8", ovs.ThroughMeter(id), goovs.Output(5)) }
	return []contractCase{
		{"Run", "groups: add, change, delete together with their flows", func(t *testing.T, b backend) {
			run(t, b, func(tx *ovs.Transaction) {
				tx.Add(to(ovs.ToGroup(7))) // needs the group, which Run sets first
				tx.SetGroup(service(7, "10.1.0.1:80", "10.1.0.2:80"))
			})
			wantFlows(t, b, to(ovs.ToGroup(7)))
			wantGroups(t, b, service(7, "10.1.0.1:80", "10.1.0.2:80"))
			run(t, b, func(tx *ovs.Transaction) { tx.SetGroup(service(7, "10.1.0.2:80", "10.1.0.3:80")) })
			wantFlows(t, b, to(ovs.ToGroup(7)))
			wantGroups(t, b, service(7, "10.1.0.2:80", "10.1.0.3:80"))
			run(t, b, func(tx *ovs.Transaction) {
				tx.DeleteGroup(7)
				tx.DeleteGroup(8)
				tx.SetGroup(service(9))
				tx.Add(to(ovs.ToGroup(9)))
			})
			wantFlows(t, b, to(ovs.ToGroup(9)))
			wantGroups(t, b, service(9))
			run(t, b, func(tx *ovs.Transaction) { tx.DeleteGroup(9) })
			wantFlows(t, b)
		}},
		{"Run", "groups: maximum number of buckets, groups of groups, weights", func(t *testing.T, b backend) {
			var endpoints []string
			for i := range 512 {
				endpoints = append(endpoints, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 2, byte(i / 256), byte(i)}), 80).String())
			}
			top := ovs.Group{ID: 1, Buckets: []ovs.Bucket{
				{Weight: 512, Actions: []ovs.Action{ovs.ToGroup(2)}}, {Actions: []ovs.Action{ovs.ToGroup(3)}},
			}}
			full, rest := service(2, endpoints...), service(3, "[fd00::1]:80")
			run(t, b, func(tx *ovs.Transaction) {
				tx.SetGroup(top)
				tx.SetGroup(full)
				tx.SetGroup(rest)
				tx.Add(to(ovs.ToGroup(1)))
			})
			wantGroups(t, b, top, full, rest)
			wantDifference(t, b, ovs.State{Flows: []*ovs.Flow{to(ovs.ToGroup(1))}, Groups: []ovs.Group{rest, full, top}}, 0, 0, 0)
		}},
		{"Run", "groups: atomic, error with the group", func(t *testing.T, b backend) {
			good := flow(0, 1, "10.0.0.1/32", goovs.Drop())
			must(t, replace(t, b, []*ovs.Flow{good}))
			bad := ovs.Group{ID: 8, Buckets: []ovs.Bucket{{Actions: []ovs.Action{ovs.GotoTable(9)}}}}
			tx := b.NewTransaction()
			tx.SetMeter(limit(4, 10))
			tx.SetGroup(service(7, "10.1.0.1:80"))
			tx.SetGroup(bad)
			tx.Delete(good)
			err := b.Run(t.Context(), tx)
			var rejected *ovs.GroupError
			if !errors.As(err, &rejected) || rejected.ID != 8 || !strings.Contains(rejected.Group, "goto_table:9") || rejected.Reason == "" {
				t.Errorf("got %v, want a GroupError of group 8", err)
			}
			wantFlows(t, b, good)
			wantGroups(t, b)
		}},
		{"Run", "meters: add, change, delete together with their flows", func(t *testing.T, b backend) {
			kilobits := ovs.Meter{ID: 6, Unit: ovs.Kilobits, Rate: 1000, Burst: 200}
			run(t, b, func(tx *ovs.Transaction) { tx.Add(metered(5)); tx.SetMeter(limit(5, 10)); tx.SetMeter(kilobits) })
			wantFlows(t, b, metered(5))
			wantMeters(t, b, limit(5, 10), kilobits)
			run(t, b, func(tx *ovs.Transaction) { tx.SetMeter(limit(5, 20)) })
			wantFlows(t, b, metered(5))
			wantMeters(t, b, limit(5, 20), kilobits)
			run(t, b, func(tx *ovs.Transaction) { tx.DeleteMeter(5); tx.DeleteMeter(99); tx.Add(metered(6)) })
			wantFlows(t, b, metered(6))
			run(t, b, func(tx *ovs.Transaction) { tx.DeleteMeter(6) })
			wantFlows(t, b)
			wantMeters(t, b)
		}},
		{"Run", "meters are restored if the bundle is rejected", func(t *testing.T, b backend) {
			if b.blind {
				return // Exec cannot restore meters
			}
			run(t, b, func(tx *ovs.Transaction) { tx.SetMeter(limit(5, 10)) })
			tx := b.NewTransaction()
			tx.SetMeter(limit(5, 20))
			tx.SetMeter(limit(6, 20))
			bad := to(ovs.ToGroup(99))
			tx.Add(bad)
			wantFlowError(t, "unknown group", b.Run(t.Context(), tx), bad)
			wantMeters(t, b, limit(5, 10))
		}},
		{"Run", "connections are flushed", func(t *testing.T, b backend) {
			addr := netip.MustParseAddr
			for i := range 3 {
				for zone := range uint16(2) {
					o := ovs.Tuple{Src: addr("10.0.0.1"), Dst: addr("10.0.0.9"), SrcPort: 1000 + uint16(i), DstPort: 53}
					b.connect(t, ovs.Connections{Zone: 5 + zone, Protocol: 17, Original: o, Reply: ovs.Tuple{Src: o.Dst, Dst: o.Src, SrcPort: o.DstPort, DstPort: o.SrcPort}})
				}
			}
			for _, c := range []struct {
				flush ovs.Connections
				left  int
			}{
				{ovs.Connections{Zone: 7}, 6},
				{ovs.Connections{Zone: 5, Protocol: 6}, 6},
				{ovs.Connections{Zone: 5, Original: ovs.Tuple{Dst: addr("10.0.0.1")}}, 6},
				{ovs.Connections{Zone: 5, Protocol: 17, Original: ovs.Tuple{SrcPort: 1000}}, 5},
				{ovs.Connections{Zone: 5, Protocol: 17, Reply: ovs.Tuple{Src: addr("10.0.0.9"), Dst: addr("10.0.0.1"), DstPort: 1001}}, 4},
				{ovs.Connections{Zone: 5, Original: ovs.Tuple{Src: addr("10.0.0.1")}}, 3},
				{ovs.Connections{Zone: 6}, 0},
			} {
				run(t, b, func(tx *ovs.Transaction) { tx.Flush(c.flush) })
				if n := b.tracked(t); n != c.left {
					t.Errorf("%s: got %d connections after the flush, want %d", c.flush, n, c.left)
				}
			}
		}},
		{"AwaitDatapath", "after a transaction", func(t *testing.T, b backend) {
			run(t, b, func(tx *ovs.Transaction) { tx.Add(to(goovs.Drop())) })
			must(t, b.AwaitDatapath(t.Context()))
		}},
		{"AwaitEvents", "without flushes", func(t *testing.T, b backend) { must(t, b.AwaitEvents(t.Context())) }},
		{"Inject", "from table 0, with its port", func(t *testing.T, b backend) {
			run(t, b, func(tx *ovs.Transaction) { tx.Add(injectionFlow()) })
			packet := udpPacket(ovs.Tuple{Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.9"), SrcPort: 1000, DstPort: 53})
			must(t, b.Inject(t.Context(), 5, packet))
			must(t, b.Inject(t.Context(), 5, packet))
			if got := b.injected(t); got != 2 {
				t.Errorf("got %d packets by the flow of the port, want 2", got)
			}
		}},
		{"Inject", "invalid", func(t *testing.T, b backend) {
			for _, inPort := range []int{-1, 0, 0xff00} {
				if err := b.Inject(t.Context(), inPort, make([]byte, 60)); err == nil {
					t.Errorf("port %d: got no error, want one", inPort)
				}
			}
			for _, length := range []int{0, 13, 1 << 16} {
				if err := b.Inject(t.Context(), 5, make([]byte, length)); err == nil {
					t.Errorf("packet of %d bytes: got no error, want one", length)
				}
			}
		}},
		{"ListConnections", "by zone", func(t *testing.T, b backend) {
			want := map[ovs.Connection]bool{}
			for zone := uint16(4); zone <= 8; zone++ {
				o := ovs.Tuple{Src: netip.MustParseAddr("10.0.0.1"), Dst: netip.MustParseAddr("10.0.0.9"), SrcPort: 1000 + zone, DstPort: 53}
				c := ovs.Connection{Zone: zone, Protocol: 17, Original: o, Reply: ovs.Tuple{Src: o.Dst, Dst: o.Src, SrcPort: o.DstPort, DstPort: o.SrcPort}}
				b.connect(t, ovs.Connections{Zone: c.Zone, Protocol: c.Protocol, Original: c.Original, Reply: c.Reply})
				want[c] = zone >= 5 && zone <= 7
			}
			list := func(first, last uint16) (all []ovs.Connection, err error) {
				err = b.ListConnections(t.Context(), ovs.Zones{First: first, Last: last}, func(c ovs.Connection) { all = append(all, c) })
				return all, err
			}
			got, err := list(5, 7)
			must(t, err)
			for _, c := range got {
				if !want[c] {
					t.Errorf("got %+v, want only connections of zones 5 to 7, each once", c)
				}
				want[c] = false
				run(t, b, func(tx *ovs.Transaction) { tx.Flush(c.Filter()) })
			}
			if len(got) != 3 || b.tracked(t) != 2 {
				t.Errorf("got %d connections listed and %d after the flush, want 3 and 2", len(got), b.tracked(t))
			}
			for _, bad := range []ovs.Zones{{First: 0, Last: 5}, {First: 5, Last: 4}} {
				if _, err := list(bad.First, bad.Last); err == nil {
					t.Errorf("%+v: got no error, want one", bad)
				}
			}
			all, err := list(1, 0xffff)
			must(t, err)
			for _, c := range all {
				run(t, b, func(tx *ovs.Transaction) { tx.Flush(ovs.Connections{Zone: c.Zone}) })
			}
		}},
		{"Run", "invalid groups, meters and connections", func(t *testing.T, b backend) {
			for name, fill := range map[string]func(tx *ovs.Transaction){
				"group 0":          func(tx *ovs.Transaction) { tx.SetGroup(service(0)) },
				"group too high":   func(tx *ovs.Transaction) { tx.SetGroup(service(0xffffff01)) },
				"too many buckets": func(tx *ovs.Transaction) { tx.SetGroup(service(1, make([]string, 513)...)) },
				"no actions":       func(tx *ovs.Transaction) { tx.SetGroup(ovs.Group{ID: 1, Buckets: []ovs.Bucket{{}}}) },
				"weight":           func(tx *ovs.Transaction) { tx.SetGroup(ovs.Group{ID: 1, Buckets: []ovs.Bucket{{Weight: -1}}}) },
				"delete group 0":   func(tx *ovs.Transaction) { tx.DeleteGroup(0) },
				"to group 0":       func(tx *ovs.Transaction) { tx.Add(to(ovs.ToGroup(0))) },
				"meter 0":          func(tx *ovs.Transaction) { tx.SetMeter(limit(0, 1)) },
				"rate 0":           func(tx *ovs.Transaction) { tx.SetMeter(limit(1, 0)) },
				"no unit":          func(tx *ovs.Transaction) { tx.SetMeter(ovs.Meter{ID: 1, Rate: 1}) },
				"delete meter 0":   func(tx *ovs.Transaction) { tx.DeleteMeter(0) },
				"zone 0":           func(tx *ovs.Transaction) { tx.Flush(ovs.Connections{}) },
				"port of ICMP": func(tx *ovs.Transaction) {
					tx.Flush(ovs.Connections{Zone: 1, Protocol: 1, Reply: ovs.Tuple{DstPort: 8}})
				},
			} {
				tx := b.NewTransaction()
				fill(tx)
				if err := b.Run(t.Context(), tx); err == nil {
					t.Errorf("%s: got no error, want one", name)
				}
			}
		}},
		{"Replace", "returns the difference", func(t *testing.T, b backend) {
			one, two := flow(60, 1, "10.0.0.1/32", ovs.ToGroup(7)), flow(20, 1, "10.0.0.2/32", ovs.ThroughMeter(5), goovs.Output(3))
			want := ovs.State{
				Flows: []*ovs.Flow{one, two}, Groups: []ovs.Group{service(7, "10.1.0.1:80"), service(8)}, Meters: []ovs.Meter{limit(5, 10), limit(6, 10)},
			}
			wantDifference(t, b, want, 6, 0, 0)
			wantDifference(t, b, want, 0, 0, 0)
			run(t, b, func(tx *ovs.Transaction) {
				tx.Add(flow(60, 1, "10.0.0.1/32", goovs.Drop()))
				tx.Add(flow(60, 1, "10.0.0.9/32", ovs.ToGroup(99)))
				tx.Delete(two)
				tx.SetGroup(service(7, "10.1.0.66:80"))
				tx.DeleteGroup(8)
				tx.SetGroup(service(99))
				tx.SetMeter(limit(5, 11))
				tx.DeleteMeter(6)
				tx.SetMeter(limit(99, 1))
			})
			wantDifference(t, b, want, 3, 3, 3)
			wantFlows(t, b, one, two)
			wantGroups(t, b, want.Groups...)
			wantMeters(t, b, want.Meters...)
			wantDifference(t, b, ovs.State{}, 0, 0, 6)
		}},
		{"Replace", "two groups or meters with the same ID", func(t *testing.T, b backend) {
			var group *ovs.GroupError
			if _, err := b.Replace(t.Context(), ovs.State{Groups: []ovs.Group{service(7), service(7, "10.1.0.1:80")}}); !errors.As(err, &group) || group.ID != 7 {
				t.Errorf("groups: got %v, want a GroupError of group 7", err)
			}
			var meter *ovs.MeterError
			if _, err := b.Replace(t.Context(), ovs.State{Meters: []ovs.Meter{limit(7, 1), limit(7, 2)}}); !errors.As(err, &meter) || meter.ID != 7 {
				t.Errorf("meters: got %v, want a MeterError of meter 7", err)
			}
			wantGroups(t, b)
			wantMeters(t, b)
		}},
	}
}

// udpPacket returns a packet of the connection's original direction.
func udpPacket(c ovs.Tuple) []byte {
	b := append(make([]byte, 12), 0x08, 0x00)
	ip := append([]byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0}, c.Src.AsSlice()...)
	ip = append(ip, c.Dst.AsSlice()...)
	var sum uint32
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	b = append(b, ip...)
	b = binary.BigEndian.AppendUint16(b, c.SrcPort)
	b = binary.BigEndian.AppendUint16(b, c.DstPort)
	return append(b, 0, 8, 0, 0)
}

// injectionFlow is the flow whose packets backend.injected counts: those of port 5 from 10.0.0.1.
func injectionFlow() *ovs.Flow {
	f := flow(0, 7, "10.0.0.1/32", goovs.Drop())
	f.Cookie, f.InPort = 0x1e, 5
	return f
}
