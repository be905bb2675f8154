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
	ID     EgressFirewallID
	Rules  []EgressFirewallRule
	Export FlowExport // that of the node
}

// EgressFirewallRule allows or denies packets to the destinations.
type EgressFirewallRule struct {
	To   []netip.Prefix
	Deny bool
}

// Priorities in table 100.
const (
	firewallTrack = 310 // packets whose connection was not looked up
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
	if n.evaluates() || n.BalancesServices {
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
	none := firewallNone
	if n.BalancesServices && !n.evaluates() {
		none = firewallTrack + 10
		n.trackReplies(s, tableEgressFirewall, firewallTrack)
	}
	// table=100,priority=10,reg10=0,actions=goto_table:101
	s.add(tableEgressFirewall, none, match{fields: []ovs.Match{ovs.Reg(numberEgressFirewall, 0)}}, ovs.GotoTable(tableEgressIP))
	// The rules of the number are missing: the switch has refused them.
	// table=100,priority=0,actions=drop
	s.add(tableEgressFirewall, 0, anything(), n.FlowExport.drop(PointEgressFirewall)...)
}

// DNSPort is the port of DNS servers.
const DNSPort = 53

// EgressFirewallsOf returns the egress firewalls that a bridge's flows were compiled from, by the owner's cookie. Their rules have the same meaning as the
// original ones, and the same flows except for samples. It leaves out owners with a flow that it can't read.
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
	rule = EgressFirewallRule{To: []netip.Prefix{to.Masked()}, Deny: IsDrop(strings.TrimSpace(actions))}
	isAllow := strings.TrimSpace(actions) == fmt.Sprintf("goto_table:%d", tableEgressIP) // flows of another version may have other actions
	return id, rule, id != 0 && to.Addr().Is4() && (rule.Deny || isAllow)
}
