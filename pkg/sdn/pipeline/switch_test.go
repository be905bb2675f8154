package pipeline

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

func realSwitch(t *testing.T) (*ovstest.Switch, ovs.Interface) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	sw := ovstest.Start(t)
	bridge := native.New(ovstest.Bridge, sw.RunDir)
	t.Cleanup(bridge.Close)
	if err := bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: ovstest.Bridge, DatapathType: ovstest.DatapathType(t), TableNames: TableNames()}); err != nil {
		t.Fatal(err)
	}
	return sw, bridge
}

// Open vSwitch accepts the flows of all golden files, and dumps them unchanged.
func TestSwitchTakesAllGolden(t *testing.T) {
	tier.Parallel(t)
	sw, bridge := realSwitch(t)
	for name, state := range goldenStates(t) {
		t.Run(name, func(t *testing.T) {
			want := onSwitch(t, state)
			if _, err := bridge.Replace(t.Context(), want); err != nil {
				t.Fatal(err)
			}
			if diff := sw.Diff(t, want.Flows); diff != "" {
				t.Errorf("flows of the switch and flows written differ:\n%s", diff)
			}
		})
	}
}

// The tables and the output port of packets in mode subnet, by ofproto/trace.
func TestTrace(t *testing.T) {
	tier.Parallel(t)
	sw, bridge := realSwitch(t)
	n := subnetNode()
	flows := static(t, n).Flows
	for _, s := range []State{
		n.Peer(Peer{VTEP: netip.MustParseAddr("172.31.0.12"), Subnets: prefixes("10.129.0.0/23"), IsNode: true}),
		n.Peer(Peer{VTEP: netip.MustParseAddr("172.31.0.98"), Subnets: prefixes("10.131.0.0/23")}),
		n.Pod(Pod{OFPort: 3, MAC: config.MAC(netip.MustParseAddr("10.128.0.5")), Addrs: []netip.Addr{netip.MustParseAddr("10.128.0.5")}}),
		n.Pod(Pod{OFPort: 4, MAC: config.MAC(netip.MustParseAddr("10.128.0.6")), Addrs: []netip.Addr{netip.MustParseAddr("10.128.0.6")}}),
		n.MulticastNodes([]netip.Addr{netip.MustParseAddr("172.31.0.12")}),
	} {
		flows = append(flows, s.Flows...)
	}
	if _, err := bridge.Replace(t.Context(), withMeters(t, inOnePass(flows))); err != nil {
		t.Fatal(err)
	}

	const drop, back = "", "IN_PORT"
	podA := "in_port=3,dl_src=0a:58:0a:80:00:05,"
	forged := net.HardwareAddr{0x0a, 0x58, 10, 128, 0, 6}.String()
	for name, tc := range map[string]struct {
		packet string
		out    string // the last output of the trace; drop if it has none
		tables string // the tables of the trace, in order
	}{
		"pod to pod here":             {podA + "ip,nw_src=10.128.0.5,nw_dst=10.128.0.6", "4", "0 20 27 30 70 80 133"},
		"pod to pod there":            {podA + "ip,nw_src=10.128.0.5,nw_dst=10.129.0.9", "1", "0 20 27 30 90"},
		"pod to no node's subnet":     {podA + "ip,nw_src=10.128.0.5,nw_dst=10.130.0.9", drop, "0 20 27 30 90"},
		"pod to outside":              {podA + "ip,nw_src=10.128.0.5,nw_dst=192.0.2.1", "2", "0 20 27 30 100 101"},
		"pod to a service":            {podA + "tcp,nw_src=10.128.0.5,nw_dst=172.30.0.1,tcp_dst=443", "2", "0 20 60"},
		"pod to its gateway":          {podA + "ip,nw_src=10.128.0.5,nw_dst=10.128.0.1", "2", "0 20 27 30"},
		"pod asks for a pod here":     {podA + "arp,arp_op=1,arp_spa=10.128.0.5,arp_sha=0a:58:0a:80:00:05,arp_tpa=10.128.0.6", back, "0 20 30 40 51"},
		"pod asks for a pod there":    {podA + "arp,arp_op=1,arp_spa=10.128.0.5,arp_sha=0a:58:0a:80:00:05,arp_tpa=10.129.0.9", back, "0 20 30 50 51"},
		"pod asks for its gateway":    {podA + "arp,arp_op=1,arp_spa=10.128.0.5,arp_sha=0a:58:0a:80:00:05,arp_tpa=10.128.0.1", back, "0 20 30 51"},
		"pod asks for no pod here":    {podA + "arp,arp_op=1,arp_spa=10.128.0.5,arp_sha=0a:58:0a:80:00:05,arp_tpa=10.128.0.9", drop, "0 20 30 40"},
		"pod asks for no pod there":   {podA + "arp,arp_op=1,arp_spa=10.128.0.5,arp_sha=0a:58:0a:80:00:05,arp_tpa=10.130.0.9", drop, "0 20 30 50"},
		"pod asks for a machine":      {podA + "arp,arp_op=1,arp_spa=10.128.0.5,arp_sha=0a:58:0a:80:00:05,arp_tpa=10.131.0.9", "1", "0 20 30 50"},
		"pod announces itself":        {podA + "arp,arp_op=1,arp_spa=10.128.0.5,arp_sha=0a:58:0a:80:00:05,arp_tpa=10.128.0.5", drop, "0 20 30 40"},
		"pod answers another":         {podA + "arp,arp_op=2,arp_spa=10.128.0.5,arp_sha=0a:58:0a:80:00:05,arp_tpa=10.128.0.6", drop, "0 20"},
		"pod answers its node":        {podA + "arp,arp_op=2,arp_spa=10.128.0.5,arp_sha=0a:58:0a:80:00:05,arp_tpa=10.128.0.1", drop, "0 20"},
		"pod sends multicast":         {podA + "udp,nw_src=10.128.0.5,nw_dst=239.1.1.1", drop, "0 20 27 30 110"},
		"pod sends VXLAN":             {podA + "udp,nw_src=10.128.0.5,nw_dst=172.31.0.12,udp_dst=4789", drop, "0 20"},
		"pod forges its IP":           {podA + "ip,nw_src=10.128.0.6,nw_dst=10.129.0.9", drop, "0 20"},
		"pod forges its MAC":          {"in_port=3,dl_src=" + forged + ",ip,nw_src=10.128.0.5,nw_dst=10.129.0.9", drop, "0 20"},
		"pod is the gateway":          {podA + "ip,nw_src=10.128.0.1,nw_dst=10.128.0.6", drop, "0 20"},
		"pod answers for another":     {podA + "arp,arp_op=2,arp_spa=10.128.0.6,arp_sha=0a:58:0a:80:00:05,arp_tpa=10.129.0.9", drop, "0 20"},
		"pod answers as another":      {podA + "arp,arp_op=2,arp_spa=10.128.0.5,arp_sha=" + forged + ",arp_tpa=10.129.0.9", drop, "0 20"},
		"pod answers for the gateway": {podA + "arp,arp_op=2,arp_spa=10.128.0.1,arp_sha=0a:58:0a:80:00:05,arp_tpa=10.128.0.6", drop, "0 20"},
		"pod speaks IPv6":             {podA + "ipv6", drop, "0"},
		"node to pod here":            {"in_port=2,ip,nw_src=10.128.0.1,nw_dst=10.128.0.6", "4", "0 30 70 80 133"},
		"node to pod there":           {"in_port=2,ip,nw_src=10.128.0.1,nw_dst=10.129.0.9", "1", "0 30 90"},
		"node asks for a pod":         {"in_port=2,arp,arp_op=1,arp_spa=10.128.0.1,arp_tpa=10.128.0.6", back, "0 30 40 51"},
		"node asks for a machine":     {"in_port=2,arp,arp_op=1,arp_spa=10.128.0.1,arp_tpa=10.131.0.9", "1", "0 30 50"},
		"node announces itself":       {"in_port=2,arp,arp_op=1,arp_spa=10.128.0.1,arp_tpa=10.128.0.1", drop, "0 30"},
		"node answers":                {"in_port=2,arp,arp_op=2,arp_spa=10.128.0.1,arp_tpa=10.128.0.6", drop, "0"},
		"host's proxy sends it back":  {"in_port=2,tcp,nw_src=10.128.0.5,nw_dst=10.128.0.6", "4", "0 25 27 30 70 80 133"},
		"host's proxy, unknown pod":   {"in_port=2,tcp,nw_src=10.128.0.77,nw_dst=10.128.0.6", drop, "0 25"},
		"answer from outside":         {"in_port=2,ip,nw_src=192.0.2.1,nw_dst=10.128.0.5", "3", "0 30 70 80 133"},
		"host sends multicast":        {"in_port=2,udp,nw_src=10.128.0.1,nw_dst=239.1.1.1", drop, "0 30 110"},
		"peer to pod":                 {"in_port=1,tun_src=172.31.0.12,ip,nw_src=10.129.0.9,nw_dst=10.128.0.5", "3", "0 10 30 70 80 133"},
		"peer asks for a pod":         {"in_port=1,tun_src=172.31.0.12,arp,arp_op=1,arp_spa=10.129.0.9,arp_tpa=10.128.0.5", back, "0 10 30 40 51"},
		"peer asks for this node":     {"in_port=1,tun_src=172.31.0.12,arp,arp_op=1,arp_spa=10.129.0.9,arp_tpa=10.128.0.1", back, "0 10 30 51"},
		"peer answers a pod":          {"in_port=1,tun_src=172.31.0.12,arp,arp_op=2,arp_spa=10.129.0.9,arp_tpa=10.128.0.5", drop, "0 10 30"},
		"peer answers this node":      {"in_port=1,tun_src=172.31.0.12,arp,arp_op=2,arp_spa=10.129.0.9,arp_tpa=10.128.0.1", drop, "0 10 30"},
		"peer answers for a machine":  {"in_port=1,tun_src=172.31.0.12,arp,arp_op=2,arp_spa=10.131.0.9,arp_tpa=10.128.0.5", drop, "0 10"},
		"machine asks for a pod":      {"in_port=1,tun_src=172.31.0.98,arp,arp_op=1,arp_spa=10.131.0.9,arp_tpa=10.128.0.5", back, "0 10 30 40 51"},
		"machine answers a pod":       {"in_port=1,tun_src=172.31.0.98,arp,arp_op=2,arp_spa=10.131.0.9,arp_tpa=10.128.0.5", "3", "0 10 30 40"},
		"machine answers this node":   {"in_port=1,tun_src=172.31.0.98,arp,arp_op=2,arp_spa=10.131.0.9,arp_tpa=10.128.0.1", "2", "0 10 30"},
		"machine answers for a pod":   {"in_port=1,tun_src=172.31.0.98,arp,arp_op=2,arp_spa=10.128.0.6,arp_tpa=10.128.0.5", drop, "0 10"},
		"peer to this node":           {"in_port=1,tun_src=172.31.0.12,ip,nw_src=10.129.0.9,nw_dst=10.128.0.1", "2", "0 10 30"},
		"stranger to pod":             {"in_port=1,tun_src=172.31.0.99,ip,nw_src=10.129.0.9,nw_dst=10.128.0.5", drop, "0 10"},
		// Without policies and VNIDs a host outside reaches pods through any node, as it does through theirs.
		"peer's source is no pod":      {"in_port=1,tun_src=172.31.0.12,ip,nw_src=192.0.2.1,nw_dst=10.128.0.5", "3", "0 10 30 70 80 133"},
		"peer's own IP":                {"in_port=1,tun_src=172.31.0.12,ip,nw_src=172.31.0.12,nw_dst=10.128.0.5", "3", "0 10 30 70 80 133"},
		"no pod, from a stranger":      {"in_port=1,tun_src=172.31.0.99,ip,nw_src=192.0.2.1,nw_dst=10.128.0.5", drop, "0 10"},
		"no pod, to this node":         {"in_port=1,tun_src=172.31.0.12,ip,nw_src=192.0.2.1,nw_dst=10.128.0.1", drop, "0"},
		"no pod, to a third node":      {"in_port=1,tun_src=172.31.0.12,ip,nw_src=192.0.2.1,nw_dst=10.130.0.9", drop, "0"},
		"no pod, to the world":         {"in_port=1,tun_src=172.31.0.12,ip,nw_src=192.0.2.1,nw_dst=192.0.2.9", drop, "0"},
		"no pod, multicast":            {"in_port=1,tun_src=172.31.0.12,udp,nw_src=192.0.2.1,nw_dst=239.1.1.1", drop, "0"},
		"no pod asks for a pod by ARP": {"in_port=1,tun_src=172.31.0.12,arp,arp_op=1,arp_spa=192.0.2.1,arp_tpa=10.128.0.5", drop, "0"},
		"host outside to pod there":    {"in_port=2,ip,nw_src=192.0.2.1,nw_dst=10.129.0.9", "1", "0 30 90"},
	} {
		t.Run(name, func(t *testing.T) {
			trace := sw.Trace(t, tc.packet)
			if got := passed(trace); got != tc.tables {
				t.Errorf("tables: got %s, want %s\n%s", got, tc.tables, trace)
			}
			if got := lastOutput(trace); got != tc.out {
				t.Errorf("output port: got %q, want %q\n%s", got, tc.out, trace)
			}
		})
	}
}

