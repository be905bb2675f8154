package egressassignment

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/seed"
)

func addr(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{192, 0, byte(2 + n>>8), byte(n)})
}

// hostOf parses "name! cidrs: ips", in which ! is an unusable host, and IPs are last bytes of 192.0.2.0/24.
func hostOf(s string) host {
	head, ips, _ := strings.Cut(s, ":")
	fields := strings.Fields(head)
	h := host{name: strings.TrimSuffix(fields[0], "!"), isUsable: !strings.HasSuffix(fields[0], "!")}
	for _, c := range fields[1:] {
		h.cidrs = append(h.cidrs, netip.MustParsePrefix("192.0.2."+c))
	}
	for _, ip := range strings.Fields(ips) {
		h.ips = append(h.ips, netip.MustParseAddr("192.0.2."+ip))
	}
	return h
}

// wantedOf parses "namespace: ips".
func wantedOf(all ...string) map[netip.Addr]string {
	wanted := map[netip.Addr]string{}
	for _, s := range all {
		name, ips, _ := strings.Cut(s, ":")
		for _, ip := range strings.Fields(ips) {
			wanted[netip.MustParseAddr("192.0.2."+ip)] = name
		}
	}
	return wanted
}

func TestPlan(t *testing.T) {
	for name, tc := range map[string]struct {
		hosts  []string
		wanted []string
		want   map[string]string // last bytes
	}{
		"none":           {[]string{"a 0/24:"}, nil, map[string]string{"a": ""}},
		"one":            {[]string{"a 0/24:"}, []string{"x: 1"}, map[string]string{"a": "1"}},
		"no host":        {nil, []string{"x: 1"}, map[string]string{}},
		"other range":    {[]string{"a 128/25:"}, []string{"x: 1"}, map[string]string{"a": ""}},
		"fewest":         {[]string{"a 0/24: 1 2", "b 0/24: 3"}, []string{"x: 1 2 3 4"}, map[string]string{"a": "1 2", "b": "3 4"}},
		"spreads":        {[]string{"a 0/24:", "b 0/24:"}, []string{"x: 1 3", "y: 2"}, map[string]string{"a": "1", "b": "2 3"}},
		"other host":     {[]string{"a 0/24:", "b 0/24:", "c 0/24: 9"}, []string{"x: 1 2 3", "z: 9"}, map[string]string{"a": "1", "b": "2", "c": "3 9"}},
		"not wanted":     {[]string{"a 0/24: 1 2"}, []string{"x: 2"}, map[string]string{"a": "2"}},
		"dead":           {[]string{"a! 0/24: 1 2", "b 0/24: 3", "c 0/24: 4"}, []string{"x: 1 2 3 4"}, map[string]string{"a": "", "b": "1 3", "c": "2 4"}},
		"dead, only":     {[]string{"a! 0/24: 1", "b 128/25:"}, []string{"x: 1"}, map[string]string{"a": "1", "b": ""}},
		"dead, not new":  {[]string{"a! 0/24:"}, []string{"x: 1"}, map[string]string{"a": ""}},
		"returns":        {[]string{"a 0/24:", "b 0/24: 1 3 5", "c 0/24: 2 4 6"}, []string{"x: 1 2 3 4 5 6"}, map[string]string{"a": "5 6", "b": "1 3", "c": "2 4"}},
		"returns to few": {[]string{"a 0/24:", "b 0/24: 1", "c 0/24: 2"}, []string{"x: 1 2"}, map[string]string{"a": "", "b": "1", "c": "2"}},
		"left range":     {[]string{"a 128/25: 1", "b 0/24:"}, []string{"x: 1"}, map[string]string{"a": "", "b": "1"}},
		"twice":          {[]string{"b 0/24: 1", "a 0/24: 1"}, []string{"x: 1"}, map[string]string{"a": "1", "b": ""}},
		"by a third":     {[]string{"a 0/25: 1 2", "b 0/24: 3 200", "c 128/25:"}, []string{"x: 1 2 3 200"}, map[string]string{"a": "1 2", "b": "3", "c": "200"}},
		"sequence":       {[]string{"a 0/25: 1 2 3", "b 0/24: 4 200", "c 128/25: 201"}, []string{"x: 1 2 3 4 200 201"}, map[string]string{"a": "1 2", "b": "3 4", "c": "200 201"}},
		"constrained":    {[]string{"a 1/32:", "b 0/24:"}, []string{"x: 1 2"}, map[string]string{"a": "1", "b": "2"}},
		"moves a second": {[]string{"a 0/24: 1 2 9", "b 0/24:"}, []string{"x: 1 2", "y: 9"}, map[string]string{"a": "1 9", "b": "2"}},
	} {
		var hosts []host
		for _, h := range tc.hosts {
			hosts = append(hosts, hostOf(h))
		}
		got := map[string]string{}
		for h, ips := range plan(hosts, wantedOf(tc.wanted...), nil) {
			var last []string
			for _, a := range ips {
				last = append(last, fmt.Sprint(a.As4()[3]))
			}
			got[h] = strings.Join(last, " ")
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// Of several hosts, the one that had the IP before retains it.
func TestPlan_placed(t *testing.T) {
	hosts := []host{hostOf("a 0/24: 1 2"), hostOf("b 0/24: 2"), hostOf("c 0/24: 2")}
	got := plan(hosts, wantedOf("x: 1 2"), map[netip.Addr]string{netip.MustParseAddr("192.0.2.2"): "b"})
	want := map[string][]netip.Addr{"a": {netip.MustParseAddr("192.0.2.1")}, "b": {netip.MustParseAddr("192.0.2.2")}, "c": nil}
	if !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A node has no more IPs than agents accept.
func TestPlan_limit(t *testing.T) {
	wanted := map[netip.Addr]string{}
	for i := range config.MaxNodeEgressIPs + 10 {
		wanted[addr(i)] = "x"
	}
	hosts := []host{{name: "a", isUsable: true, cidrs: []netip.Prefix{netip.MustParsePrefix("192.0.0.0/16")}}}
	first := plan(hosts, wanted, nil)
	if n := len(first["a"]); n != config.MaxNodeEgressIPs {
		t.Errorf("got %d IPs, want %d", n, config.MaxNodeEgressIPs)
	}
	hosts[0].ips = first["a"]
	if diff := cmp.Diff(first, plan(hosts, wanted, nil), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("a second plan differs:\n%s", diff)
	}
}

// The cost of a move grows with the number of hosts, not with its square.
func TestPlan_manyHosts(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: compares times")
	}
	const nodes, ips, limit = 600, 20, 5 * time.Second
	cidrs := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	wanted := map[netip.Addr]string{}
	var hosts []host
	for n := range nodes {
		h := host{name: fmt.Sprint("node", n), isUsable: true, cidrs: cidrs}
		for i := range ips * (n % 2) { // half of the nodes are new
			a := netip.AddrFrom4([4]byte{10, byte(n >> 8), byte(n), byte(i)})
			h.ips = append(h.ips, a)
			wanted[a] = fmt.Sprint("ns", n)
		}
		hosts = append(hosts, h)
	}
	start := cpuTime(t)
	result := plan(hosts, wanted, nil)
	took := cpuTime(t) - start
	t.Logf("moved %d IPs in %v of CPU time", len(wanted)/2, took)
	for name, got := range result {
		if len(got) != ips/2 {
			t.Fatalf("%s has %d IPs, want %d", name, len(got), ips/2)
		}
	}
	if took > limit {
		t.Errorf("planned in %v of CPU time, want at most %v", took, limit)
	}
}

// drawCluster returns hosts, with IPs of earlier plans and others, and wanted IPs.
func drawCluster(t *rapid.T) (hosts []host, wanted map[netip.Addr]string, isUniform bool) {
	ranges := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.0.2.0/26"), netip.MustParsePrefix("192.0.2.32/27"), netip.MustParsePrefix("192.0.2.16/28")}
	isUniform = rapid.Bool().Draw(t, "uniform")
	ips := rapid.SliceOfDistinct(rapid.IntRange(0, 63), func(i int) int { return i })
	wanted = map[netip.Addr]string{}
	for _, i := range ips.Draw(t, "wanted") {
		wanted[addr(i)] = rapid.SampledFrom([]string{"x", "y", "z"}).Draw(t, "namespace")
	}
	for i := range rapid.IntRange(0, 6).Draw(t, "hosts") {
		h := host{name: fmt.Sprintf("node%d", i), isUsable: rapid.IntRange(0, 4).Draw(t, "usable") > 0, cidrs: ranges[:1]}
		if !isUniform {
			h.cidrs = rapid.SliceOfN(rapid.SampledFrom(ranges), 0, 2).Draw(t, "cidrs")
		}
		for _, a := range rapid.SliceOfN(rapid.IntRange(0, 63), 0, 20).Draw(t, "ips") {
			if !slices.Contains(h.ips, addr(a)) {
				h.ips = append(h.ips, addr(a))
			}
		}
		hosts = append(hosts, h)
	}
	return hosts, wanted, isUniform
}

// Each IP has at most one host, in whose CIDRs it is, and has one if it can. No IP moves without need.
func TestPlan_properties(t *testing.T) {
	seed.Fix(t)
	rapid.Check(t, func(t *rapid.T) {
		hosts, wanted, isUniform := drawCluster(t)
		result := plan(hosts, wanted, nil)
		at := map[netip.Addr]string{}
		for _, h := range hosts {
			for _, a := range result[h.name] {
				if at[a] != "" || wanted[a] == "" || !h.fits(a) || !h.isUsable && !slices.Contains(h.ips, a) {
					t.Fatalf("%s on %s: also on %q, wanted by %q", a, h.name, at[a], wanted[a])
				}
				at[a] = h.name
			}
		}
		for a := range wanted {
			candidate := slices.ContainsFunc(hosts, func(h host) bool { return h.isUsable && h.fits(a) })
			if i := slices.IndexFunc(hosts, func(h host) bool { return h.name == at[a] }); candidate && (i < 0 || !hosts[i].isUsable) {
				t.Fatalf("%s has host %q, and could have a usable one", a, at[a])
			}
		}
		checkLoads(t, hosts, wanted, result)
		if isUniform {
			checkMoves(t, hosts, wanted, at, result)
		}
		for i := range hosts {
			hosts[i].ips = result[hosts[i].name]
		}
		slices.Reverse(hosts)
		if again := plan(hosts, wanted, nil); !maps.EqualFunc(result, again, slices.Equal) {
			t.Fatalf("a second plan differs: %v, then %v", result, again)
		}
	})
}

// checkLoads: no host could have given an IP, directly, to one with two fewer.
func checkLoads(t *rapid.T, hosts []host, wanted map[netip.Addr]string, result map[string][]netip.Addr) {
	for _, from := range hosts {
		for _, to := range hosts {
			movable := slices.ContainsFunc(result[from.name], func(a netip.Addr) bool { return to.fits(a) })
			if from.isUsable && to.isUsable && movable && len(result[from.name]) > len(result[to.name])+1 {
				t.Fatalf("%s has %d of %d IPs, and %s has %d", from.name, len(result[from.name]), len(wanted), to.name, len(result[to.name]))
			}
		}
	}
}

// checkMoves: among hosts with the same CIDRs, as few IPs move from usable hosts as any balanced result needs.
func checkMoves(t *rapid.T, hosts []host, wanted map[netip.Addr]string, at map[netip.Addr]string, result map[string][]netip.Addr) {
	retained, moved, usable, total := map[string]int{}, 0, 0, 0
	seen := map[netip.Addr]bool{}
	for _, h := range hosts {
		if !h.isUsable {
			continue
		}
		usable++
		total += len(result[h.name])
		for _, a := range h.ips {
			if wanted[a] == "" || seen[a] {
				continue
			}
			seen[a] = true
			retained[h.name]++
			if at[a] != h.name {
				moved++
			}
		}
	}
	if usable == 0 {
		return
	}
	quota, extra := total/usable, total%usable
	need := 0
	for _, n := range retained {
		need += max(0, n-quota)
		if n > quota && extra > 0 {
			need, extra = need-1, extra-1
		}
	}
	if moved != need {
		t.Fatalf("moved %d IPs, want %d: retained %v, result %v", moved, need, retained, result)
	}
}

// No sequence of moves makes loads more equal.
func TestPlan_sequences(t *testing.T) {
	seed.Fix(t)
	rapid.Check(t, func(t *rapid.T) {
		hosts, wanted, _ := drawCluster(t)
		result := plan(hosts, wanted, nil)
		hosts = slices.DeleteFunc(hosts, func(h host) bool { return !h.isUsable })
		can := func(from, to host) bool {
			return slices.ContainsFunc(result[from.name], func(a netip.Addr) bool { return to.fits(a) })
		}
		for _, a := range hosts {
			reached := map[string]bool{a.name: true}
			for range hosts {
				for _, from := range hosts {
					for _, to := range hosts {
						if reached[from.name] && can(from, to) {
							reached[to.name] = true
						}
					}
				}
			}
			for name := range reached {
				if len(result[a.name]) > len(result[name])+1 {
					t.Fatalf("%s has %d IPs, and %s, which a sequence reaches, has %d", a.name, len(result[a.name]), name, len(result[name]))
				}
			}
		}
	})
}
