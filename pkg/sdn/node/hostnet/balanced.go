package hostnet

import "slices"

// These rules are for FirewallConfig.BalancesServices: the switch translates packets to services, so the host's conntrack has no DNAT for them.
//
//   - A pod's packet comes in with the pod's address, to the endpoint: no rule here distinguishes it from a direct one.
//   - A packet of the node itself that returns to the host has ServiceNextHop as its source, which the switch accepts from no pod and no other node.
//   - A packet of a host outside that returns to the host has ServiceOutside as its source. The node's own rules decide whether it is accepted.
//   - A packet to a service without endpoints comes in with the service's address as its destination.
//
// Rules for kube-proxy remain: they match packets that the host translated or marked, which also the node's own rules may do, and kube-proxy's rules can
// exist until they are cleaned up. No source check is needed on tun0: its rp_filter is 2, and the route to ServiceNextHop is tun0's.

// nextHop returns ServiceNextHop as iptables prints it.
func (c FirewallConfig) nextHop() string { return hostPrefix(c.ServiceNextHop).String() }

// outside returns ServiceOutside as iptables prints it.
func (c FirewallConfig) outside() string { return hostPrefix(c.ServiceOutside).String() }

// balanced returns a rule for packets of the node itself that return to the host, and one for those of hosts outside.
func (c FirewallConfig) balanced(match []string, target ...string) []Rule {
	if !c.BalancesServices {
		return nil
	}
	return []Rule{
		rule(append([]string{"-s", c.nextHop()}, match...), "the node through a service", target...),
		rule(append([]string{"-s", c.outside()}, match...), "a host outside through a service", target...),
	}
}

// forwardBalancedGuard drops packets that a service sends to the VXLAN port of another node: masqueraded they would have this node's VTEP as their source.
func (c FirewallConfig) forwardBalancedGuard(vxlan []string) []Rule { return c.balanced(vxlan, "DROP") }

// unlimited returns these packets from the chain that limits the connections of each source: the node is no pod, and the zone of hosts outside has a limit in the switch.
func (c FirewallConfig) unlimited() []Rule { return c.balanced([]string{"-i", Tun0Name}, "RETURN") }

// masqueradeBalanced masquerades these packets to another host, which routes neither address. It precedes the rule for kube-proxy's mark, which a packet may have
// from the node's first chains.
func (c FirewallConfig) masqueradeBalanced(target []string) []Rule {
	return c.balanced([]string{"!", "-o", Tun0Name}, target...)
}

// acceptBalanced accepts packets of the node itself to its own addresses in all modes of HostAccess. With kube-proxy these packets come in on lo.
func (c FirewallConfig) acceptBalanced() []Rule {
	if !c.BalancesServices || !c.HostAccess.restricts() {
		return nil
	}
	return []Rule{rule([]string{"-s", c.nextHop(), "-i", Tun0Name}, "the node through a service", "ACCEPT")}
}

// returnOutside returns packets of hosts outside from the chains that accept or drop those of pods.
func (c FirewallConfig) returnOutside() []Rule {
	if !c.BalancesServices {
		return nil
	}
	return []Rule{rule([]string{"-s", c.outside(), "-i", Tun0Name}, "a host outside through a service", "RETURN")}
}

// dropPods returns the rules after the node's own.
func (c FirewallConfig) dropPods() []Rule {
	drop := c.HostAccess.drop()
	if len(drop) == 0 {
		return nil
	}
	return append(c.returnOutside(), drop...)
}

// rejects is the target that kube-proxy has for services without endpoints.
func rejects() []string { return []string{"REJECT", "--reject-with", "icmp-port-unreachable"} }

// rejectServices rejects packets of pods and of the node to services without endpoints, for which kube-proxy and the switch have translated nothing. The rules of
// kube-proxy that reject them can come later than this chain. On a kernel or an iptables without REJECT, the target is DROP: clients wait for their timeout.
func (c FirewallConfig) rejectServices(target []string) []Rule {
	if !c.ServiceNetwork.IsValid() || !c.ServiceNetwork.Addr().Is4() {
		return nil
	}
	match := []string{"-d", c.ServiceNetwork.String(), "-i", Tun0Name}
	if !c.BalancesServices {
		match = append(match, "-o", Tun0Name) // another service proxy may route them elsewhere
	}
	return []Rule{rule(match, "to a service without endpoints", target...)}
}

// forwardBalanced accepts connections of the node itself, and of hosts outside, through a service to another host. No host opens connections to the two sources.
func (c FirewallConfig) forwardBalanced() []Rule {
	rules := c.balanced([]string{"-i", Tun0Name}, "ACCEPT")
	if !c.BalancesServices {
		return rules
	}
	for _, source := range []string{c.nextHop(), c.outside()} {
		rules = append(rules, rule([]string{"-d", source, "-o", Tun0Name, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED"}, "replies through a service", "ACCEPT"))
	}
	return rules
}

// forwardOutside accepts connections of hosts outside to external addresses of services, which package servicenat translates to the cluster IP, and replies.
func (c FirewallConfig) forwardOutside() []Rule {
	if !c.BalancesServices {
		return nil
	}
	services, states := c.ServiceNetwork.String(), []string{"-m", "conntrack", "--ctstate"}
	return []Rule{
		rule(slices.Concat([]string{"-d", services, "-o", Tun0Name}, states, []string{"DNAT"}), "to a service by an external address", "ACCEPT"),
		rule(slices.Concat([]string{"-s", services, "-i", Tun0Name}, states, []string{"RELATED,ESTABLISHED"}), "from a service to a host outside", "ACCEPT"),
	}
}
