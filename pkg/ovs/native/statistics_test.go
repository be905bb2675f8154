package native_test

import (
	"slices"
	"testing"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// Flows of another cookie, and those that do not drop, are no drops of the owner.
func TestNative_flowStatistics(t *testing.T) {
	tier.Parallel(t)
	s, n := startEither(t)
	for _, flow := range []string{
		"table=0,priority=1,cookie=5,udp,tp_dst=53,actions=goto_table:7", "table=0,priority=2,cookie=6,sctp,actions=drop",
		"table=7,priority=0,cookie=5,actions=drop", "table=7,priority=9,cookie=6,tcp,actions=drop", "table=7,priority=8,cookie=6,sctp,actions=local",
		"table=7,priority=10,cookie=6,icmp,actions=sample(probability=1)",
	} {
		s.OFCtl(t, "add-flow", "-OOpenFlow14", ovstest.Bridge, flow)
	}
	packet := composed(t, s, "udp,nw_src=10.0.0.1,nw_dst=10.0.0.9,udp_src=1000,udp_dst=53")
	for range 3 {
		s.OFCtl(t, "packet-out", ovstest.Bridge, "in_port=LOCAL packet="+packet+" actions=table")
	}
	tables, err := n.TableStats(t.Context())
	must(t, err)
	for _, want := range []openflow.TableStats{{Table: 0, Active: 2, Lookups: 3, Matched: 3}, {Table: 7, Active: 4, Lookups: 3, Matched: 3}} {
		if !slices.Contains(tables, want) {
			t.Errorf("got tables %+v, want %+v", tables[:min(8, len(tables))], want)
		}
	}
	owner, err := n.OwnerDrops(t.Context(), 5)
	must(t, err)
	dropped := native.Drop{Key: ovs.Key{Table: 7}, Packets: 3}
	if diff := cmp.Diff([]native.Drop{dropped}, owner); diff != "" {
		t.Errorf("drops of cookie 5 (-want +got):\n%s", diff)
	}
	table, err := n.TableDrops(t.Context(), 7)
	must(t, err)
	slices.SortFunc(table, func(a, b native.Drop) int { return a.Priority - b.Priority })
	if diff := cmp.Diff([]native.Drop{dropped, {Key: ovs.Key{Table: 7, Priority: 9, Match: "tcp"}}, {Key: ovs.Key{Table: 7, Priority: 10, Match: "icmp"}}}, table); diff != "" {
		t.Errorf("drops of table 7 (-want +got):\n%s", diff)
	}
	s.StopVSwitchd(t)
	if _, err := n.TableStats(t.Context()); !ovs.IsUnavailable(err) {
		t.Errorf("without vswitchd: got %v, want an unavailable error", err)
	}
}

// The counters are those of the datapath at the moment, and the age of a port increases.
func TestNative_portStats(t *testing.T) {
	tier.Parallel(t)
	s, n := startEither(t)
	s.VSCtl(t, "add-port", ovstest.Bridge, "p7", "--", "set", "interface", "p7", "type=internal", "ofport_request=7")
	must(t, s.NS.Do(func(ns.NetNS) error {
		link, err := netlinksafe.LinkByName("p7")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	}))
	read := func() openflow.PortStats {
		t.Helper()
		ports, err := n.PortStats(t.Context())
		must(t, err)
		if len(ports) != 2 { // with that of the bridge
			t.Fatalf("got %+v, want two ports", ports)
		}
		i := slices.IndexFunc(ports, func(p openflow.PortStats) bool { return p.Port == 7 })
		if i < 0 {
			t.Fatalf("got %+v, want port 7", ports)
		}
		return ports[i]
	}
	packet := composed(t, s, "udp,nw_src=10.0.0.1,nw_dst=10.0.0.9,udp_src=1000,udp_dst=53")
	before := read()
	for range 3 {
		s.OFCtl(t, "packet-out", ovstest.Bridge, "in_port=LOCAL packet="+packet+" actions=output:7")
	}
	after := read()
	packets, bytes := after.SentPackets-before.SentPackets, after.SentBytes-before.SentBytes
	if packets != 3 || bytes != uint64(3*len(packet)/2) || after.Age() <= before.Age() {
		t.Errorf("got %d packets with %d bytes in %v, want 3 with %d", packets, bytes, after.Age()-before.Age(), 3*len(packet)/2)
	}
	s.StopVSwitchd(t)
	if _, err := n.PortStats(t.Context()); !ovs.IsUnavailable(err) {
		t.Errorf("without vswitchd: got %v, want an unavailable error", err)
	}
}

func TestNative_datapathStats(t *testing.T) {
	tier.Parallel(t)
	s, n := startEither(t)
	stats, err := n.DatapathStats(t.Context())
	must(t, err)
	if stats.Missed != 0 || stats.Lost != 0 || stats.Flows != 0 {
		t.Errorf("got %+v, want an unused datapath", stats)
	}
	s.StopVSwitchd(t)
	if _, err := n.DatapathStats(t.Context()); !ovs.IsUnavailable(err) {
		t.Errorf("without vswitchd: got %v, want an unavailable error", err)
	}
}

// Zones without connections count, too, and more zones than fit in one command.
func TestNative_zoneUse(t *testing.T) {
	tier.Parallel(t)
	s, n := startEither(t)
	zones := ovs.Zones{First: 0x8200, Last: 0x83ff}
	must(t, n.LimitZones(t.Context(), zones, 100))
	must(t, n.LimitZones(t.Context(), ovs.Zones{First: 0x8200, Last: 0x8200}, 50)) // the zone with most connections has another limit
	for zone, connections := range map[string]int{"0x8200": 2, "0x83ff": 3, "0x8400": 4} {
		if zone == "0x8400" {
			must(t, n.LimitZones(t.Context(), ovs.Zones{First: 0x8400, Last: 0x8400}, 100))
		}
		for i := range connections {
			p := composed(t, s, "udp,nw_src=10.0.0."+string(rune('1'+i))+",nw_dst=10.0.0.9,udp_src=1000,udp_dst=53")
			trackOne(t, s, p, "zone="+map[string]string{"0x8200": "33280", "0x83ff": "33791", "0x8400": "33792"}[zone])
		}
	}
	use, err := n.ZoneUse(t.Context(), zones)
	must(t, err)
	if want := (native.ZoneUse{Total: 5, Fullest: 3, Ratio: 0.04}); use != want {
		t.Errorf("got %+v, want %+v", use, want)
	}
}
