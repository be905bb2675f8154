package pipeline

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/seed"
	"github.com/ovsdn/ovsdn/test/tier"
)

// randomFirewall has prefixes in a few ranges, so that many of them overlap.
func randomFirewall(r *rand.Rand, rules int) EgressFirewall {
	f := EgressFirewall{ID: 1 + EgressFirewallID(r.Uint32N(9))}
	for range rules {
		rule := EgressFirewallRule{Deny: r.IntN(2) == 0}
		for range 1 + r.IntN(3) {
			addr := netip.AddrFrom4([4]byte{192, 0, byte(r.IntN(4)), byte(r.IntN(8))})
			rule.To = append(rule.To, netip.PrefixFrom(addr, []int{0, 8, 22, 24, 29, 30, 31, 32}[r.IntN(8)]))
		}
		f.Rules = append(f.Rules, rule)
	}
	return f
}

// lookUp returns whether the flow of the highest priority passes a packet to the address.
func lookUp(t *testing.T, flows []ovs.DumpedFlow, to netip.Addr) bool {
	t.Helper()
	priority, passes := -1, true
	for _, f := range flows {
		_, rule, ok := parseFirewallFlow(f.Text)
		if !ok {
			t.Fatalf("flow is not read: %s", f.Text)
		}
		if rule.To[0].Contains(to) && f.Key.Priority > priority {
			priority, passes = f.Key.Priority, !rule.Deny
		}
	}
	return passes
}

// firstDecides evaluates the rules one after the other.
func firstDecides(f EgressFirewall, to netip.Addr) bool {
	for _, r := range f.Rules {
		if slices.ContainsFunc(r.To, func(p netip.Prefix) bool { return p.Contains(to) }) {
			return !r.Deny
		}
	}
	return true
}

// IsWithin is false if an address is allowed before and denied after.
func TestEgressFirewall_IsWithin(t *testing.T) {
	r := seed.Rand(t)
	within := 0
	for range 2000 {
		a, b := randomFirewall(r, r.IntN(4)), randomFirewall(r, r.IntN(4))
		got := a.Compile(EgressVerdicts{}).IsWithin(b.Compile(EgressVerdicts{}))
		if got {
			within++
		}
		for x := range 5 {
			for y := range 9 {
				to := netip.AddrFrom4([4]byte{192, 0, byte(x), byte(y)})
				if got && firstDecides(a, to) && !firstDecides(b, to) {
					t.Fatalf("%v is within %v, but only the first allows %v", a, b, to)
				}
			}
		}
	}
	if within < 500 {
		t.Errorf("got %d pairs within each other, want more", within)
	}
	narrower := EgressFirewall{Rules: []EgressFirewallRule{{To: prefixes("192.0.2.9/32"), Deny: true}}}.Compile(EgressVerdicts{})
	if f := goldenFirewall().Compile(EgressVerdicts{}); !f.IsWithin(f) || f.IsWithin(narrower) || narrower.IsWithin(f) || !narrower.IsWithin(EgressVerdicts{}) || (EgressVerdicts{}).IsWithin(narrower) {
		t.Error("got other results of the golden firewall")
	}
}

// The flows, whose order is that of prefixes, decide as the rules in their order. Rules that are read from flows decide as these, and give the same flows.
func TestEgressFirewall_firstRuleDecides(t *testing.T) {
	tier.Parallel(t)
	r := seed.Rand(t)
	owner := Owner{KindEgressFirewall, "tenant"}
	for range 300 {
		f := randomFirewall(r, r.IntN(20))
		flows := dumped(t, owner, f.Compile(EgressVerdicts{}).State())
		recovered := EgressFirewallsOf(flows)[owner.Cookie()]
		for range 60 {
			to := netip.AddrFrom4([4]byte{192, 0, byte(r.IntN(5)), byte(r.IntN(9))})
			if got, want := lookUp(t, flows, to), firstDecides(f, to); got != want {
				t.Fatalf("%v to %v: got %t, want %t\n%v", f, to, got, want, flows)
			}
			if got, want := recovered.Compile(EgressVerdicts{}).Allows(to), firstDecides(f, to); got != want {
				t.Fatalf("%v to %v: got %t of the recovered rules, want %t", f, to, got, want)
			}
		}
		again := dumped(t, owner, recovered.Compile(EgressVerdicts{}).State())
		if diff := cmp.Diff(flows, again, cmpopts.EquateComparable(ovs.Key{})); len(f.Rules) > 0 && diff != "" {
			t.Fatalf("flows of the recovered rules (-want +got):\n%s", diff)
		}
	}
}

