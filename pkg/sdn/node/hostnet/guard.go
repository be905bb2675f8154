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
	return append(rules, translatedVXLAN(vxlan))
}

// translatedVXLAN drops packets that destination NAT sends to a VTEP. Table 10 would trust them as VXLAN of the node that
// they come from: any VNI, any inner source.
func translatedVXLAN(vxlan []string) Rule {
	return rule(append(slices.Clone(vxlan), "-m", "conntrack", "--ctstate", "DNAT"), "VXLAN through a service", "DROP")
}