// withMeters returns the flows and the meters that they use, at 1 packet per second.
func withMeters(t *testing.T, flows []*ovs.Flow) ovs.State {
	t.Helper()
	s := ovs.State{Flows: flows}
	for _, f := range flows {
		text, err := ovs.ActionsText(f)
		if err != nil {
			t.Fatal(err)
		}
		m := ovs.Meter{Unit: ovs.Packets, Rate: 1}
		if n, _ := fmt.Sscanf(text, "meter:%d,", &m.ID); n == 1 && !slices.Contains(s.Meters, m) {
			s.Meters = append(s.Meters, m)
		}
	}
	return s
}

// inOnePass returns the flows without recirculation of ARP, at which a trace would end.
func inOnePass(flows []*ovs.Flow) []*ovs.Flow {
	label := ovs.Recirculate(etherTypeARP)
	all := make([]*ovs.Flow, len(flows))
	for i, f := range flows {
		flow := *f
		flow.Actions = slices.DeleteFunc(slices.Clone(f.Actions), func(a ovs.Action) bool { return a == label[0] || a == label[1] })
		all[i] = &flow
	}
	return all
}

// passed lists the tables of a trace, whose steps begin with the number or the name of the table: "20. in_port=3, priority 100".
func passed(trace string) string {
	numbers := map[string]string{}
	for table, name := range TableNames() {
		numbers[name] = strconv.Itoa(table)
	}
	var tables []string
	for _, m := range regexp.MustCompile(`(?m)^ *([a-z0-9-]+)\. `).FindAllStringSubmatch(trace, -1) {
		table := m[1]
		if n, ok := numbers[table]; ok {
			table = n
		}
		tables = append(tables, table)
	}
	return strings.Join(tables, " ")
}

// lastOutput returns the OpenFlow port of the last output in a trace, or "IN_PORT"; "" if there is none.
func lastOutput(trace string) string {
	if regexp.MustCompile(`(?m)^ +IN_PORT$`).MatchString(trace) {
		return "IN_PORT"
	}
	m := regexp.MustCompile(`(?m)^ +(?:output:|>> output port is |.*-> output port is )([0-9]+)`).FindAllStringSubmatch(trace, -1)
	if len(m) == 0 {
		return ""
	}
	return m[len(m)-1][1]
}
