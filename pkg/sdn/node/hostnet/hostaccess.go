package hostnet

import (
	"net"
	"net/netip"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// HostAccess is the mode of pods' access to their own node. The node's own rules precede the drop, so they can accept more.
//
// With FirewallConfig.BalancesServices, a pod's packet to a service whose endpoint is the node comes in with the endpoint as its destination. The host can't
// distinguish it from a direct one, and does not accept it in modes HostAccessReplies and HostAccessServices: to accept it would open the port, or with
// any port all daemons, to direct connections. The node itself reaches its own endpoints in all modes (acceptBalanced), and replies to its connections
// through services are packets of existing connections.
type HostAccess string

// The modes of HostAccess. Each accepts all that the previous one accepts.
const (
	// HostAccessReplies accepts packets of existing connections and of those that the node opens, their ICMP errors, and ICMP of nodes.
	HostAccessReplies HostAccess = "replies"

	// HostAccessServices also accepts connections through services to the node, such as to the API server, if the host translates them. With BalancesServices
	// the host translates only what the node's own rules do: HostAccessServices accepts the same as HostAccessReplies, unless there are such rules.
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

// drop returns the rules after the node's own. In mode all the chain is empty.
func (a HostAccess) drop() []Rule {
	if !a.restricts() {
		return nil
	}
	return []Rule{rule([]string{"-i", Tun0Name}, "pods without access", "DROP")}
}

// gatewaysOf returns an address and a mask, as iptables prints them, that match exactly the first address of each subnet of an IPv4
// network. Pods can't use these addresses.
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
