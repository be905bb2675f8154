package oracle

import (
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
)

// allowsNode reports whether the peers allow a client in the node's host network. The specification leaves open what selects host-networked
// pods ("ignored by podSelectors and namespaceSelectors" or treated "as a whole", Network Policies, kubernetes.io). Here a selector of a whole
// host-network namespace selects them, as in OpenShift SDN (docs/policies.md).
func (c *Cluster) allowsNode(peers []networkingv1.NetworkPolicyPeer, node string) bool {
	return len(peers) == 0 || slices.ContainsFunc(peers, func(p networkingv1.NetworkPolicyPeer) bool {
		if p.IPBlock != nil {
			return slices.ContainsFunc(c.NodeAddrs[node], func(addr netip.Addr) bool { return inBlock(p.IPBlock, addr) })
		}
		return c.selectsNodes(p)
	})
}

// selectsNodes reports whether the peer's namespaceSelector matches a host-network namespace that exists, with no podSelector or an empty one.
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
