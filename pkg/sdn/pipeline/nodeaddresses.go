package pipeline

import (
	"net/netip"
	"slices"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// NodeAddresses compiles the routes of packets to a node's addresses other than those of its HostSubnet, through table 61: its node ports are on all of
// them. isOwn reports whether it is this node. Addresses inside of the pod and service networks are ignored.
func (n Node) NodeAddresses(isOwn bool, addrs []netip.Addr) State {
	var s State
	for _, addr := range addrs {
		if !n.evaluates() || !n.mayHave(addr) {
			continue
		}
		// table=30,priority=310,ct_state=-rpl,ip,reg4=0x1/0x2001,nw_dst=198.51.100.60,actions=goto_table:61
		s.add(tableRoute, 310, ip(n.unevaluated(ovs.IPDestination(single(addr)))...), ovs.GotoTable(tableNodePort))
		if n.tenants() && !isOwn {
			// table=30,priority=100,ip,nw_dst=198.51.100.50,actions=goto_table:61
			s.add(tableRoute, 100, ip(ovs.IPDestination(single(addr))), ovs.GotoTable(tableNodePort))
		}
	}
	return s
}

// mayHave reports whether a node may have the address outside of the pod network.
func (n Node) mayHave(addr netip.Addr) bool {
	return addr.Is4() && addr.IsGlobalUnicast() &&
		!slices.ContainsFunc(append(slices.Clone(n.ClusterNetworks), n.ServiceNetwork), func(p netip.Prefix) bool { return p.Contains(addr) })
}
