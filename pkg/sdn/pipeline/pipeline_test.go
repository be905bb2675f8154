package pipeline

import (
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

var update = flag.Bool("update", false, "write testdata/*.flows anew") //nolint:gochecknoglobals // a test binary parses its flags before any test runs

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

func subnetNode() Node {
	return Node{
		Mode:            config.ModeSubnet,
		ClusterNetworks: prefixes("10.128.0.0/14"),
		ServiceNetwork:  netip.MustParsePrefix("172.30.0.0/16"),
		Subnets:         prefixes("10.128.0.0/23"),
		VTEP:            netip.MustParseAddr("172.31.0.11"),
		VXLANPort:       config.DefaultVXLANPort,
	}
}

func inMode(mode config.Mode) Node {
	n := subnetNode()
	n.Mode = mode
	return n
}

func static(t *testing.T, n Node) State {
	t.Helper()
	s, err := n.Static()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// goldenStates are all kinds of state there are; TestGoldenComplete knows if a kind has none.
func goldenStates(t *testing.T) map[string]State {
	n := subnetNode()
	grown := subnetNode()
	grown.ClusterNetworks = prefixes("10.128.0.0/14", "10.200.0.0/16")
	grown.Subnets = prefixes("10.128.0.0/23", "10.200.1.0/24")
	grown.VXLANPort = 8472
	mac := net.HardwareAddr{0x0a, 0x58, 10, 128, 0, 5}
	tenants := inMode(config.ModeMultitenant)
	grownTenants := grown
	grownTenants.Mode = config.ModeMultitenant
	machine := Peer{VTEP: netip.MustParseAddr("172.31.0.99"), Subnets: prefixes("10.131.0.0/23")}
	fixed := func(vnid config.VNID) Peer {
		p := machine
		p.FixedVNID = &vnid
		return p
	}
	services := Service{
		ClusterIPs: []netip.Addr{netip.MustParseAddr("172.30.0.10")},
		Ports:      []ServicePort{{Protocol: goovs.ProtocolTCPv4, Port: 80}, {Protocol: goovs.ProtocolUDPv4, Port: 80}},
		NodePorts:  []ServicePort{{Protocol: goovs.ProtocolTCPv4, Port: 30080}},
	}
	tenantsService := services
	tenantsService.VNID = 0xabcdef
	judging := inMode(config.ModeNetworkPolicy)
	userspace := judging
	userspace.StatelessSCTP, userspace.LaterFragments = true, true
	both := []RulePart{
		{Level: 25026, Shares: []RuleShare{{ID: 0xdeadbeef, K: 1, N: 2}, {ID: 7, K: 3, N: 3}}},
		{Egress: true, Level: 50051, Admin: true, Shares: []RuleShare{{ID: 9, K: 2, N: 2}}},
	}
	var outcomes State
	for i, part := range both {
		for _, action := range []PolicyAction{PolicyAllow, PolicyDeny, PolicyPass} {
			outcomes.Flows = append(outcomes.Flows, judging.PolicyOutcome(uint32(10*i)+uint32(action), part, action).Flows...) //nolint:gosec // small
		}
	}
	return map[string]State{
		"node-subnet":       static(t, n),
		"node-two-networks": static(t, grown),

		"node-networkpolicy":             static(t, inMode(config.ModeNetworkPolicy)),
		"node-networkpolicy-userspace":   static(t, userspace),
		"node-multitenant":               static(t, tenants),
		"node-multitenant-two-networks":  static(t, grownTenants),
		"pod-multitenant":                tenants.Pod(Pod{OFPort: 3, MAC: mac, Addrs: []netip.Addr{netip.MustParseAddr("10.128.0.5")}, VNID: 0xabcdef}),
		"pod-multitenant-global":         tenants.Pod(Pod{OFPort: 3, MAC: mac, Addrs: []netip.Addr{netip.MustParseAddr("10.128.0.5")}}),
		"hostsubnet-multitenant":         tenants.Peer(machine),
		"hostsubnet-multitenant-fixed":   tenants.Peer(fixed(0xabcdef)),
		"hostsubnet-multitenant-fixed-0": tenants.Peer(fixed(0)),
		"hostsubnet-fixed":               inMode(config.ModeNetworkPolicy).Peer(fixed(0xabcdef)),
		"service-multitenant":            tenants.Service(tenantsService),
		"service-multitenant-global":     tenants.Service(services),
		"service-endpoints":              judging.Service(outsideService()),
		"service-endpoints-userspace":    userspace.Service(outsideService()),
		"service-endpoints-multitenant":  tenants.Service(outsideService()),
		"multicast-vnid": tenants.Multicast(Multicast{
			VNID: 0xabcdef, OFPorts: []int{3, 7}, Nodes: []netip.Addr{netip.MustParseAddr("172.31.0.12")}}),
		"multicast-vnid-here-only":     tenants.Multicast(Multicast{VNID: 0xabcdef, OFPorts: []int{3}}),
		"multicast-vnid-nodes-unknown": tenants.Multicast(Multicast{VNID: 0xabcdef, OFPorts: []int{3}, AllNodes: true}),
		"hostsubnet-node":              inMode(config.ModeNetworkPolicy).Peer(Peer{VTEP: netip.MustParseAddr("172.31.0.12"), Subnets: prefixes("10.129.0.0/23"), IsNode: true}),
		"hostsubnet":                   n.Peer(Peer{VTEP: netip.MustParseAddr("172.31.0.12"), Subnets: prefixes("10.129.0.0/23")}),
		"pod":                          n.Pod(Pod{OFPort: 3, MAC: mac, Addrs: []netip.Addr{netip.MustParseAddr("10.128.0.5")}, VNID: 0}),
		"pod-vnid":                     n.Pod(Pod{OFPort: 3, MAC: mac, Addrs: []netip.Addr{netip.MustParseAddr("10.128.0.5")}, VNID: 0xabcdef}),
		"service": n.Service(Service{
			ClusterIPs: []netip.Addr{netip.MustParseAddr("172.30.0.10")},
			Ports: []ServicePort{
				{Protocol: goovs.ProtocolTCPv4, Port: 53}, {Protocol: goovs.ProtocolUDPv4, Port: 53}, {Protocol: ProtocolSCTP, Port: 9}},
		}),
		"pod-judged": judging.Pod(Pod{OFPort: 3, MAC: mac, Addrs: []netip.Addr{netip.MustParseAddr("10.128.0.5")}, Policies: PodPolicies{Judged: true}}),
		"pod-isolated": judging.Pod(Pod{OFPort: 3, MAC: mac, Addrs: []netip.Addr{netip.MustParseAddr("10.128.0.5")},
			Policies: PodPolicies{Judged: true, Ingress: true, Egress: true}}),
		"policy-target":         judging.PolicyTarget(Pod{OFPort: 3, Addrs: []netip.Addr{netip.MustParseAddr("10.128.0.5")}}, both),
		"policy-peer":           judging.PolicyPeer(netip.MustParsePrefix("10.129.0.0/23"), both),
		"policy-nodes":          judging.PolicyNodes(both),
		"policy-node-block":     judging.PolicyNodeBlock(netip.MustParsePrefix("172.31.0.0/20"), both),
		"policy-node-address":   judging.PolicyNodeBlock(netip.MustParsePrefix("172.31.0.12/32"), both),
		"policy-tenant":         judging.PolicyTenant(0xabcdef, both[:1]),
		"policy-port":           judging.PolicyPort(goovs.ProtocolTCPv4, 80, 0xffff, both),
		"policy-port-userspace": userspace.PolicyPort(goovs.ProtocolTCPv4, 80, 0xffff, both),
		"policy-all-userspace":  userspace.PolicyPort(goovs.ProtocolUDPv4, 0, 0, both),
		"policy-ports":          judging.PolicyPort(ProtocolSCTP, 8080, 0xfff0, both),
		"policy-all":            judging.PolicyPort(goovs.ProtocolUDPv4, 0, 0, both),
		"policy-anything":       judging.PolicyAnything(both),
		"policy-outcome":        outcomes,
		"previous-zones":        judging.PreviousZones(),
		"pod-logged": judging.Pod(Pod{OFPort: 3, MAC: mac, Addrs: []netip.Addr{netip.MustParseAddr("10.128.0.5")},
			Policies: PodPolicies{Judged: true, Ingress: true, Logged: true}}),
		"multicast": n.MulticastNodes([]netip.Addr{netip.MustParseAddr("172.31.0.12"), netip.MustParseAddr("172.31.0.13")}),
	}
}

func lines(t *testing.T, s State) string {
	t.Helper()
	var b strings.Builder
	for _, m := range s.Meters {
		text, err := ovs.MeterText(m)
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString("# " + text + "\n")
	}
	for _, f := range s.Flows {
		text, err := ovs.FlowText(f)
		if err != nil {
			t.Fatalf("%#v: %v", f, err)
		}
		b.WriteString(text + "\n")
	}
	return b.String()
}

func TestGolden(t *testing.T) {
	for name, state := range goldenStates(t) {
		t.Run(name, func(t *testing.T) {
			got := lines(t, state)
			file := filepath.Join("testdata", name+".flows")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("The flows changed (-want +got):\n%s\n"+
					"If you meant it: run `go test ./pkg/sdn/pipeline -update`, read the difference as a reviewer will, and commit it. "+
					"The version note changes with it by itself, and running nodes move to the new tables without losing a packet.", diff)
			}
		})
	}
}

func TestGoldenComplete(t *testing.T) {
	states := goldenStates(t)
	files, err := filepath.Glob("testdata/*.flows")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if name := strings.TrimSuffix(filepath.Base(file), ".flows"); len(states[name].Flows) == 0 {
			t.Errorf("%s has no test: delete it or bring its test back", file)
		}
	}
}

