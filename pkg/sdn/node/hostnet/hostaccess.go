package hostnet

import (
	"net"
	"net/netip"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// HostAccess is what pods reach of their own node. The node's own rules come before the drop, so they can accept more.
type HostAccess string

// The modes of HostAccess. Each accepts what the one before does.
const (
	// HostAccessReplies accepts what belongs to connections that exist or that the node opens, errors about them, and ICMP of nodes.
	HostAccessReplies HostAccess = "replies"

	// HostAccessServices also accepts what a service leads to the node, such as the API server on its node.
	HostAccessServices HostAccess = "services"

	// HostAccessAll accepts everything, before the node's own rules.
	HostAccessAll HostAccess = "all"
)

// IsValid reports whether a is one of the modes.
func (a HostAccess) IsValid() bool {
	return a == HostAccessReplies || a == HostAccessServices || a == HostAccessAll
}

func (a HostAccess) restricts() bool { return a == HostAccessReplies || a == HostAccessServices }

// accept returns the rules before the node's own. Connections of pods that exist when the mode changes continue.
func (a HostAccess) accept(networks []config.ClusterNetwork) []Rule {
	pods := []string{"-i", Tun0Name}
	if !a.restricts() {
		return []Rule{rule(pods, "from pods", "ACCEPT")}
	}
	rules := []Rule{rule(append(pods, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED"), "replies of pods", "ACCEPT")}
	for _, n := range networks {
		if n.Prefix.Addr().Is4() {
			rules = append(rules, rule([]string{"-s", gatewaysOf(n), "-i", Tun0Name, "-p", "icmp"}, "ICMP of nodes", "ACCEPT"))
		}
	}
	if a == HostAccessServices {
		rules = append(rules, rule(append(pods, "-m", "conntrack", "--ctstate", "DNAT"), "pods through services", "ACCEPT"))
	}
	return rules
}

// drop returns the rules behind the node's own. In mode all there is none: so a change of the mode empties the chain.
func (a HostAccess) drop() []Rule {
	if !a.restricts() {
		return nil
	}
	return []Rule{rule([]string{"-i", Tun0Name}, "pods without access", "DROP")}
}

// gatewaysOf returns an address and a mask, as iptables prints them, that match the first address of each subnet of an IPv4 network and no
// other. The switch lets no pod have one.
func gatewaysOf(n config.ClusterNetwork) string {
	gateway := config.Gateway(netip.PrefixFrom(n.Prefix.Addr(), n.SubnetBits()))
	mask := net.CIDRMask(n.Prefix.Bits(), 32)
	for i, host := range net.CIDRMask(n.SubnetBits(), 32) {
		mask[i] |= ^host
	}
	if ones, _ := mask.Size(); ones == 32 { // one node
		return gateway.String() + "/32"
	}
	return gateway.String() + "/" + net.IP(mask).String()
}