// A changed rule among 1,000 changes its own flow, and an inserted one adds its own.
func TestEgressFirewall_changesOwnFlows(t *testing.T) {
	f := EgressFirewall{ID: 7}
	for i := range uint32(1000) {
		var addr [4]byte
		binary.BigEndian.PutUint32(addr[:], 0xc6336400+i)
		f.Rules = append(f.Rules, EgressFirewallRule{To: []netip.Prefix{single(netip.AddrFrom4(addr))}, Deny: i%2 == 0})
	}
	f.Rules = append(f.Rules, EgressFirewallRule{To: prefixes("0.0.0.0/0"), Deny: true})
	compile := func(rules []EgressFirewallRule) map[string]bool {
		flows := map[string]bool{}
		for line := range strings.Lines(lines(t, EgressFirewall{ID: 7, Rules: rules}.Compile(EgressVerdicts{}).State())) {
			flows[line] = true
		}
		return flows
	}
	before := compile(f.Rules)
	if len(before) != len(f.Rules) {
		t.Errorf("got %d flows, want %d", len(before), len(f.Rules))
	}
	inserted := append([]EgressFirewallRule{{To: prefixes("203.0.113.0/24")}}, f.Rules...)
	changed := append([]EgressFirewallRule{}, f.Rules...)
	changed[500].Deny = !changed[500].Deny
	last := append([]EgressFirewallRule{}, f.Rules...)
	last[1000].Deny = false
	for name, tc := range map[string]struct {
		rules []EgressFirewallRule
		want  int
	}{"inserted first": {inserted, 1}, "changed": {changed, 1}, "deleted": {f.Rules[1:], 0}, "last changed": {last, 1}} {
		added := 0
		for line := range compile(tc.rules) {
			if !before[line] {
				added++
			}
		}
		if added != tc.want {
			t.Errorf("%s: got %d new flows, want %d", name, added, tc.want)
		}
	}
}

// A flow whose actions are neither of the two is not read as one that allows.
func TestEgressFirewallsOf_otherActions(t *testing.T) {
	owner := Owner{KindEgressFirewall, "tenant"}
	for actions, want := range map[string]int{"drop": 1, "goto_table:101": 1, "goto_table:102": 0, "": 0} {
		flow := ovs.DumpedFlow{Cookie: owner.Cookie(), Key: ovs.Key{Table: tableEgressFirewall}, Text: "table=100,priority=100,ip,reg10=0x7,actions=" + actions}
		if got := EgressFirewallsOf([]ovs.DumpedFlow{flow}); len(got) != want {
			t.Errorf("actions %q: got %v, want %d firewalls", actions, got, want)
		}
	}
}

func FuzzEgressFirewallsOf(f *testing.F) {
	f.Add("table=100,priority=124,ip,reg10=0x7,nw_dst=192.0.2.0/24,actions=goto_table:101")
	f.Add("priority=100,ip,reg10=7 actions=drop")
	f.Add("reg10=0x1ffffffff,nw_dst=::/0,actions=drop")
	owner := Owner{KindEgressFirewall, "tenant"}
	f.Fuzz(func(t *testing.T, text string) {
		for _, firewall := range EgressFirewallsOf([]ovs.DumpedFlow{{Cookie: owner.Cookie(), Key: ovs.Key{Table: tableEgressFirewall}, Text: text}}) {
			if firewall.ID == 0 || len(firewall.Rules) != 1 || !firewall.Rules[0].To[0].Addr().Is4() {
				t.Errorf("got %v of %q", firewall, text)
			}
		}
	})
}

// firewallFlows are a node with two pods in different namespaces: pod 3 has the golden firewall, pod 4 has none. Each namespace has two services with outside endpoints.
func firewallFlows(t *testing.T, n Node) []*ovs.Flow {
	t.Helper()
	states := []State{static(t, n), goldenFirewall().Compile(EgressVerdicts{}).State()}
	for port, id := range map[int]EgressFirewallID{3: 7, 4: 0} {
		a, vnid := netip.AddrFrom4([4]byte{10, 128, 0, byte(port)}), config.VNID(0x20+port)
		states = append(states, n.Pod(Pod{OFPort: port, MAC: config.MAC(a), Addrs: []netip.Addr{a}, VNID: vnid, EgressFirewall: id}))
		for last, outside := range map[byte]OutsideEndpoints{1: endpoints("192.0.2.7:8080"), 2: endpoints("192.0.2.7:8080", "198.51.100.7:80")} {
			states = append(states, n.Service(Service{
				ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{172, 30, byte(port), last})}, VNID: vnid,
				Ports: []ServicePort{{Protocol: goovs.ProtocolTCPv4, Port: 80, Outside: outside}},
			}))
		}
	}
	var flows []*ovs.Flow
	for _, s := range states {
		flows = append(flows, s.Flows...)
	}
	return flows
}

