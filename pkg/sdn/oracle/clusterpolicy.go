package oracle

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// A service that leads a pod to itself is traffic between pods, which both directions of ClusterNetworkPolicies evaluate (network-policy-api#390).

// egress asks the tiers of policies that select the source, ingress those that select the destination. "Policy tiers are
// evaluated in the following order: Admin tier, NetworkPolicy tier, Baseline tier"; the first decision applies.
func (c *Cluster) egress(conn Connection) Verdict {
	return c.tiers(conn, conn.From, networkingv1.PolicyTypeEgress)
}

func (c *Cluster) ingress(conn Connection) Verdict {
	return c.tiers(conn, conn.To, networkingv1.PolicyTypeIngress)
}

func (c *Cluster) tiers(conn Connection, target Endpoint, direction networkingv1.PolicyType) Verdict {
	if !IsSubject(target.Pod) {
		return Verdict{true, "no policy selects it"}
	}
	if v, decided := c.clusterTier(policyv1alpha2.AdminTier, conn, target, direction); decided {
		return v
	}
	if v, decided := c.namespaceTier(conn, target, direction); decided {
		return v
	}
	if v, decided := c.clusterTier(policyv1alpha2.BaselineTier, conn, target, direction); decided {
		return v
	}
	return Verdict{true, "all pods can communicate with each other"}
}

// clusterTier: "Policies with lower priority values [...] are checked before policies with higher priority values", and
// within one "a rule that appears at the top [...] would take the highest precedence". The first rule that matches accepts,
// denies, or "skips all further ClusterNetworkPolicy rules in the current tier".
func (c *Cluster) clusterTier(tier policyv1alpha2.Tier, conn Connection, target Endpoint, direction networkingv1.PolicyType) (v Verdict, decided bool) {
	policies := slices.Clone(c.ClusterPolicies)
	slices.SortStableFunc(policies, func(a, b *policyv1alpha2.ClusterNetworkPolicy) int {
		return cmp.Compare(a.Spec.Priority, b.Spec.Priority)
	})
	for _, p := range policies {
		if p.Spec.Tier != tier || !c.selected(p.Spec.Subject.Namespaces, p.Spec.Subject.Pods, target.Pod) {
			continue
		}
		action, place := c.firstMatch(&p.Spec, conn, direction)
		if action == policyv1alpha2.ClusterNetworkPolicyRuleActionPass {
			return Verdict{}, false
		}
		if action != "" {
			return Verdict{
				action == policyv1alpha2.ClusterNetworkPolicyRuleActionAccept,
				fmt.Sprintf("%s of %s rule %d of %s", action, direction, place, p.Name),
			}, true
		}
	}
	return Verdict{}, false
}

// firstMatch returns the action and place of the first rule that matches, or "".
func (c *Cluster) firstMatch(s *policyv1alpha2.ClusterNetworkPolicySpec, conn Connection, direction networkingv1.PolicyType) (policyv1alpha2.ClusterNetworkPolicyRuleAction, int) {
	if direction == networkingv1.PolicyTypeIngress {
		for i, r := range s.Ingress {
			if slices.ContainsFunc(r.From, func(p policyv1alpha2.ClusterNetworkPolicyIngressPeer) bool {
				return c.selected(p.Namespaces, p.Pods, conn.From.Pod)
			}) && anyProtocol(r.Protocols, conn) {
				return r.Action, i
			}
		}
		return "", 0
	}
	for i, r := range s.Egress {
		if slices.ContainsFunc(r.To, func(p policyv1alpha2.ClusterNetworkPolicyEgressPeer) bool {
			return c.egressPeer(p, conn.To)
		}) && anyProtocol(r.Protocols, conn) {
			return r.Action, i
		}
	}
	return "", 0
}

// selected: "host-networked pods are not included".
func (c *Cluster) selected(namespaces *metav1.LabelSelector, pods *policyv1alpha2.NamespacedPod, pod *corev1.Pod) bool {
	switch {
	case !IsSubject(pod):
		return false
	case namespaces != nil:
		return selects(*namespaces, c.namespaceLabels(pod.Namespace))
	case pods != nil:
		return selects(pods.NamespaceSelector, c.namespaceLabels(pod.Namespace)) && selects(pods.PodSelector, pod.Labels)
	}
	return false
}

// egressPeer: nodes are matched by the addresses in their status, networks by any address, "cluster-internal traffic" too.
func (c *Cluster) egressPeer(p policyv1alpha2.ClusterNetworkPolicyEgressPeer, to Endpoint) bool {
	switch {
	case p.Nodes != nil:
		return to.Node != "" && selects(*p.Nodes, c.NodeLabels[to.Node])
	case len(p.Networks) > 0:
		return slices.ContainsFunc(p.Networks, func(n policyv1alpha2.CIDR) bool {
			return contains(string(n), to.Addr)
		})
	}
	return c.selected(p.Namespaces, p.Pods, to.Pod)
}

// anyProtocol: "If unspecified, protocol-specific attributes will not be used to match traffic."
func anyProtocol(protocols []policyv1alpha2.ClusterNetworkPolicyProtocol, conn Connection) bool {
	return len(protocols) == 0 || slices.ContainsFunc(protocols, func(p policyv1alpha2.ClusterNetworkPolicyProtocol) bool {
		switch {
		case p.TCP != nil:
			return conn.Protocol == corev1.ProtocolTCP && onClusterPort(p.TCP.DestinationPort, conn.Port)
		case p.UDP != nil:
			return conn.Protocol == corev1.ProtocolUDP && onClusterPort(p.UDP.DestinationPort, conn.Port)
		case p.SCTP != nil:
			return conn.Protocol == corev1.ProtocolSCTP && onClusterPort(p.SCTP.DestinationPort, conn.Port)
		}
		return conn.Protocol != "" && hasPort(conn.To.Pod, p.DestinationNamedPort, conn.Protocol, conn.Port)
	})
}

func onClusterPort(p *policyv1alpha2.Port, port int32) bool {
	switch {
	case p == nil:
		return true
	case p.Range != nil:
		return p.Range.Start <= port && port <= p.Range.End
	}
	return p.Number == port
}
