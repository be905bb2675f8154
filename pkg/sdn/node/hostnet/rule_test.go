package hostnet

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ovsdn/ovsdn/test/seed"
)

func TestParseRule(t *testing.T) {
	for line, want := range map[string]Rule{
		`-A FORWARD -j DROP`: {"-j", "DROP"},
		`-A FORWARD`:         {},
		`-A X -m comment --comment "a \"b\" \\ c"`:  {"-m", "comment", "--comment", `a "b" \ c`},
		`-A X -m comment --comment "kube\'s" -j Y`:  {"-m", "comment", "--comment", "kube's", "-j", "Y"},
		`-A X -m comment --comment "" -j Y`:         {"-m", "comment", "--comment", "", "-j", "Y"},
		`-P FORWARD ACCEPT`:                         nil,
		`-N OVSDN-INPUT`:                            nil,
		`# Warning: iptables-legacy tables present`: nil,
		``: nil,
	} {
		got, ok, err := parseRule(line)
		if err != nil || ok != (want != nil) || !cmp.Equal(got, want) && len(want) > 0 {
			t.Errorf("%s: got %q, %v, %v; want %q", line, got, ok, err, want)
		}
	}
	_, _, err := parseRule(`-A X --comment "open`)
	wantError(t, err, "quote is not closed", "-A X")
}

func FuzzParseRule(f *testing.F) {
	f.Add(`-A OVSDN-INPUT -p udp -m udp --dport 4789 -m comment --comment "VXLAN from nodes" -j ACCEPT`)
	f.Add(`-A X "\\" '" \`)
	f.Add(`-A X ! -s 10.128.0.1/255.252.1.255 -i tun+ -m conntrack ! --ctstate NEW -m set --match-set X src,dst --comment`)
	f.Fuzz(func(t *testing.T, line string) {
		r, ok, err := parseRule(line)
		if err != nil || !ok {
			return
		}
		again, _, err := parseRule("-A X " + r.String())
		if err != nil || !slices.Equal(r, again) {
			t.Errorf("%q is printed as %s, which is parsed as %q, %v", r, r, again, err)
		}
		p := rulePacket{source: netip.MustParseAddr("10.128.0.2"), isVTEP: func(netip.Addr) matched { return matchesNot }}
		if m := p.matches(r); m < matchesNot || m > matches {
			t.Errorf("%q: matches %d", r, m)
		}
	})
}

func TestParseDrops(t *testing.T) {
	for line, want := range map[string]RuleDrops{
		`-A X -i tun0 -m comment --comment "no access" -c 3 180 -j DROP`: {`-i tun0 -m comment --comment "no access" -j DROP`, "no access", 3},
		`-A X -c 7 0 -j REJECT --reject-with icmp-port-unreachable`:      {`-j REJECT --reject-with icmp-port-unreachable`, "", 7},
		`-A X -i tun0 -m comment --comment "allowed" -c 3 180 -j ACCEPT`: {},
		`-A X -j DROP`:  {},
		`-N X -c 3 180`: {},
		`-A X -c 3`:     {},
		``:              {},
	} {
		if got, ok, err := parseDrops(line); err != nil || ok != (want.Rule != "") || got != want && ok {
			t.Errorf("%s: got %v, %v, %v; want %v", line, got, ok, err, want)
		}
	}
	_, _, err := parseDrops(`-A X -c many 180 -j DROP`)
	wantError(t, err, "counters", "many")
}

func FuzzParseDrops(f *testing.F) {
	f.Add(`-A OVSDN-GUARD-VXLAN -p udp -m udp --dport 4789 -m comment --comment "VXLAN of an unknown VTEP" -c 2 100 -j DROP`)
	f.Add(`-A X -j DROP -c`)
	f.Fuzz(func(t *testing.T, line string) {
		if d, ok, err := parseDrops(line); (!ok || err != nil) && d.Packets > 0 {
			t.Errorf("got %d packets of no rule, error %v", d.Packets, err)
		}
	})
}

// TestEdits checks on random chains that edits lead where they should, and that no rule which is in the chain
// before and after is ever missing on the way.
func TestEdits(t *testing.T) {
	seed.Fix(t)
	rapid.Check(t, func(t *rapid.T) {
		chain := rapid.SliceOfN(rapid.Map(rapid.SampledFrom([]string{"A", "B", "C", "D"}), func(s string) Rule { return Rule{s} }), 0, 6)
		have, want := chain.Draw(t, "have"), chain.Draw(t, "want")
		now := slices.Clone(have)
		for _, e := range edits(have, want) {
			if e.insert != nil {
				now = slices.Insert(now, e.at-1, e.insert)
			} else {
				now = slices.Delete(now, e.at-1, e.at)
			}
			for _, r := range have {
				if containsRule(want, r) && !containsRule(now, r) {
					t.Fatalf("%q is missing from %q on the way from %q to %q", r, now, have, want)
				}
			}
		}
		if !slices.EqualFunc(now, want, Rule.equal) {
			t.Fatalf("from %q comes %q, want %q", have, now, want)
		}
		if slices.EqualFunc(have, want, Rule.equal) && len(edits(have, want)) > 0 {
			t.Fatalf("edits although nothing differs")
		}
	})
}
