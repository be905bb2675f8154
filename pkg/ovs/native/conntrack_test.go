package native_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// sctpInit is an SCTP packet with an INIT chunk (RFC 9260, 3.3.2) from 10.0.0.1, port 1000, to 10.0.0.9, port 80. The kernel tracks a new
// association only if its first packet has an INIT chunk.
const sctpInit = "000000000000000000000000080045000034000000004084663d0a0000010a00000903e80050000000003a2d3fc701000014000000010000ffff0001000100000001"

// composed returns a packet that matches the flow, in hexadecimal.
func composed(t *testing.T, s *ovstest.Switch, flow string) string {
	t.Helper()
	var hex strings.Builder
	for line := range strings.Lines(s.OFCtl(t, "compose-packet", flow)) { // 00000000  08 00-45 00 |..E.|
		_, dump, _ := strings.Cut(line, "  ")
		dump, _, _ = strings.Cut(dump, "|")
		hex.WriteString(strings.NewReplacer(" ", "", "-", "", "\n", "").Replace(dump))
	}
	return hex.String()
}

// trackOne adds conntrack entries of the packet, one for each argument list of ct.
func trackOne(t *testing.T, s *ovstest.Switch, packet string, commits ...string) {
	t.Helper()
	s.OFCtl(t, "packet-out", ovstest.Bridge, fmt.Sprintf("in_port=LOCAL packet=%s actions=ct(commit,%s)", packet, strings.Join(commits, "),ct(commit,")))
}

// startEither does the same as startNative on the datapath that the environment selects.
func startEither(t *testing.T) (*ovstest.Switch, *native.Native) {
	t.Helper()
	s := ovstest.Start(t)
	n := newNative(t, s)
	must(t, n.EnsureBridge(t.Context(), ovs.Bridge{Name: ovstest.Bridge, DatapathType: ovstest.DatapathType(t)}))
	return s, n
}

func list(t *testing.T, n *native.Native, zones ovs.Zones) (all []ovs.Connection) {
	t.Helper()
	must(t, n.ListConnections(t.Context(), zones, func(c ovs.Connection) { all = append(all, c) }))
	return all
}

// Every listed connection can be flushed alone, with NAT too. Those that are not found by their tuple are flushed with their zone.
func TestListedConnectionsCanBeFlushed(t *testing.T) {
	tier.Parallel(t)
	const v4, v6 = "nw_src=10.0.0.1,nw_dst=10.0.0.9", "ipv6_src=fc00::1,ipv6_dst=fc00::9"
	for name, flows := range map[string][]string{
		"IPv4": {
			"tcp,tcp_flags=syn," + v4 + ",tcp_src=1000,tcp_dst=80",
			"udp," + v4 + ",udp_src=1000,udp_dst=53",
			"udp," + v4 + ",udp_src=1001,udp_dst=53",
			"icmp,icmp_type=8,icmp_code=0," + v4,
			"icmp,icmp_type=13,icmp_code=0," + v4,
		},
		"IPv6": {
			"tcp6,tcp_flags=syn," + v6 + ",tcp_src=1000,tcp_dst=80",
			"udp6," + v6 + ",udp_src=1000,udp_dst=53",
			"icmp6,icmpv6_type=128,icmpv6_code=0," + v6, // neither listed nor flushed
		},
		"without ports": {"ip,nw_proto=99," + v4},
		"SCTP":          {""},
	} {
		t.Run(name, func(t *testing.T) {
			s, n := startEither(t)
			for _, flow := range flows {
				packet := sctpInit
				if flow != "" {
					packet = composed(t, s, flow)
				}
				commits := []string{"zone=7", "zone=8,exec(load:5->NXM_NX_CT_MARK[],load:6->NXM_NX_CT_LABEL[0..63])"}
				if strings.HasPrefix(flow, "udp,") || strings.HasPrefix(flow, "tcp,") {
					commits = append(commits, "zone=9,nat(src=10.0.0.66)", "zone=10,nat(dst=10.0.0.77:8080)")
				}
				trackOne(t, s, packet, commits...)
			}
			var known []string
			for line := range strings.Lines(s.Conntrack(t)) {
				if !strings.HasPrefix(line, "icmpv6,") {
					known = append(known, line)
				}
			}
			zones := ovs.Zones{First: 7, Last: 10}
			all := list(t, n, zones)
			if len(all) != len(known) || len(all) == 0 {
				t.Errorf("got %d connections, want %d: %q", len(all), len(known), known)
			}
			for _, c := range all {
				if (c.Mark == 5) != (c.Zone == 8) {
					t.Errorf("%+v: got mark %d, want 5 in zone 8 only", c, c.Mark)
				}
				tx := n.NewTransaction()
				if tx.Flush(c.Filter()); !c.CanFlush() {
					tx.Flush(ovs.Connections{Zone: c.Zone})
				}
				must(t, n.Run(t.Context(), tx))
				if left := list(t, n, zones); slices.Contains(left, c) {
					t.Errorf("got the connection after %s, want it flushed", tx)
				}
			}
			if left := list(t, n, zones); len(left) > 0 {
				t.Errorf("got connections %+v, want none", left)
			}
		})
	}
}