// Every table has a name of its own, ends in a flow that matches everything, and every goto leads to a table.
func TestTables(t *testing.T) {
	names := TableNames()
	seen := map[string]int{}
	for table, name := range names {
		if other, ok := seen[name]; ok {
			t.Errorf("tables %d and %d are both called %s: OVS would show no name at all", table, other, name)
		}
		seen[name] = table
	}
	defaults := map[int]bool{}
	for _, f := range static(t, subnetNode()).Flows {
		if _, ok := names[f.Table]; !ok {
			t.Errorf("table %d has no name", f.Table)
		}
		if f.Protocol == "" && f.InPort == 0 && len(f.Matches) == 0 {
			defaults[f.Table] = true
		}
		for _, a := range f.Actions {
			text, err := a.MarshalText()
			if err != nil {
				t.Fatal(err)
			}
			var next int
			if n, _ := fmt.Sscanf(string(text), "goto_table:%d", &next); n == 1 {
				if _, ok := names[next]; !ok || next <= f.Table {
					t.Errorf("table %d goes to table %d", f.Table, next)
				}
			}
		}
	}
	for table := range names {
		if !defaults[table] {
			t.Errorf("table %d (%s) has no default: what falls through can't be counted", table, names[table])
		}
	}
}

func TestVersionNote(t *testing.T) {
	note := func(n Node) string {
		flows := static(t, n).Flows
		text, err := flows[len(flows)-1].Actions[0].MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	one, again := note(subnetNode()), note(subnetNode())
	if one != again {
		t.Errorf("the same flows have versions %s and %s", one, again)
	}
	if !strings.HasPrefix(one, "note:00.") {
		t.Errorf("%s does not start with mode subnet's plugin id", one)
	}
	other := subnetNode()
	other.VXLANPort = 8472
	if note(other) == one {
		t.Error("other flows have the same version")
	}
}

func TestMulticastNodesIsBounded(t *testing.T) {
	var vteps []netip.Addr
	addr := netip.MustParseAddr("10.0.0.1")
	for range 5000 {
		vteps = append(vteps, addr)
		addr = addr.Next()
	}
	flows := subnetNode().MulticastNodes(vteps).Flows
	if len(flows) != 1 || len(flows[0].Actions) != 2+2*maxMulticastNodes {
		t.Errorf("got %d flows with %d actions", len(flows), len(flows[0].Actions))
	}
}

func TestCookies(t *testing.T) {
	seen := map[uint64]Owner{}
	for kind := KindNode; kind <= KindPolicy; kind++ {
		for i := range 10000 {
			o := Owner{Kind: kind, Key: fmt.Sprintf("namespace-%d/name", i)}
			c := o.Cookie()
			if other, ok := seen[c]; ok {
				t.Fatalf("%v and %v share cookie %#x", o, other, c)
			}
			if c == SharedCookie() || CookieKind(c) != kind {
				t.Fatalf("%v has cookie %#x", o, c)
			}
			seen[c] = o
		}
	}
}

// The meters of all ports differ, and Open vSwitch takes their numbers.
func TestMeterNumbersDiffer(t *testing.T) {
	n := inMode(config.ModeNetworkPolicy)
	seen := map[uint32]int{}
	add := func(port int, s State) {
		for _, m := range s.Meters {
			if _, err := ovs.MeterText(m); err != nil {
				t.Error(err)
			}
			if other, ok := seen[m.ID]; ok {
				t.Errorf("ports %d and %d both have meter %d", other, port, m.ID)
			}
			seen[m.ID] = port
		}
	}
	add(0, static(t, n))
	const last = 0xfeff // OFPP_MAX of OpenFlow 1.0
	for port := PortTun + 1; port <= last; port++ {
		add(port, n.Pod(Pod{OFPort: port, Addrs: []netip.Addr{netip.MustParseAddr("10.128.0.5")}, Policies: PodPolicies{Judged: true, Logged: true}}))
	}
	if want := 2 + 3*(last-PortTun); len(seen) != want {
		t.Errorf("got %d meters, want %d", len(seen), want)
	}
}
