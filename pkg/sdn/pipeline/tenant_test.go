package pipeline

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/tier"
)

// tenantFlows are a node of mode multitenant. The last digit of a pod's address is its port's number.
//
//	3, 4    VNID 0x20
//	5, 6    VNID 0x30, which has multicast, also at 172.31.0.13
//	7       VNID 0
func tenantFlows(t *testing.T) []*ovs.Flow {
	t.Helper()
	return tenantFlowsIn(t, config.ModeMultitenant)
}

func tenantFlowsIn(t *testing.T, mode config.Mode) []*ovs.Flow {
	t.Helper()
	n := inMode(mode)
	vtep, addr := netip.MustParseAddr("172.31.0.12"), netip.MustParseAddr
	thirty := config.VNID(0x30)
	states := []State{
		static(t, n),
		n.Peer(Peer{VTEP: vtep, Subnets: prefixes("10.129.0.0/23")}),
		n.Peer(Peer{VTEP: addr("172.31.0.99"), Subnets: prefixes("10.131.0.0/23"), FixedVNID: &thirty}),
		n.MulticastNodes([]netip.Addr{vtep, addr("172.31.0.13")}),
		n.Multicast(Multicast{VNID: 0x30, OFPorts: []int{5, 6}, Nodes: []netip.Addr{addr("172.31.0.13")}}),
	}
	for port, vnid := range map[int]config.VNID{3: 0x20, 4: 0x20, 5: 0x30, 6: 0x30, 7: 0} {
		a := addr(fmt.Sprintf("10.128.0.%d", port))
		states = append(states, n.Pod(Pod{OFPort: port, MAC: config.MAC(a), Addrs: []netip.Addr{a}, VNID: vnid}))
	}
	for ip, vnid := range map[string]config.VNID{"172.30.0.20": 0x20, "172.30.0.30": 0x30, "172.30.0.1": 0} {
		states = append(states, n.Service(Service{
			ClusterIPs: []netip.Addr{addr(ip)}, VNID: vnid,
			Ports:     []ServicePort{{Protocol: goovs.ProtocolTCPv4, Port: 80}, {Protocol: goovs.ProtocolUDPv4, Port: 80}},
			NodePorts: []ServicePort{{Protocol: goovs.ProtocolTCPv4, Port: 30000 + uint16(vnid)}},
		}))
	}
	var flows []*ovs.Flow
	seen := map[ovs.Key]bool{}
	for _, s := range states {
		for _, f := range s.Flows {
			key, err := ovs.FlowKey(f)
			if err != nil {
				t.Fatal(err)
			}
			if !seen[key] { // like the store, which installs a flow of several owners once
				flows = append(flows, f)
			}
			seen[key] = true
		}
	}
	return flows
}

