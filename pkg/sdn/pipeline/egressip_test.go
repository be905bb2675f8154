package pipeline

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/tier"
)

// egressIPFlows are a node that hosts 198.51.100.7, whose peer hosts 198.51.100.8. Pod 3 has the first one, pod 4 the second one, pod 5 one that no node hosts,
// pod 6 none, and pod 7 the first one and the golden firewall.
func egressIPFlows(t *testing.T, n Node) []*ovs.Flow {
	t.Helper()
	peer, machine := netip.MustParseAddr("172.31.0.12"), netip.MustParseAddr("172.31.0.99")
	states := []State{
		static(t, n), goldenFirewall().Compile(EgressVerdicts{}).State(),
		n.EgressIP(EgressIP{IP: netip.MustParseAddr("198.51.100.7")}),
		n.EgressIP(EgressIP{IP: netip.MustParseAddr("198.51.100.8"), VTEP: peer}),
		n.Peer(Peer{VTEP: peer, Subnets: prefixes("10.129.0.0/23"), IsNode: true}),
		n.Peer(Peer{VTEP: machine, Subnets: prefixes("10.131.0.0/23")}),
	}
	for port, ip := range map[int]string{3: "198.51.100.7", 4: "198.51.100.8", 5: "198.51.100.9", 6: "", 7: "198.51.100.7"} {
		a := netip.AddrFrom4([4]byte{10, 128, 0, byte(port)})
		p := Pod{OFPort: port, MAC: config.MAC(a), Addrs: []netip.Addr{a}, VNID: config.VNID(0x20 + port)}
		if ip != "" {
			p.EgressIP = netip.MustParseAddr(ip)
		}
		if port == 7 {
			p.EgressFirewall = goldenFirewall().ID
		}
		states = append(states, n.Pod(p))
	}
	var flows []*ovs.Flow
	for _, s := range states {
		flows = append(flows, s.Flows...)
	}
	return flows
}

// The tables of packets with egress IPs, by ofproto/trace. An output to the port that the packet came from sends nothing.
func TestTraceEgressIPs(t *testing.T) {
	tier.Parallel(t)
	sw, bridge := realSwitch(t)
	const evaluated, translated = "0 20 26 27 28 30 100 ", "101 130 133 134"
	const reply = "trk,est,rpl"
	pod := func(port string) string {
		return "in_port=" + port + ",dl_src=0a:58:0a:80:00:0" + port + ",dl_dst=0a:58:c6:33:64:07,udp,nw_src=10.128.0." + port
	}
	const tunnel = "in_port=1,tun_src=172.31.0.12,ip,nw_src=10.129.0.9,nw_dst=203.0.113.1,"
	for _, mode := range []config.Mode{config.ModeNetworkPolicy, config.ModeMultitenant} {
		if _, err := bridge.Replace(t.Context(), withMeters(t, egressIPFlows(t, inMode(mode)))); err != nil {
			t.Fatal(err)
		}
		for name, tc := range map[string]struct {
			packet, ctState string // ctState is the result of lookups, default "trk,new"
			out, tables     string
		}{
			"hosted here":                {pod("3") + ",nw_dst=203.0.113.1", "", "2", evaluated + translated},
			"hosted there":               {pod("4") + ",nw_dst=203.0.113.1", "", "1", evaluated + "101 130 133"},
			"hosted nowhere":             {pod("5") + ",nw_dst=203.0.113.1", "", "", evaluated + "101"},
			"no egress IP":               {pod("6") + ",nw_dst=203.0.113.1", "", "2", "0 20 26 27 28 30 100 101 130 133"},
			"denied by the firewall":     {pod("7") + ",nw_dst=203.0.113.1", "", "", "0 20 26 27 28 30 100"},
			"allowed by the firewall":    {pod("7") + ",nw_dst=192.0.2.1", "", "2", evaluated + translated},
			"reply to a client outside":  {pod("5") + ",nw_dst=203.0.113.1", reply, "2", "0 20 26 27 30 100 101 130 133"},
			"of another node's pod":      {tunnel + "dl_dst=0a:58:c6:33:64:07", "", "2", "0 10 30 100 " + translated},
			"other destination MAC":      {tunnel + "dl_dst=0a:58:0a:80:00:01", "", "", "0 10 30 100 101"},
			"hosted by another node":     {tunnel + "dl_dst=0a:58:c6:33:64:08", "", "", "0 10 30 100 101"},
			"of a machine":               {"in_port=1,tun_src=172.31.0.99,ip,nw_src=10.131.0.9,nw_dst=203.0.113.1,dl_dst=0a:58:c6:33:64:07", "", "", "0 10 30 100 101"},
			"of a stranger":              {"in_port=1,tun_src=172.31.0.77,ip,nw_src=10.129.0.9,nw_dst=203.0.113.1,dl_dst=0a:58:c6:33:64:07", "", "", "0 10"},
			"unsolicited":                {"in_port=2,ip,nw_src=203.0.113.1,nw_dst=198.51.100.7", "", "", "0 102"},
			"unsolicited, as the node":   {"in_port=2,ip,nw_src=10.128.0.1,nw_dst=198.51.100.7", "", "", "0 102"},
			"unsolicited, as a pod":      {"in_port=2,ip,nw_src=10.128.0.3,nw_dst=198.51.100.7", "", "", "0 102"},
			"unsolicited, DSCP 63":       {"in_port=2,ip,nw_src=10.128.0.1,nw_dst=198.51.100.7,nw_tos=252", "", "", "0 102"},
			"unsolicited, DSCP 62":       {"in_port=2,ip,nw_src=10.128.0.1,nw_dst=198.51.100.7,nw_tos=248", "", "", "0 102"},
			"unsolicited, DSCP 61":       {"in_port=2,ip,nw_src=10.128.0.1,nw_dst=198.51.100.7,nw_tos=244", "", "", "0 102"},
			"a reply, as the node":       {"in_port=2,ip,nw_src=10.128.0.1,nw_dst=198.51.100.7,nw_tos=248", reply, "2", "0 102 30 100 101 130 133"},
			"a reply, as a pod":          {"in_port=2,icmp,nw_src=10.128.0.3,nw_dst=198.51.100.7", reply, "", "0 102"},
			"a reply, as a remote pod":   {"in_port=2,icmp,nw_src=10.129.0.9,nw_dst=198.51.100.7", reply, "", "0 102"},
			"to an IP of another node":   {"in_port=2,ip,nw_src=203.0.113.1,nw_dst=198.51.100.8", "", "2", "0 30 100 101 130 133"},
			"pod with its own egress IP": {"in_port=3,dl_src=0a:58:0a:80:00:03,ip,nw_src=198.51.100.7,nw_dst=203.0.113.1", "", "", "0 20"},
		} {
			t.Run(mode.String()+"/"+name, func(t *testing.T) {
				var args []string
				if tc.ctState != "" {
					args = []string{"--ct-next", tc.ctState}
				}
				trace := sw.Trace(t, tc.packet, args...)
				if got := passed(trace); got != tc.tables {
					t.Errorf("tables: got %s, want %s\n%s", got, tc.tables, trace)
				}
				if got := lastOutput(trace); got != tc.out {
					t.Errorf("output port: got %q, want %q\n%s", got, tc.out, trace)
				}
			})
		}
	}
}