// TestTraceEgressFirewall: outside endpoints of services are evaluated by the rules of the client's namespace, and a firewall concerns no other pod.
func TestTraceEgressFirewall(t *testing.T) {
	tier.Parallel(t)
	sw, bridge := realSwitch(t)
	tracer := sw.NewTracer(t)
	cases := []struct {
		to       string // pod 3 to 172.30.3.x, pod 4 to 172.30.4.x
		port     int
		firewall bool // the pod with the firewall reaches it; the other pod reaches all
	}{
		{"192.0.2.7", 80, true},
		{"192.0.2.200", 80, true},
		{"198.51.100.7", 80, false},
		{"198.51.100.8", 80, true},
		{"203.0.113.1", 80, false},
		{"172.31.0.11", 80, false}, // the node
		{"172.31.0.11", 53, true},
		{"10.128.0.1", 80, true}, // tun0
		{"172.30.%d.1", 80, true},
		{"172.30.%d.2", 80, false}, // one of the endpoints is denied
	}
	for _, mode := range []config.Mode{config.ModeSubnet, config.ModeNetworkPolicy, config.ModeMultitenant} {
		if _, err := bridge.Replace(t.Context(), withMeters(t, firewallFlows(t, inMode(mode)))); err != nil {
			t.Fatal(err)
		}
		for _, tc := range cases {
			if mode == config.ModeSubnet && strings.Contains(tc.to, "%d") {
				continue // the endpoints of an external proxy are not evaluated in mode subnet
			}
			for port, want := range map[int]bool{3: tc.firewall, 4: true} {
				to := strings.ReplaceAll(tc.to, "%d", strconv.Itoa(port))
				traces, err := tracer.Trace(fmt.Sprintf("tcp,in_port=%d,dl_src=0a:58:0a:80:00:%02x,nw_src=10.128.0.%d,nw_dst=%s,tcp_dst=%d", port, port, port, to, tc.port))
				if err != nil {
					t.Fatal(err)
				}
				if got := lastOutput(traces[0]) == "2"; got != want {
					t.Errorf("%s: pod %d to %s:%d passes: got %t, want %t\n%s", mode, port, to, tc.port, got, want, traces[0])
				}
			}
		}
	}
}

// TestTraceEgressFirewall_replies: a pod answers clients outside that its firewall denies. Mode subnet tracks no connections.
func TestTraceEgressFirewall_replies(t *testing.T) {
	tier.Parallel(t)
	sw, bridge := realSwitch(t)
	for mode, want := range map[config.Mode]string{config.ModeNetworkPolicy: "2", config.ModeMultitenant: "2", config.ModeSubnet: ""} {
		if _, err := bridge.Replace(t.Context(), withMeters(t, firewallFlows(t, inMode(mode)))); err != nil {
			t.Fatal(err)
		}
		const packet = "tcp,in_port=3,dl_src=0a:58:0a:80:00:03,nw_src=10.128.0.3,nw_dst=203.0.113.1,tcp_src=80,tcp_dst=40000"
		args := []string{"--ct-next", "trk,est,rpl"}
		if mode == config.ModeSubnet {
			args = nil
		}
		trace := sw.Trace(t, packet, args...)
		if got := lastOutput(trace); got != want {
			t.Errorf("%s: output port: got %q, want %q\n%s", mode, got, want, trace)
		}
	}
}

// TestTraceEgressFirewall_missing: a pod whose namespace has a number, but no rules on the switch, reaches no host outside.
func TestTraceEgressFirewall_missing(t *testing.T) {
	tier.Parallel(t)
	sw, bridge := realSwitch(t)
	flows := slices.DeleteFunc(firewallFlows(t, inMode(config.ModeNetworkPolicy)), func(f *ovs.Flow) bool {
		text, err := ovs.FlowText(f)
		return err != nil || strings.Contains(text, "table=100,") && strings.Contains(text, "reg10=0x7")
	})
	if _, err := bridge.Replace(t.Context(), withMeters(t, flows)); err != nil {
		t.Fatal(err)
	}
	for packet, want := range map[string]string{
		"tcp,in_port=3,dl_src=0a:58:0a:80:00:03,nw_src=10.128.0.3,nw_dst=192.0.2.7,tcp_dst=80": "",
		"tcp,in_port=4,dl_src=0a:58:0a:80:00:04,nw_src=10.128.0.4,nw_dst=192.0.2.7,tcp_dst=80": "2",
	} {
		trace := sw.Trace(t, packet)
		if got := lastOutput(trace); got != want {
			t.Errorf("output port: got %q, want %q\n%s", got, want, trace)
		}
	}
}

// Compile retains the flows of a previous compilation that do not change, and no others.
func TestEgressFirewall_Compile(t *testing.T) {
	r := seed.Rand(t)
	for range 500 {
		a, b := randomFirewall(r, r.IntN(6)), randomFirewall(r, r.IntN(6))
		previous := a.Compile(EgressVerdicts{})
		got, want := b.Compile(previous), b.Compile(EgressVerdicts{})
		if diff := cmp.Diff(lines(t, want.State()), lines(t, got.State())); diff != "" || !got.Equal(want) {
			t.Fatalf("%v after %v (-want +got):\n%s", b, a, diff)
		}
		before := map[string]*ovs.Flow{}
		for _, f := range previous.State().Flows {
			before[lines(t, State{Flows: []*ovs.Flow{f}})] = f
		}
		for _, f := range got.State().Flows {
			if earlier := before[lines(t, State{Flows: []*ovs.Flow{f}})]; earlier != nil && earlier != f {
				t.Fatalf("%v after %v: flow %v was compiled again", b, a, f)
			}
		}
		if again := b.Compile(got); got.Equal(previous) != (lines(t, got.State()) == lines(t, previous.State())) || !again.Equal(got) {
			t.Fatalf("%v after %v: got another result of Equal", b, a)
		}
	}
}