// The tables and the output port of packets in mode multitenant, by ofproto/trace.
func TestTraceTenants(t *testing.T) {
	tier.Parallel(t)
	sw, bridge := realSwitch(t)
	if _, err := bridge.Replace(t.Context(), withMeters(t, tenantFlows(t))); err != nil {
		t.Fatal(err)
	}
	const drop = ""
	pod := func(n int, to string) string {
		return fmt.Sprintf("in_port=%d,dl_src=0a:58:0a:80:00:%02x,%s,nw_src=10.128.0.%d", n, n, to, n)
	}
	here := func(from, to int) string { return pod(from, "ip") + fmt.Sprintf(",nw_dst=10.128.0.%d", to) }
	tunnel := func(vnid, to int) string {
		return fmt.Sprintf("in_port=1,tun_src=172.31.0.12,tun_id=%#x,ip,nw_src=10.129.0.9,nw_dst=10.128.0.%d", vnid, to)
	}
	host := func(from string, to int) string {
		return fmt.Sprintf("in_port=2,ip,nw_src=%s,nw_dst=10.128.0.%d", from, to)
	}
	const routed = ",nw_tos=252" // RoutedDSCP
	for name, tc := range map[string]struct {
		packet string
		out    string
		tables string
		next   string // the result of the conntrack lookup; "": new
	}{
		"own VNID here":                         {here(3, 4), "4", "0 20 26 27 28 30 70 80 81 82 130 133", ""},
		"another VNID here":                     {here(3, 5), drop, "0 20 26 27 28 30 70 80", ""},
		"to VNID 0":                             {here(3, 7), "7", "0 20 26 27 28 30 70 80 81 82 130 133", ""},
		"from VNID 0":                           {here(7, 3), "3", "0 20 26 27 28 30 70 80 81 82 130 133", ""},
		"to there, which evaluates it":          {pod(3, "ip") + ",nw_dst=10.129.0.9", "1", "0 20 26 27 28 30 90 130 133", ""},
		"own VNID from there":                   {tunnel(0x20, 3), "3", "0 10 30 70 80 81 82 130 133", ""},
		"another VNID from there":               {tunnel(0x30, 3), drop, "0 10 30 70 80", ""},
		"VNID 0 from there":                     {tunnel(0, 3), "3", "0 10 30 70 80 81 82 130 133", ""},
		"a VNID without pods here":              {tunnel(0x40, 3), drop, "0 10 30 70 80", ""},
		"a VNID without pods here to VNID 0":    {tunnel(0x40, 7), "7", "0 10 30 70 80 81 82 130 133", ""},
		"a host outside, routed there":          {tunnel(1, 3), drop, "0 10 30 70 80", ""},
		"more than a VNID":                      {tunnel(0x100000020, 3), "3", "0 10 30 70 80 81 82 130 133", ""}, // VXLAN carries 24 bits
		"machine with a fixed VNID to its own":  {"in_port=1,tun_src=172.31.0.99,tun_id=0,ip,nw_src=10.131.0.9,nw_dst=10.128.0.5", "5", "0 10 30 70 80 81 82 130 133", ""},
		"machine with a fixed VNID to another":  {"in_port=1,tun_src=172.31.0.99,tun_id=0x20,ip,nw_src=10.131.0.9,nw_dst=10.128.0.3", drop, "0 10 30 70 80", ""},
		"to a machine of own VNID":              {pod(5, "ip") + ",nw_dst=10.131.0.9", "1", "0 20 26 27 28 30 90 130 133", ""},
		"to a machine of another VNID":          {pod(3, "ip") + ",nw_dst=10.131.0.9", drop, "0 20 26 27 28 30 90", ""},
		"VNID 0 to a machine with a fixed VNID": {pod(7, "ip") + ",nw_dst=10.131.0.9", "1", "0 20 26 27 28 30 90 130 133", ""},
		"the node itself, kubelet's probe":      {host("10.128.0.1", 3), "3", "0 30 70 80 81 82 130 133", ""},
		"a host outside":                        {host("192.0.2.1", 3), drop, "0 30 70 80", ""},
		"a host outside to VNID 0":              {host("192.0.2.1", 7), "7", "0 30 70 80 81 82 130 133", ""},
		"another node's address":                {host("172.31.0.12", 3), drop, "0 30 70 80", ""},
		"routed by the node":                    {host("192.0.2.1", 3) + routed, drop, "0 30 70 80", ""},
		"routed by the node and masqueraded":    {host("10.128.0.1", 3) + routed, drop, "0 30 70 80", ""},
		"a pod's own mark, own VNID":            {host("10.128.0.4", 3) + routed, "3", "0 25 26 27 28 30 70 80 81 82 130 131 133", ""},
		"a pod's own mark, another VNID":        {host("10.128.0.3", 5) + routed, drop, "0 25 26 27 28 30 70 80", ""},
		"routed by the node to VNID 0":          {host("192.0.2.1", 7) + routed, "7", "0 30 70 80 81 82 130 133", ""},
		"routed by the node to there":           {"in_port=2,ip,nw_src=192.0.2.1,nw_dst=10.129.0.9" + routed, "1", "0 30 90 130 133", ""},
		"answer from outside":                   {host("192.0.2.1", 3), "3", "0 30 70 80 81 130 133", "trk,est,rpl"},
		"router's ICMP, too large":              {"in_port=2,icmp,nw_src=192.0.2.254,nw_dst=10.128.0.3,icmp_type=3,icmp_code=4", "3", "0 30 70 80 81 130 133", ""},
		"router's ICMP, unreachable":            {"in_port=2,icmp,nw_src=192.0.2.254,nw_dst=10.128.0.3,icmp_type=3,icmp_code=1", drop, "0 30 70 80", ""},
		"service of own VNID":                   {pod(3, "tcp") + ",nw_dst=172.30.0.20,tcp_dst=80", "2", "0 20 60 80 81 82 130 133", ""},
		"service of another VNID":               {pod(3, "tcp") + ",nw_dst=172.30.0.30,tcp_dst=80", drop, "0 20 60 80", ""},
		"service of VNID 0":                     {pod(3, "udp") + ",nw_dst=172.30.0.1,udp_dst=80", "2", "0 20 60 80 81 82 130 133", ""},
		"service from VNID 0":                   {pod(7, "tcp") + ",nw_dst=172.30.0.30,tcp_dst=80", "2", "0 20 60", ""},
		"no port of the service":                {pod(3, "tcp") + ",nw_dst=172.30.0.20,tcp_dst=81", drop, "0 20 60", ""},
		"fragment to another VNID's service":    {pod(3, "udp") + ",nw_dst=172.30.0.30,nw_frag=later", drop, "0 20 60 80", ""},
		"node port there of own VNID":           {pod(3, "tcp") + ",nw_dst=172.31.0.12,tcp_dst=30032", "2", "0 20 26 27 28 30 61 30 61 100 101 130 133", ""},
		"node port there of another VNID":       {pod(3, "tcp") + ",nw_dst=172.31.0.12,tcp_dst=30048", drop, "0 20 26 27 28 30 61 30 61", ""},
		"node port there of VNID 0":             {pod(3, "tcp") + ",nw_dst=172.31.0.12,tcp_dst=30000", "2", "0 20 26 27 28 30 61 30 61 100 101 130 133", ""},
		"node port there from VNID 0":           {pod(7, "tcp") + ",nw_dst=172.31.0.12,tcp_dst=30048", "2", "0 20 26 27 28 30 61 100 101 130 133", ""},
		"another node itself":                   {pod(3, "tcp") + ",nw_dst=172.31.0.12,tcp_dst=10250", "2", "0 20 26 27 28 30 61 30 61 100 101 130 133", ""},
		"a node port's number outside":          {pod(3, "tcp") + ",nw_dst=192.0.2.1,tcp_dst=30048", "2", "0 20 26 27 28 30 100 101 130 133", ""},
		"the proxy sends it to own VNID":        {host("10.128.0.3", 4), "4", "0 25 26 27 28 30 70 80 81 82 130 131 133", ""},
		"the proxy sends it to another VNID":    {host("10.128.0.3", 5), drop, "0 25 26 27 28 30 70 80", ""},
		"the proxy sends it to VNID 0":          {host("10.128.0.3", 7), "7", "0 25 26 27 28 30 70 80 81 82 130 131 133", ""},
		"the proxy sends it there":              {"in_port=2,tcp,nw_src=10.128.0.3,nw_dst=10.129.0.9", "1", "0 25 26 27 28 30 90 130 131 133", ""},
		"the endpoint here answers":             {here(4, 3) + ",ct_mark=1", "2", "0 20 26 27 28 30 70 80 81 130", "trk,est,rpl"},
		"the endpoint there answers":            {tunnel(0x20, 3) + ",ct_mark=1", "2", "0 10 30 70 80 81 130", "trk,est,rpl"},
		"the endpoint in VNID 0 answers":        {tunnel(0, 3) + ",ct_mark=1", "2", "0 10 30 70 80 81 130", "trk,est,rpl"},
		"the endpoint was cut off and answers":  {tunnel(0x30, 3) + ",ct_mark=1", drop, "0 10 30 70 80", "trk,est,rpl"},
		"an answer to the pod itself":           {tunnel(0x20, 3), "3", "0 10 30 70 80 81 130 133", "trk,est,rpl"},
		"the proxy answers":                     {host("172.30.0.20", 3), "3", "0 30 70 80 81 130 133", "trk,est,rpl"},
		"the proxy answers for a node port":     {host("172.31.0.11", 3), "3", "0 30 70 80 81 130 133", "trk,est,rpl"},
		"multicast that is off":                 {pod(3, "udp") + ",nw_dst=239.1.1.1", drop, "0 20 26 27 28 30 110", ""},
		"IGMP where multicast is off":           {pod(3, "ip") + ",nw_proto=2,nw_dst=224.0.0.22", drop, "0 20 26 27 28 30 110", ""},
		"multicast of VNID 0":                   {pod(7, "udp") + ",nw_dst=239.1.1.1", drop, "0 20 26 27 28 30 110", ""},
		"multicast to ports of its VNID":        {pod(5, "udp") + ",nw_dst=239.1.1.1", "6", "0 20 26 27 28 30 110 111 120", ""},
		"IGMP stays in its VNID":                {pod(5, "ip") + ",nw_proto=2,nw_dst=224.0.0.22", "6", "0 20 26 27 28 30 110 111 120", ""},
		"MLD":                                   {"in_port=5,dl_src=0a:58:0a:80:00:05,icmp6,ipv6_dst=ff02::16,icmpv6_type=143", drop, "0", ""},
		"MLD from there":                        {"in_port=1,tun_src=172.31.0.12,tun_id=0x30,icmp6,ipv6_dst=ff02::16,icmpv6_type=143", drop, "0", ""},
		"IGMP from VNID 0 there":                {"in_port=1,tun_src=172.31.0.12,tun_id=0,ip,nw_proto=2,nw_src=10.129.0.9,nw_dst=224.0.0.22", drop, "0 10 30 120", ""},
		"multicast from there":                  {"in_port=1,tun_src=172.31.0.12,tun_id=0x30,udp,nw_src=10.129.0.9,nw_dst=239.1.1.1", "6", "0 10 30 120", ""},
		"multicast of another VNID from there":  {"in_port=1,tun_src=172.31.0.12,tun_id=0x20,udp,nw_src=10.129.0.9,nw_dst=239.1.1.1", drop, "0 10 30 120", ""},
		"multicast from the host":               {"in_port=2,udp,nw_src=10.128.0.1,nw_dst=239.1.1.1", drop, "0 30 110", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var options []string
			if tc.next != "" {
				options = []string{"--ct-next", tc.next}
			}
			trace := sw.Trace(t, tc.packet, options...)
			if got := passed(trace); got != tc.tables {
				t.Errorf("tables: got %s, want %s\n%s", got, tc.tables, trace)
			}
			if got := lastOutput(trace); got != tc.out {
				t.Errorf("output port: got %q, want %q\n%s", got, tc.out, trace)
			}
		})
	}
}

