package hostnet

import "slices"

// guardRules drop VXLAN that this node would forward to a node's VTEP for pods and for clients of services. A service whose endpoint is a
// node's VXLAN port would let its clients' packets arrive there masqueraded as this node's, and a VTEP trusts nodes. Traffic from outside
// to pods that use the port themselves passes.
func guardRules(networks, vxlan []string) []Rule {
	var rules []Rule
	for _, n := range networks {
		rules = append(rules, rule(append([]string{"-s", n}, vxlan...), "VXLAN made by a pod", "DROP"))
	}
	for _, n := range networks {
		rules = append(rules, rule([]string{"-d", n}, "to a pod", "RETURN"))
	}
	return append(rules, translatedVXLAN(vxlan), unrelatedICMP())
}

// guardInputRules drop what pods and clients of services must not send to the node's own VTEP and routes.
func guardInputRules(vxlan []string) []Rule {
	return []Rule{translatedVXLAN(vxlan), unrelatedICMP()}
}

// translatedVXLAN drops packets that destination NAT sends to a VTEP. Table 10 would trust them as VXLAN of the node that
// they come from: any VNI, any inner source.
func translatedVXLAN(vxlan []string) Rule {
	return rule(append(slices.Clone(vxlan), "-m", "conntrack", "--ctstate", "DNAT"), "VXLAN through a service", "DROP")
}

// unrelatedICMP drops ICMP errors of pods about no connection that conntrack knows. The kernel would believe one about the node's VXLAN, which is
// not tracked: "packet too big" lowers the MTU of the tunnel to another node, for all pods. A reply to an echo request that came by another node has no
// connection here, and is no error.
func unrelatedICMP() Rule {
	return rule([]string{"-i", Tun0Name, "-p", "icmp", "-m", "icmp", "!", "--icmp-type", "0", "-m", "conntrack", "--ctstate", "INVALID"}, "ICMP error about no connection", "DROP")
}

// podDeviceRules drop what the host's IPv4 stack hears of pods past the bridge. The kernel's datapath consumes the packets of its ports; the userspace
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
		Optional: &Optional{Feature: FeatureVTEPs, Modules: "ip_set, ip_set_hash_ip, xt_set and xt_addrtype"},
	}
}
