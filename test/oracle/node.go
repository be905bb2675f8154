package oracle

import (
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
)

// allowsNode is for a node as the source of ingress, which is a client in its host network. The specification leaves open what selects host-networked
// pods ("ignored by podSelectors and namespaceSelectors" or treated "as a whole", Network Policies, kubernetes.io). Here they belong to the
// host-network namespaces as a whole, as in OpenShift SDN (docs/policies.md).
func (c *Cluster) allowsNode(peers []networkingv1.NetworkPolicyPeer, node string) bool {
	return len(peers) == 0 || slices.ContainsFunc(peers, func(p networkingv1.NetworkPolicyPeer) bool {
		if p.IPBlock != nil {
			return slices.ContainsFunc(c.NodeAddrs[node], func(addr netip.Addr) bool { return inBlock(p.IPBlock, addr) })
		}
		return c.selectsNodes(p)
	})
}

// selectsNodes: a selector of namespaces that matches a host-network namespace which exists. Beside it, a selector of pods has to select everything.
func (c *Cluster) selectsNodes(p networkingv1.NetworkPolicyPeer) bool {
	if p.NamespaceSelector == nil {
		return false
	}
	if s := p.PodSelector; s != nil && (len(s.MatchLabels) > 0 || len(s.MatchExpressions) > 0) {
		return false
	}
	for _, ns := range c.Namespaces {
		if slices.Contains(c.HostNetwork, ns.Name) && selects(*p.NamespaceSelector, ns.Labels) {
			return true
		}
	}
	return false
}
