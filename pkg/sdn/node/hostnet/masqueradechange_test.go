package hostnet

import (
	"net/netip"
	"slices"
	"testing"
)

// packet is one that passes OVSDN-MASQUERADE.
type packet struct {
	from, to string
	isNode   bool // to is in the set of VTEPs
}

// masquerades evaluates the rules of the chain.
func (p packet) masquerades(t *testing.T, rules []Rule) bool {
	t.Helper()
	for _, r := range rules {
		if !p.matches(t, r) {
			continue
		}
		return r.target() == "MASQUERADE"
	}
	return false
}

func (p packet) matches(t *testing.T, r Rule) bool {
	t.Helper()
	in := func(network, addr string) bool {
		return netip.MustParsePrefix(network).Contains(netip.MustParseAddr(addr))
	}
	for i := 0; r[i] != "-j"; {
		want := r[i] != "!"
		if !want {
			i++
		}
		var match bool
		switch r[i] {
		case "-s":
			match = in(r[i+1], p.from)
		case "-d":
			match = in(r[i+1], p.to)
		case "-o": // no packet is to tun0
		case "--match-set":
			match = p.isNode
			i++ // dst
		case "--mark", "--ctstate":
		case "-m", "--comment":
			match = true
		default:
			t.Fatalf("unknown match %q of rule %s", r[i], r)
		}
		if match != want {
			return false
		}
		i += 2
	}
	return true
}

// While the rules change, each packet gets the source of the previous rules or that of the new ones.
func TestMasquerade_whileRulesChange(t *testing.T) {
	several := func(c FirewallConfig) FirewallConfig {
		c.ClusterNetworks, c.MasqueradeServices = prefixes("10.128.0.0/14", "10.64.0.0/16"), true
		return c
	}
	with := func(networks ...string) FirewallConfig {
		c := openShift()
		c.NonMasqueradeCIDRs = prefixes(networks...)
		return c
	}
	chains := [][]Rule{ // the first are those of versions without settings
		{
			rule([]string{"-m", "mark", "--mark", kubeMark}, "masqueraded by kube-proxy", "RETURN"),
			rule([]string{"-s", "10.128.0.0/14", "!", "-d", "10.128.0.0/14"}, "pod to the world", "MASQUERADE"),
		},
		{
			rule([]string{"-m", "mark", "--mark", kubeMark}, "masqueraded by kube-proxy", "RETURN"),
			rule([]string{"-d", "10.128.0.0/14"}, "to a pod", "RETURN"), rule([]string{"-d", "10.64.0.0/16"}, "to a pod", "RETURN"),
			rule([]string{"-s", "10.128.0.0/14"}, "pod to the world", "MASQUERADE"), rule([]string{"-s", "10.64.0.0/16"}, "pod to the world", "MASQUERADE"),
		},
	}
	for _, c := range []FirewallConfig{
		openShift(), notMasqueraded(openShift()), with("192.0.2.0/24"), with("198.51.100.0/24"), with("192.0.2.0/25", "192.0.2.128/25"), with("192.0.2.0/24", "198.51.100.0/24"),
		with("0.0.0.0/0"), several(openShift()), several(with("192.0.2.0/24")), several(notMasqueraded(openShift())), balancedServices(), notMasqueraded(balancedServices()),
	} {
		chain := c.masqueradeChain(ipv4(c.ClusterNetworks))
		chains = append(chains, chain.Rules)
		chains = append(chains, chain.Fallbacks...)
	}
	packets := []packet{
		{from: "10.128.0.2", to: "192.0.2.1"}, {from: "10.128.0.2", to: "198.51.100.1"}, {from: "10.128.0.2", to: "203.0.113.1"}, {from: "10.128.0.2", to: "10.130.0.2"},
		{from: "10.128.0.2", to: "192.0.2.2", isNode: true}, {from: "10.128.0.2", to: "203.0.113.2", isNode: true}, {from: "192.0.2.10", to: "203.0.113.1"},
		{from: "10.130.0.2", to: "203.0.113.1"},
	}
	for _, have := range chains {
		for _, want := range chains {
			changing := slices.Clone(have)
			for _, e := range edits(have, want) {
				if e.insert != nil {
					changing = slices.Insert(changing, e.at-1, e.insert)
				} else {
					changing = slices.Delete(changing, e.at-1, e.at)
				}
				for _, p := range packets {
					if got, before, after := p.masquerades(t, changing), p.masquerades(t, have), p.masquerades(t, want); got != before && got != after {
						t.Fatalf("packet %+v: got masqueraded %t, want %t\nchange from %v\nto %v\nat %v", p, got, before, have, want, changing)
					}
				}
			}
		}
	}
}