// Copies go to the nodes that have pods of the sender's VNID.
func TestTraceMulticast_goesToNodesOfVNID(t *testing.T) {
	tier.Parallel(t)
	sw, bridge := realSwitch(t)
	if _, err := bridge.Replace(t.Context(), withMeters(t, tenantFlows(t))); err != nil {
		t.Fatal(err)
	}
	for name, packet := range map[string]string{"UDP": "udp,nw_dst=239.1.1.1", "IGMP": "ip,nw_proto=2,nw_dst=224.0.0.22"} {
		trace := sw.Trace(t, "in_port=5,dl_src=0a:58:0a:80:00:05,"+packet+",nw_src=10.128.0.5")
		if !strings.Contains(trace, "172.31.0.13->tun_dst") || strings.Contains(trace, "172.31.0.12->tun_dst") {
			t.Errorf("%s: want copies to 172.31.0.13 and none to 172.31.0.12, got\n%s", name, trace)
		}
	}
}

// Multicast that is enabled for a VNID works in every mode, within the VNID only.
func TestTraceMulticast_inAllModes(t *testing.T) {
	tier.Parallel(t)
	sw, bridge := realSwitch(t)
	for _, mode := range []config.Mode{config.ModeSubnet, config.ModeNetworkPolicy, config.ModeMultitenant} {
		if _, err := bridge.Replace(t.Context(), withMeters(t, tenantFlowsIn(t, mode))); err != nil {
			t.Fatal(err)
		}
		for name, tc := range map[string]struct {
			packet  string
			outputs []string // all of output:3 to output:7 and copies to nodes
		}{
			"from a pod":                 {"in_port=5,dl_src=0a:58:0a:80:00:05,udp,nw_dst=239.1.1.1,nw_src=10.128.0.5", []string{"output:6", "172.31.0.13->tun_dst"}},
			"from a pod of another":      {"in_port=3,dl_src=0a:58:0a:80:00:03,udp,nw_dst=239.1.1.1,nw_src=10.128.0.3", nil},
			"from another node":          {"in_port=1,tun_src=172.31.0.12,tun_id=0x30,udp,nw_src=10.129.0.9,nw_dst=239.1.1.1", []string{"output:5", "output:6"}},
			"of another VNID from there": {"in_port=1,tun_src=172.31.0.12,tun_id=0x20,udp,nw_src=10.129.0.9,nw_dst=239.1.1.1", nil},
		} {
			trace := sw.Trace(t, tc.packet)
			var got []string
			for _, output := range []string{"output:3", "output:4", "output:5", "output:6", "output:7", "172.31.0.12->tun_dst", "172.31.0.13->tun_dst"} {
				skipped := strings.Contains(trace, output+"\n     >> skipping output to input port")
				if strings.Contains(trace, output) && !skipped {
					got = append(got, output)
				}
			}
			if !slices.Equal(got, tc.outputs) {
				t.Errorf("mode %s, %s: got outputs %q, want %q, in\n%s", mode, name, got, tc.outputs, trace)
			}
		}
	}
}

// The number of isolation flows of a switch follows from the VNIDs of its pods, not from those of the cluster.
func TestIsolationIsByLocalVNID(t *testing.T) {
	isolation := 0
	for _, f := range tenantFlows(t) {
		if f.Table == tableIsolation {
			isolation++
		}
	}
	if want := 6 + 2; isolation != want {
		t.Errorf("flows in table %d: got %d, want %d for two VNIDs", tableIsolation, isolation, want)
	}
}