// No flow translates to an address that is a node's, a pod's or none, and mode subnet has no egress IPs.
func TestEgressIP_invalid(t *testing.T) {
	n := inMode(config.ModeNetworkPolicy)
	for _, addr := range []string{"0.0.0.0", "10.128.0.5", "172.30.0.1", "172.31.0.11", "127.0.0.1", "169.254.0.10", "224.0.0.1", "255.255.255.255", "fd00::1", "::ffff:198.51.100.7"} {
		if s := n.EgressIP(EgressIP{IP: netip.MustParseAddr(addr)}); len(s.Flows) > 0 {
			t.Errorf("%s: got %d flows, want none", addr, len(s.Flows))
		}
		if got := lines(t, State{Flows: []*ovs.Flow{{Actions: n.loadEgressIP(Pod{EgressIP: netip.MustParseAddr(addr)})}}}); got != "table=0,priority=0,actions=load:0xffffffff->NXM_NX_REG11[]\n" {
			t.Errorf("%s: a pod loads %s, want an address that has no flow", addr, got)
		}
	}
	valid := EgressIP{IP: netip.MustParseAddr("198.51.100.7")}
	if s := subnetNode().EgressIP(valid); len(s.Flows) > 0 {
		t.Errorf("mode subnet: got %d flows, want none", len(s.Flows))
	}
	valid.VTEP = netip.MustParseAddr("fd00::1")
	if s := n.EgressIP(valid); len(s.Flows) > 0 {
		t.Errorf("VTEP %s: got %d flows, want none", valid.VTEP, len(s.Flows))
	}
}

// The zones of egress IPs have limits, and are none in which policies evaluate connections.
func TestZoneLimits_egressIPs(t *testing.T) {
	all := ovs.Zones{First: 0x1000, Last: 0x1fff}
	for mode, want := range map[config.Mode]bool{config.ModeSubnet: false, config.ModeNetworkPolicy: true, config.ModeMultitenant: true} {
		limit := ZoneLimit{ZoneEgressIP, all, 100}
		if got := slices.Contains(balancing(inMode(mode)).ZoneLimits(800), limit); got != want {
			t.Errorf("%s: got limits of egress IPs: %t, want %t", mode, got, want)
		}
	}
	for _, zone := range []uint16{all.First, all.Last} {
		if !Zones().Contains(zone) || AllowedZones().Contains(zone) || NATZones().Contains(zone) {
			t.Errorf("zone %#x: got it in the zones of policies or services, or not in all zones", zone)
		}
	}
}
