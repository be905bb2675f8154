package pipeline

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// EgressFirewallID is the number of the egress firewall of a namespace on this node; 0: it has none. The flows of a pod load it into reg10, and table 100 has the
// rules of each number, so that namespaces with the same VNID have rules of their own, and pods do not multiply rules.
type EgressFirewallID uint32

// EgressFirewall is the rules for packets of a namespace's pods to outside. The first rule that has the destination decides; without one the packet passes.
type EgressFirewall struct {
	ID    EgressFirewallID
	Rules []EgressFirewallRule
}

// EgressFirewallRule allows or denies packets to the destinations.
type EgressFirewallRule struct {
	To   []netip.Prefix
	Deny bool
}

// Priorities in table 100.
const (
	firewallReply = 300 // replies of connections that a host outside opened
	firewallDNS   = 200 // DNS servers of this node
	firewallBase  = 100 // plus the length of the prefix
	firewallNone  = 10  // packets of pods without a firewall
)

// firewall returns the number that the pod's flows load. VNID 0, which is that of the cluster's own components, has no egress firewall; mode subnet has no VNIDs.
func (n Node) firewall(p Pod) EgressFirewallID {
	if n.evaluates() && p.VNID.IsGlobal() {
		return 0
	}
	return p.EgressFirewall
}

// filterEgress compiles the part of table 100 that depends on no rule. As in OpenShift SDN, pods with any rules may ask a DNS server on their own node.
func (n Node) filterEgress(s *State) {
	if n.evaluates() {
		// table=100,priority=300,ct_state=+rpl+trk,ip,actions=goto_table:101
		s.add(tableEgressFirewall, firewallReply, ip(isReply()), ovs.GotoTable(tableEgressIP))
	}
	if n.VTEP.Is4() {
		for _, protocol := range []goovs.Protocol{goovs.ProtocolTCPv4, goovs.ProtocolUDPv4} {
			// table=100,priority=200,tcp,nw_dst=172.31.0.11,tp_dst=53,actions=goto_table:101
			s.add(tableEgressFirewall, firewallDNS, match{protocol: protocol, fields: []ovs.Match{
				ovs.IPDestination(single(n.VTEP)), goovs.TransportDestinationPort(DNSPort),
			}}, ovs.GotoTable(tableEgressIP))
		}
	}
	// table=100,priority=10,reg10=0,actions=goto_table:101
	s.add(tableEgressFirewall, firewallNone, match{fields: []ovs.Match{ovs.Reg(numberEgressFirewall, 0)}}, ovs.GotoTable(tableEgressIP))
	// The rules of the number are missing: the switch has refused them.
	// table=100,priority=0,actions=drop
	s.add(tableEgressFirewall, 0, anything(), goovs.Drop())
}

// DNSPort is the port of DNS servers.
const DNSPort = 53

// EgressFirewall compiles the rules of a namespace: one flow for each prefix, whose priority is its length. The verdict of a prefix is that of the first rule
// which has all of it: prefixes are nested or disjoint, so the longest one that has an address is also in all others that have it. No flow depends on the
// place of its rule, and a changed rule changes no flow of the rules before or after it that decide as before.
func (n Node) EgressFirewall(f EgressFirewall) State {
	var s State
	if f.ID == 0 {
		return s
	}
	for _, v := range verdicts(f.Rules) {
		action := ovs.GotoTable(tableEgressIP)
		if v.deny {
			action = goovs.Drop()
		}
		// table=100,priority=124,ip,reg10=0x7,nw_dst=192.0.2.0/24,actions=goto_table:101
		// table=100,priority=100,ip,reg10=0x7,actions=drop
		s.add(tableEgressFirewall, firewallBase+v.to.Bits(), ip(f.matches(v.to)...), action)
	}
	return s
}

func (f EgressFirewall) matches(to netip.Prefix) []ovs.Match {
	id := ovs.Reg(numberEgressFirewall, uint32(f.ID))
	if to.Bits() == 0 {
		return []ovs.Match{id}
	}
	return []ovs.Match{id, ovs.IPDestination(to)}
}

// Evaluator returns a function that evaluates the rules as the flows do.
func (f EgressFirewall) Evaluator() func(to netip.Addr) (allowed bool) {
	verdicts := f.verdicts()
	return func(to netip.Addr) bool { return allows(verdicts, single(to)) }
}

// IsWithin reports whether the other firewall allows what this one does: connections that this one has allowed remain valid. It may return false for nested prefixes of
// which the longer ones have all addresses.
func (f EgressFirewall) IsWithin(other EgressFirewall) bool {
	before, after := f.verdicts(), other.verdicts()
	isDenied := func(to netip.Prefix) bool { return allows(before, to) && !allows(after, to) }
	for _, all := range []map[netip.Prefix]bool{before, after} {
		for to := range all {
			if isDenied(to) {
				return false
			}
		}
	}
	return !isDenied(everywhere())
}

