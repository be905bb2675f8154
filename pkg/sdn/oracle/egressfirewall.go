package oracle

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
)

// firewall applies the EgressNetworkPolicies of the source's namespace: the first rule that has the destination decides, rules of policies whose names sort
// first come first, and without a rule the connection is allowed (docs/egress.md). Names are not resolved here.
func (c *Cluster) firewall(conn Connection) Verdict {
	pod := conn.From.Pod
	if !IsSubject(pod) || conn.To.Pod != nil || c.isTun0(conn.To.Addr) || c.FirewallVNIDs != nil && c.FirewallVNIDs[pod.Namespace] == 0 {
		return Verdict{true, "no egress firewall"}
	}
	if conn.To.Node == pod.Spec.NodeName && conn.Port == 53 && (conn.Protocol == corev1.ProtocolTCP || conn.Protocol == corev1.ProtocolUDP) {
		return Verdict{true, "DNS on the pod's node"}
	}
	policies := slices.Clone(c.EgressPolicies)
	slices.SortFunc(policies, func(a, b *networkv1.EgressNetworkPolicy) int { return cmp.Compare(a.Name, b.Name) })
	for _, p := range policies {
		if p.Namespace != pod.Namespace {
			continue
		}
		for i, r := range p.Spec.Egress {
			if contains(r.To.CIDRSelector, conn.To.Addr) {
				return Verdict{r.Type == networkv1.EgressNetworkPolicyRuleAllow, fmt.Sprintf("egress firewall %s/%s, rule %d: %s", p.Namespace, p.Name, i, r.Type)}
			}
		}
	}
	return Verdict{true, "no rule of the egress firewall"}
}

// isTun0 reports whether an address is that of a node in the pod network.
func (c *Cluster) isTun0(addr netip.Addr) bool {
	for _, addrs := range c.NodeAddrs {
		if slices.Contains(addrs[1:], addr) {
			return true
		}
	}
	return false
}
