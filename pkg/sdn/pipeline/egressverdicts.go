package pipeline

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// EgressVerdicts is a compiled egress firewall: one verdict and flow for each prefix of its rules. The zero value has none and allows all.
type EgressVerdicts struct {
	id  EgressFirewallID
	all []verdict // sorted by comparePrefixes; the first is that of all addresses
}

// verdict is the verdict for the addresses of a prefix that are in no longer prefix of the rules.
type verdict struct {
	to    netip.Prefix
	deny  bool
	wider int // index of the longest other prefix that has all of this one; -1: none
	flow  *ovs.Flow
}

// everywhere is the prefix of all addresses.
func everywhere() netip.Prefix { return netip.PrefixFrom(netip.IPv4Unspecified(), 0) }

// comparePrefixes orders prefixes so that those within a prefix directly follow it.
func comparePrefixes(a, b netip.Prefix) int {
	if c := a.Addr().Compare(b.Addr()); c != 0 {
		return c
	}
	return cmp.Compare(a.Bits(), b.Bits())
}

// Compile compiles the egress firewall of a namespace: one flow for each prefix, whose priority is its length. The verdict of a prefix is that of the first rule
// which has all of it: prefixes are nested or disjoint, so the longest one that has an address is also in all others that have it. No flow depends on the place of
// its rule, and a changed rule changes no flow of the rules before or after it that decide as before. Flows that are equal to those of previous, which has the
// same Export, are the same objects.
func (f EgressFirewall) Compile(previous EgressVerdicts) EgressVerdicts {
	all := verdicts(f.Rules)
	earlier := previous.all
	if previous.id != f.ID {
		earlier = nil
	}
	for i := range all {
		v := &all[i]
		for len(earlier) > 0 && comparePrefixes(earlier[0].to, v.to) < 0 {
			earlier = earlier[1:]
		}
		if len(earlier) > 0 && earlier[0].to == v.to && earlier[0].deny == v.deny {
			v.flow = earlier[0].flow
		} else {
			v.flow = f.flow(*v)
		}
	}
	return EgressVerdicts{f.ID, all}
}

// verdicts returns the verdict of each prefix, and that of all other addresses, sorted.
func verdicts(rules []EgressFirewallRule) []verdict {
	type prefix struct {
		to   netip.Prefix
		rule int // the first that has all of it
	}
	prefixes := make([]prefix, 0, len(rules)+1)
	for i, r := range rules {
		for _, to := range r.To {
			if to.Addr().Is4() {
				prefixes = append(prefixes, prefix{to.Masked(), i})
			}
		}
	}
	prefixes = append(prefixes, prefix{everywhere(), len(rules)})
	slices.SortStableFunc(prefixes, func(a, b prefix) int { return comparePrefixes(a.to, b.to) })
	prefixes = slices.CompactFunc(prefixes, func(a, b prefix) bool { return a.to == b.to }) // the first rule decides

	all := make([]verdict, len(prefixes))
	for i := range prefixes {
		p := &prefixes[i]
		wider := i - 1
		for wider >= 0 && !prefixes[wider].to.Contains(p.to.Addr()) {
			wider = all[wider].wider
		}
		if wider >= 0 {
			p.rule = min(p.rule, prefixes[wider].rule)
		}
		all[i] = verdict{to: p.to, deny: p.rule < len(rules) && rules[p.rule].Deny, wider: wider}
	}
	return all
}

func (f EgressFirewall) flow(v verdict) *ovs.Flow {
	actions := []ovs.Action{ovs.GotoTable(tableEgressIP)}
	if v.deny {
		actions = f.Export.drop(PointEgressFirewall)
	}
	matches := []ovs.Match{ovs.Reg(numberEgressFirewall, uint32(f.ID))}
	if v.to.Bits() > 0 {
		matches = append(matches, ovs.IPDestination(v.to))
	}
	var s State
	// table=100,priority=124,ip,reg10=0x7,nw_dst=192.0.2.0/24,actions=goto_table:101
	// table=100,priority=100,ip,reg10=0x7,actions=drop
	s.add(tableEgressFirewall, firewallBase+v.to.Bits(), ip(matches...), actions...)
	return s.Flows[0]
}

// State returns the flows; none if the firewall has no number.
func (v EgressVerdicts) State() State {
	var s State
	if v.id == 0 {
		return s
	}
	s.Flows = make([]*ovs.Flow, len(v.all))
	for i := range v.all {
		s.Flows[i] = v.all[i].flow
	}
	return s
}

// ID returns the number of the firewall; 0: there is none.
func (v EgressVerdicts) ID() EgressFirewallID { return v.id }

// Len returns the number of flows.
func (v EgressVerdicts) Len() int { return len(v.all) }

// Equal reports whether both have the same flows.
func (v EgressVerdicts) Equal(other EgressVerdicts) bool {
	return v.id == other.id && slices.EqualFunc(v.all, other.all, func(a, b verdict) bool { return a.to == b.to && a.deny == b.deny })
}

// Allows evaluates the rules as the flows do.
func (v EgressVerdicts) Allows(to netip.Addr) bool {
	next, _ := slices.BinarySearchFunc(v.all, to, func(v verdict, to netip.Addr) int {
		if v.to.Addr().Compare(to) <= 0 {
			return -1
		}
		return 1
	})
	return v.allows(next-1, single(to))
}

// allows returns the verdict for a prefix, except for the addresses that longer prefixes have: that of the longest prefix that has all of it. That is last, the
// index of the last one that does not follow it in the order of prefixes, or one of the wider ones.
func (v EgressVerdicts) allows(last int, to netip.Prefix) bool {
	for last >= 0 && (v.all[last].to.Bits() > to.Bits() || !v.all[last].to.Contains(to.Addr())) {
		last = v.all[last].wider
	}
	return last < 0 || !v.all[last].deny
}

// IsWithin reports whether the other firewall allows what this one does: connections that this one has allowed remain valid. It may return false for nested prefixes of
// which the longer ones have all addresses.
func (v EgressVerdicts) IsWithin(other EgressVerdicts) bool {
	for i, j := 0, 0; i < len(v.all) || j < len(other.all); {
		var to netip.Prefix // the next one of both
		switch {
		case j == len(other.all) || i < len(v.all) && comparePrefixes(v.all[i].to, other.all[j].to) <= 0:
			to = v.all[i].to
		default:
			to = other.all[j].to
		}
		if i < len(v.all) && v.all[i].to == to {
			i++
		}
		if j < len(other.all) && other.all[j].to == to {
			j++
		}
		if v.allows(i-1, to) && !other.allows(j-1, to) {
			return false
		}
	}
	return true
}