// allows returns the verdict for a prefix, except for the addresses that longer prefixes have: that of the longest prefix that has all of it.
func allows(denied map[netip.Prefix]bool, to netip.Prefix) bool {
	for bits := to.Bits(); bits >= 0; bits-- {
		if deny, found := denied[netip.PrefixFrom(to.Addr(), bits).Masked()]; found {
			return !deny
		}
	}
	return true
}

// verdicts returns by prefix whether the rules deny its addresses, except for those that longer prefixes have.
func (f EgressFirewall) verdicts() map[netip.Prefix]bool {
	denied := map[netip.Prefix]bool{}
	for _, v := range verdicts(f.Rules) {
		denied[v.to] = v.deny
	}
	return denied
}

// verdict is the verdict for the addresses of a prefix that are in no longer prefix of the rules.
type verdict struct {
	to   netip.Prefix
	rule int
	deny bool
}

// everywhere is the prefix of all addresses.
func everywhere() netip.Prefix { return netip.PrefixFrom(netip.IPv4Unspecified(), 0) }

// verdicts returns the verdict of each prefix, sorted by prefixes, and that of all other addresses.
func verdicts(rules []EgressFirewallRule) []verdict {
	first := map[netip.Prefix]int{} // the first rule that has the prefix
	for i, r := range rules {
		for _, to := range r.To {
			to = to.Masked()
			if _, earlier := first[to]; !earlier && to.Addr().Is4() {
				first[to] = i
			}
		}
	}
	if _, decided := first[everywhere()]; !decided {
		first[everywhere()] = len(rules)
	}
	all := make([]verdict, 0, len(first))
	for to, rule := range first {
		for bits := to.Bits() - 1; bits >= 0; bits-- {
			if wider, ok := first[netip.PrefixFrom(to.Addr(), bits).Masked()]; ok {
				rule = min(rule, wider)
			}
		}
		all = append(all, verdict{to, rule, rule < len(rules) && rules[rule].Deny})
	}
	slices.SortFunc(all, func(a, b verdict) int {
		return cmp.Or(a.to.Addr().Compare(b.to.Addr()), cmp.Compare(a.to.Bits(), b.to.Bits()))
	})
	return all
}

// EgressFirewallsOf returns the egress firewalls that a bridge's flows were compiled from, by the owner's cookie. Their rules have the same meaning as the
// original ones, and the same flows. It leaves out owners with a flow that it can't read.
func EgressFirewallsOf(flows []ovs.DumpedFlow) map[uint64]EgressFirewall {
	all, invalid := map[uint64]EgressFirewall{}, map[uint64]bool{}
	for _, f := range flows {
		if f.Key.Table != tableEgressFirewall || CookieKind(f.Cookie) != KindEgressFirewall {
			continue
		}
		id, rule, ok := parseFirewallFlow(f.Text)
		firewall := all[f.Cookie]
		if !ok || firewall.ID != 0 && firewall.ID != id {
			invalid[f.Cookie] = true
			continue
		}
		firewall.ID, firewall.Rules = id, append(firewall.Rules, rule)
		all[f.Cookie] = firewall
	}
	for cookie := range invalid {
		delete(all, cookie)
	}
	for _, f := range all { // the longest prefix first, as the flows decide
		slices.SortFunc(f.Rules, func(a, b EgressFirewallRule) int {
			return cmp.Or(cmp.Compare(b.To[0].Bits(), a.To[0].Bits()), a.To[0].Addr().Compare(b.To[0].Addr()))
		})
	}
	return all
}

// parseFirewallFlow returns the number and the rule of a flow of EgressFirewall, as a dump has it.
func parseFirewallFlow(text string) (id EgressFirewallID, rule EgressFirewallRule, ok bool) {
	match, actions, _ := strings.Cut(text, "actions=")
	to := everywhere()
	for field := range strings.FieldsFuncSeq(match, func(r rune) bool { return r == ',' || r == ' ' }) {
		key, value, _ := strings.Cut(field, "=")
		switch key {
		case "reg10":
			number, err := strconv.ParseUint(value, 0, 32)
			if err != nil {
				return 0, rule, false
			}
			id = EgressFirewallID(number)
		case "nw_dst":
			var err error
			if to, err = netip.ParsePrefix(value); err != nil {
				addr, err := netip.ParseAddr(value)
				if err != nil {
					return 0, rule, false
				}
				to = single(addr)
			}
		}
	}
	rule = EgressFirewallRule{To: []netip.Prefix{to.Masked()}, Deny: strings.TrimSpace(actions) == "drop"}
	isAllow := strings.TrimSpace(actions) == fmt.Sprintf("goto_table:%d", tableEgressIP) // flows of another version may have other actions
	return id, rule, id != 0 && to.Addr().Is4() && (rule.Deny || isAllow)
}
