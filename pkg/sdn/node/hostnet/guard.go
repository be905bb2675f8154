package hostnet

import "slices"

// guardRules drop VXLAN that this node would forward to a node's VTEP from pods and from clients of services. A service whose endpoint is a
// node's VXLAN port would let its clients' packets arrive there masqueraded as this node's, and a VTEP trusts nodes. Traffic from outside
// to pods that use the port themselves passes.
func guardRules(networks, vxlan []string, icmp Rule) []Rule {
	var rules []Rule
	for _, n := range networks {
		rules = append(rules, rule(append([]string{"-s", n}, vxlan...), "VXLAN made by a pod", "DROP"))
	}
	for _, n := range networks {
		rules = append(rules, rule([]string{"-d", n}, "to a pod", "RETURN"))
	}
	return append(rules, translatedVXLAN(vxlan), bridgeVXLAN(vxlan), icmp)
}

// guardInputRules drop packets of pods and clients of services to the node's own VTEP, and ICMP errors that would change its routes.
func guardInputRules(vxlan []string, icmp Rule) []Rule {
	return []Rule{bridgeVXLAN(vxlan), translatedVXLAN(vxlan), icmp}
}

// bridgeVXLAN drops VXLAN from tun0 whatever its source, such as an egress IP or, with BalancesServices, ServiceNextHop or ServiceOutside. VXLAN of nodes does not
// come in on tun0.
func bridgeVXLAN(vxlan []string) Rule {
	return rule(append([]string{"-i", Tun0Name}, vxlan...), "VXLAN from the bridge", "DROP")
}

// translatedVXLAN drops packets that destination NAT sends to a VTEP. Table 10 would accept them as VXLAN of the node that
// sends them, with any VNI and any inner source.
func translatedVXLAN(vxlan []string) Rule {
	return rule(append(slices.Clone(vxlan), "-m", "conntrack", "--ctstate", "DNAT"), "VXLAN through a service", "DROP")
}

// unrelatedICMP drops ICMP errors of pods without a conntrack entry. The kernel would accept one about the node's VXLAN, which is
// not tracked: "packet too big" lowers the MTU of the tunnel to another node, for all pods. Echo replies pass: their request may have come by another
// node, without an entry here.
func unrelatedICMP() Rule {
	return unrelatedICMPRule("-m", "icmp", "!", "--icmp-type", "0")
}

// unrelatedICMPOrReply also drops these echo replies. Linux has the match icmp in ip_tables before 6.3, which hosts with nf_tables only do not load.
func unrelatedICMPOrReply() Rule { return unrelatedICMPRule() }

func unrelatedICMPRule(icmp ...string) Rule {
	match := slices.Concat([]string{"-i", Tun0Name, "-p", "icmp"}, icmp, []string{"-m", "conntrack", "--ctstate", "INVALID"})
	return rule(match, "ICMP error about no connection", "DROP")
}

// masqueradedError drops ICMP errors of pods about connections that the host masquerades. The kernel sends them to the pod that opened the connection, with the
// service or the node as their source, whichever pod they come from: table 84 would not recognize the sender.
func masqueradedError() Rule {
	return rule([]string{"-i", Tun0Name, "-o", Tun0Name, "-p", "icmp", "-m", "conntrack", "--ctstate", "RELATED", "-m", "conntrack", "--ctstate", "SNAT"},
		"ICMP error of a pod about a masqueraded connection", "DROP")
}

// podDeviceRules drop pods' packets in the host's IPv4 stack that bypass the bridge. The kernel datapath consumes the packets of its ports; the userspace
// datapath reads copies of them, and the stack would deliver, answer and route the originals.
func podDeviceRules(devices string) []Rule {
	if devices == "" {
		return nil
	}
	return []Rule{rule([]string{"-i", devices}, "copy of a pod's packet", "DROP")}
}

// unknownVTEPs drops VXLAN to this node from addresses that are no VTEP of a HostSubnet. It is in a chain that agents without this rule
// remove from PREROUTING: they do not maintain the set.
func unknownVTEPs(vxlan []string) Chain {
	match := slices.Concat(vxlan, []string{"-m", "addrtype", "--dst-type", "LOCAL", "-m", "set", "!", "--match-set", vtepSet, "src"})
	return Chain{
		Table: tableMangle, Name: chainPrefix + "GUARD-VXLAN", BuiltIn: "PREROUTING",
		Comment:  "ovsdn: VXLAN from nodes only",
		Rules:    []Rule{rule(match, "VXLAN of an unknown VTEP", "DROP")},
		Optional: &Optional{Feature: FeatureVTEPs, Modules: "ip_set, ip_set_hash_ip, xt_set and xt_addrtype", Set: vtepSet},
	}
}
