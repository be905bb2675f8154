package pipeline

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/tier"
)

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

// onSwitch returns the state with numbers in place of the names of groups, as the flow store installs it.
func onSwitch(t *testing.T, states ...State) ovs.State {
	t.Helper()
	var all ovs.State
	for _, s := range states {
		numbers := map[string]uint32{}
		for _, g := range s.Groups {
			numbers[g.Name] = uint32(len(all.Groups)) + 1 //nolint:gosec // few
			all.Groups = append(all.Groups, ovs.Group{ID: numbers[g.Name], Buckets: g.Buckets})
		}
		for _, f := range s.Flows {
			flow := *f
			flow.Actions = slices.Clone(f.Actions)
			for i, a := range flow.Actions {
				if r, ok := a.(Reference); ok {
					flow.Actions[i] = ovs.ToGroup(numbers[r.Group])
				}
			}
			all.Flows = append(all.Flows, &flow)
		}
		all.Meters = append(all.Meters, s.Meters...)
	}
	return all
}

func static(t *testing.T, n Node) State {
	t.Helper()
	s, err := n.Static()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Every table has a unique name and a flow that matches everything, and every goto has a table with a higher number as its target.
func TestTables(t *testing.T) {
	names := TableNames()
	seen := map[string]int{}
	for table, name := range names {
		if other, ok := seen[name]; ok {
			t.Errorf("tables %d and %d both have the name %s, want unique names: OVS shows none that two tables share", table, other, name)
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
					t.Errorf("table %d has a goto to table %d, want one with a name and a higher number", f.Table, next)
				}
			}
		}
	}
	for table := range names {
		if !defaults[table] {
			t.Errorf("table %d (%s) has no flow that matches everything: packets that match no flow are not counted", table, names[table])
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
		t.Errorf("version of the same flows: got %s and %s, want equal ones", one, again)
	}
	if !strings.HasPrefix(one, "note:00.") {
		t.Errorf("version: got %s, want prefix note:00., the plugin ID of mode subnet", one)
	}
	other := subnetNode()
	other.VXLANPort = 8472
	if note(other) == one {
		t.Errorf("version of other flows: got %s again, want another one", one)
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
		t.Errorf("got %d flows, the first with %d actions; want 1 with %d", len(flows), len(flows[0].Actions), 2+2*maxMulticastNodes)
	}
}

func TestCookies(t *testing.T) {
	seen := map[uint64]Owner{}
	for kind := KindNode; kind <= KindPolicy; kind++ {
		for i := range 10000 {
			o := Owner{Kind: kind, Key: fmt.Sprintf("namespace-%d/name", i)}
			c := o.Cookie()
			if other, ok := seen[c]; ok {
				t.Fatalf("%v and %v both have cookie %#x, want unique ones", o, other, c)
			}
			if c == SharedCookie() || CookieKind(c) != kind {
				t.Fatalf("cookie of %v: got %#x, want its kind in the first byte, and not the shared one", o, c)
			}
			seen[c] = o
		}
	}
}

// The meters of all ports differ, and have numbers that Open vSwitch accepts.
func TestMeterNumbersDiffer(t *testing.T) {
	tier.Parallel(t)
	n := inMode(config.ModeNetworkPolicy)
	seen := map[uint32]int{}
	add := func(port int, s State) {
		for _, m := range s.Meters {
			if _, err := ovs.MeterText(m); err != nil {
				t.Error(err)
			}
			if other, ok := seen[m.ID]; ok {
				t.Errorf("ports %d and %d both have meter %d, want unique ones", other, port, m.ID)
			}
			seen[m.ID] = port
		}
	}
	add(0, static(t, n))
	const last = 0xfeff // OFPP_MAX of OpenFlow 1.0
	for port := PortTun + 1; port <= last; port++ {
		add(port, n.Pod(Pod{OFPort: port, Addrs: []netip.Addr{netip.MustParseAddr("10.128.0.5")}, Policies: PodPolicies{Evaluated: true, Logged: true}}))
	}
	if want := 2 + 3*(last-PortTun); len(seen) != want {
		t.Errorf("got %d meters, want %d", len(seen), want)
	}
}
