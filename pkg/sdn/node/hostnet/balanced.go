package hostnet

import "slices"

// These rules are for FirewallConfig.BalancesServices: the switch translates packets to services, so the host's conntrack has no DNAT for them.
//
//   - A pod's packet comes in with the pod's address, to the endpoint: no rule here distinguishes it from a direct one.
//   - A packet of the node itself that returns to the host has ServiceNextHop as its source, which the switch accepts from no pod and no other node.
//   - A packet to a service without endpoints comes in with the service's address as its destination.
//
// Rules for kube-proxy remain: they match packets that the host translated or marked, which also the node's own rules may do, and kube-proxy's rules can
// exist until they are cleaned up. No source check is needed on tun0: its rp_filter is 2, and the route to ServiceNextHop is tun0's.

// nextHop returns ServiceNextHop as iptables prints it.
func (c FirewallConfig) nextHop() string { return hostPrefix(c.ServiceNextHop).String() }

// forwardBalancedGuard drops packets that a service sends to the VXLAN port of another node: masqueraded they would have this node's VTEP as their source.
func (c FirewallConfig) forwardBalancedGuard(vxlan []string) []Rule {
	if !c.BalancesServices {
		return nil
	}
	return []Rule{rule(append([]string{"-s", c.nextHop()}, vxlan...), "VXLAN of the node through a service", "DROP")}
}

// unlimited returns packets of the node itself from the chain that limits the connections of each source: the node is no pod.
func (c FirewallConfig) unlimited() []Rule {
	if !c.BalancesServices {
		return nil
	}
	return []Rule{rule([]string{"-s", c.nextHop(), "-i", Tun0Name}, "the node through a service", "RETURN")}
}

// masqueradeBalanced masquerades packets of the node itself to another host: no other host routes ServiceNextHop. It precedes the rule for kube-proxy's mark,
// which a packet may have from the node's first chains.
func (c FirewallConfig) masqueradeBalanced(target []string) []Rule {
	if !c.BalancesServices {
		return nil
	}
	return []Rule{rule([]string{"-s", c.nextHop(), "!", "-o", Tun0Name}, "the node through a service", target...)}
}

// acceptBalanced accepts packets of the node itself to its own addresses in all modes of HostAccess. With kube-proxy these packets come in on lo.
func (c FirewallConfig) acceptBalanced() []Rule {
	if !c.BalancesServices || !c.HostAccess.restricts() {
		return nil
	}
	return []Rule{rule([]string{"-s", c.nextHop(), "-i", Tun0Name}, "the node through a service", "ACCEPT")}
}

// rejects is the target that kube-proxy has for services without endpoints.
func rejects() []string { return []string{"REJECT", "--reject-with", "icmp-port-unreachable"} }

// rejectBalanced rejects packets of pods and of the node to services without endpoints. On a kernel or an iptables without REJECT, the target is DROP:
// clients wait for their timeout.
func (c FirewallConfig) rejectBalanced(target []string) []Rule {
	if !c.BalancesServices {
		return nil
	}
	return []Rule{rule([]string{"-d", c.ServiceNetwork.String(), "-i", Tun0Name}, "to a service without endpoints", target...)}
}

// forwardBalanced accepts connections of the node itself through a service to another host. No host opens connections to ServiceNextHop.
func (c FirewallConfig) forwardBalanced() []Rule {
	if !c.BalancesServices {
		return nil
	}
	return []Rule{
		rule([]string{"-s", c.nextHop(), "-i", Tun0Name}, "from the node through a service", "ACCEPT"),
		rule(slices.Concat([]string{"-d", c.nextHop(), "-o", Tun0Name}, []string{"-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED"}),
			"to the node through a service", "ACCEPT"),
	}
}
