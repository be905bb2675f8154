package egressip

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ovsdn/ovsdn/test/seed"
	"github.com/ovsdn/ovsdn/test/tier"
)

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func addrs(list ...string) (all []netip.Addr) {
	for _, s := range list {
		all = append(all, addr(s))
	}
	return all
}

func table() *Table {
	return New([]netip.Prefix{netip.MustParsePrefix("10.128.0.0/14"), netip.MustParsePrefix("172.30.0.0/16")})
}

func TestIP_problems(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(*Table)
		want Problem
	}{
		"used": {func(t *Table) {
			t.SetNamespace("a", addrs("192.0.2.100"))
			t.SetNode("n1", Node{Addr: addr("192.0.2.1"), IPs: addrs("192.0.2.100")})
		}, ""},
		"unhosted": {func(t *Table) { t.SetNamespace("a", addrs("192.0.2.100")) }, Unhosted},
		"unused":   {func(t *Table) { t.SetNode("n1", Node{Addr: addr("192.0.2.1"), IPs: addrs("192.0.2.100")}) }, Unused},
		"two nodes": {func(t *Table) {
			t.SetNamespace("a", addrs("192.0.2.100"))
			t.SetNode("n1", Node{Addr: addr("192.0.2.1"), IPs: addrs("192.0.2.100")})
			t.SetNode("n2", Node{Addr: addr("192.0.2.2"), IPs: addrs("192.0.2.100")})
		}, ManyNodes},
		"two namespaces": {func(t *Table) {
			t.SetNamespace("a", addrs("192.0.2.100"))
			t.SetNamespace("b", addrs("192.0.2.101", "192.0.2.100"))
			t.SetNode("n1", Node{Addr: addr("192.0.2.1"), IPs: addrs("192.0.2.100")})
		}, ManyNames},
		"address of a node": {func(t *Table) {
			t.SetNamespace("a", addrs("192.0.2.100"))
			t.SetNode("n1", Node{Addr: addr("192.0.2.1"), IPs: addrs("192.0.2.100")})
			t.SetNode("n2", Node{Addr: addr("192.0.2.100")})
		}, NodeAddress},
		"unreachable": {func(t *Table) {
			t.SetNamespace("a", addrs("192.0.2.100"))
			t.SetNode("n1", Node{Addr: addr("192.0.2.1"), IPs: addrs("192.0.2.100"), Unreachable: true})
		}, NotReachable},
	} {
		t.Run(name, func(t *testing.T) {
			tab := table()
			c.set(tab)
			if got := tab.IP(addr("192.0.2.100")).Problem; got != c.want {
				t.Errorf("problem is %q, want %q", got, c.want)
			}
		})
	}
	tab := table()
	tab.SetNamespace("a", addrs("10.129.0.5"))
	tab.SetNode("n1", Node{Addr: addr("192.0.2.1"), IPs: addrs("10.129.0.5")})
	if got := tab.IP(addr("10.129.0.5")).Problem; got != InNetwork {
		t.Errorf("problem of an address in the cluster network is %q, want %q", got, InNetwork)
	}
}

func TestNamespace_prefersReachableNodes(t *testing.T) {
	tab := table()
	tab.SetNamespace("a", addrs("192.0.2.101", "192.0.2.102"))
	tab.SetNode("n1", Node{Addr: addr("192.0.2.1"), IPs: addrs("192.0.2.101"), Unreachable: true})
	tab.SetNode("n2", Node{Addr: addr("192.0.2.2"), IPs: addrs("192.0.2.102")})
	check := func(want ...string) {
		t.Helper()
		got, asks := tab.Namespace("a")
		if !asks || !slices.Equal(got, addrs(want...)) {
			t.Errorf("got %v, asks %t, want %v", got, asks, want)
		}
	}
	check("192.0.2.102")
	tab.SetNode("n2", Node{Addr: addr("192.0.2.2"), IPs: addrs("192.0.2.102"), Unreachable: true})
	check("192.0.2.101", "192.0.2.102")
	tab.SetNode("n1", Node{})
	check("192.0.2.102")
	tab.SetNode("n2", Node{})
	check()
	tab.SetNamespace("a", nil)
	if _, asks := tab.Namespace("a"); asks || len(tab.IPs()) != 0 {
		t.Errorf("namespace without egress IPs asks for some; the table has %v", tab.IPs())
	}
}

// After each change the state is that of a new table with the same objects, and IPs that were not returned have their previous state.
func TestTable_equalsNewTable(t *testing.T) {
	random := seed.Rand(t)
	pool := addrs("192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.100", "192.0.2.101", "192.0.2.102", "10.128.0.9")
	some := func() []netip.Addr {
		ips := slices.Clone(pool)
		random.Shuffle(len(ips), func(i, j int) { ips[i], ips[j] = ips[j], ips[i] })
		return ips[:random.IntN(4)]
	}
	tab := table()
	for step := range tier.Size(t, 1_000, 5_000, "random changes") {
		before := states(tab, pool)
		var changed []netip.Addr
		name := fmt.Sprint("x", random.IntN(4))
		if random.IntN(2) == 0 {
			changed = tab.SetNamespace(name, some())
		} else {
			n := Node{Addr: pool[random.IntN(3)], IPs: some(), Unreachable: random.IntN(3) == 0}
			if random.IntN(5) == 0 {
				n = Node{}
			}
			changed = tab.SetNode(name, n)
		}
		again := table()
		for name, n := range tab.nodes {
			again.SetNode(name, n)
		}
		for name, ips := range tab.namespaces {
			again.SetNamespace(name, ips)
		}
		now := states(tab, pool)
		if diff := diff(states(again, pool), now); diff != "" {
			t.Fatalf("step %d: state differs from that of a new table (-new +got):\n%s", step, diff)
		}
		for i, a := range pool {
			if !slices.Contains(changed, a) && diff(before[i], now[i]) != "" {
				t.Fatalf("step %d: change of %s was not returned: %+v, now %+v", step, a, before[i], now[i])
			}
		}
	}
}

// diff is cmp.Diff, which takes ten times as long as reflect.DeepEqual to find that values are equal.
func diff(want, got any) string {
	if reflect.DeepEqual(want, got) {
		return ""
	}
	return cmp.Diff(want, got, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{}))
}

func states(t *Table, ips []netip.Addr) (all []IP) {
	for _, a := range ips {
		all = append(all, t.IP(a))
	}
	return all
}

func TestSelect_movesPodsOfTheRemovedIPOnly(t *testing.T) {
	ips := addrs("192.0.2.100", "192.0.2.101", "192.0.2.102", "192.0.2.103")
	count := map[netip.Addr]int{}
	pod := addr("10.128.0.2")
	for range 1_000 {
		before := Select(pod, ips)
		count[before]++
		if now := Select(pod, ips[1:]); before != ips[0] && now != before {
			t.Fatalf("pod %s moved from %s to %s, though %s remains", pod, before, now, before)
		}
		pod = pod.Next()
	}
	for _, a := range ips {
		if count[a] < 200 || count[a] > 300 {
			t.Errorf("%d of 1,000 pods have %s, want about 250", count[a], a)
		}
	}
	if got := Select(pod, nil); got.IsValid() {
		t.Errorf("selected %s of no IPs", got)
	}
}