// By default first fragments match without ports too. A restarted vswitchd has lost the setting.
func TestFragmentsAreMatchedInEverySession(t *testing.T) {
	tier.Parallel(t)
	s, n := startEither(t)
	events := watch(t, n)
	for range 2 {
		must(t, replace(t, n, manyFlows(1)))
		if got := s.OFCtl(t, "get-frags", ovstest.Bridge); strings.TrimSpace(got) != "nx-match" {
			t.Errorf("got fragment mode %s, want nx-match", got)
		}
		s.StopVSwitchd(t)
		s.StartVSwitchd(t)
		expect(t, events, "SwitchConnected after the restart", kind(native.SwitchConnected))
	}
}

// Each zone has its own limit.
func TestZonesAreLimited(t *testing.T) {
	tier.Parallel(t)
	s, n := startEither(t)
	all := ovs.Zones{First: 0x2000, Last: 0xffff}
	start := time.Now()
	const limit = 187_500
	must(t, n.LimitZones(t.Context(), all, limit))
	t.Logf("set the limit %d of %d zones in %v", limit, int(all.Last)-int(all.First)+1, time.Since(start))
	for _, zone := range []uint16{all.First, 0x5fff, 0x8002, all.Last} {
		out, err := s.Command(t.Context(), "ovs-appctl", "--target="+s.RunDir+"/ovs-vswitchd.ctl", "dpctl/ct-get-limits", fmt.Sprintf("zone=%d", zone)).CombinedOutput()
		if want := fmt.Sprintf("zone=%d,limit=%d,count=0", zone, limit); err != nil || !strings.Contains(string(out), want) {
			t.Errorf("got %s, error %v, want %s", out, err, want)
		}
	}
	got, err := n.ZoneLimits(t.Context(), []uint16{all.First, 6, all.Last})
	if want := map[uint16]int{all.First: limit, 6: 0, all.Last: limit}; err != nil || !maps.Equal(got, want) {
		t.Errorf("limits: got %v, error %v, want %v", got, err, want)
	}

	zone := ovs.Zones{First: 7, Last: 7}
	const small = 3
	must(t, n.LimitZones(t.Context(), zone, small))
	tracker := func() (tracker native.Tracker) {
		must(t, s.NS.Do(func(ns.NetNS) (err error) {
			tracker, err = n.Tracker(t.Context())
			return err
		}))
		return tracker
	}
	before := tracker()
	for i := range small + 5 {
		trackOne(t, s, composed(t, s, fmt.Sprintf("udp,nw_src=10.0.0.1,nw_dst=10.0.0.9,udp_src=%d,udp_dst=53", 1000+i)), "zone=7")
	}
	if got := len(list(t, n, zone)); got != small {
		t.Errorf("got %d connections in the zone, want %d", got, small)
	}
	if after := tracker(); after.Size != before.Size || after.Used != before.Used+small || after.Free() != before.Free()-small {
		t.Errorf("got conntrack table %+v after %d more connections, want that many more than %+v", after, small, before)
	}
	if err := n.LimitZones(t.Context(), ovs.Zones{First: 0, Last: 9}, limit); err == nil {
		t.Error("zone 0, which belongs to the host: got no error, want one")
	}
}

func TestAwaitDatapath(t *testing.T) {
	tier.Parallel(t)
	s, n := startEither(t)
	must(t, n.AwaitDatapath(t.Context()))
	s.StopVSwitchd(t)
	if err := n.AwaitDatapath(t.Context()); !ovs.IsUnavailable(err) {
		t.Errorf("got %v, want an unavailable error", err)
	}
}
