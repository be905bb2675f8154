package policy

import (
	"math"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// SetClusterNetworkPolicy adds or replaces the policy. A rule that is invalid or not supported fails closed, as ClusterNetworkPolicyEgressPeer
// requires: an Accept rule matches nothing, others deny all. The error lists these rules. Budgets apply to NetworkPolicies only: the API bounds the size
// of a ClusterNetworkPolicy.
func (e *Engine) SetClusterNetworkPolicy(p *policyv1alpha2.ClusterNetworkPolicy) error {
	b := parseClusterPolicy(p)
	e.replace(b, p.CreationTimestamp.Time)
	return b.err()
}

// DeleteClusterNetworkPolicy removes the policy.
func (e *Engine) DeleteClusterNetworkPolicy(name string) { e.replacePolicy(policyKey{name: name}, nil) }

func parseClusterPolicy(p *policyv1alpha2.ClusterNetworkPolicy) *builder {
	b := &builder{key: policyKey{name: p.Name}, name: p.Name, limit: math.MaxInt}
	b.clusterPolicy(&p.Spec)
	return b
}

func (b *builder) clusterPolicy(s *policyv1alpha2.ClusterNetworkPolicySpec) {
	subject, ok := b.clusterSubject(s)
	if !ok {
		b.fault(noEffect)
		return
	}
	b.subject = &subject
	for i, r := range s.Ingress {
		b.at = placeName(Ingress, i)
		spec := ruleSpec{rule: rule{direction: Ingress, level: level(s.Tier, s.Priority, i)}, subject: &subject}
		ok := b.hasPeers(len(r.From))
		for _, p := range r.From {
			ok = ok && b.clusterPeer(&spec, p.Namespaces, p.Pods)
		}
		b.clusterRule(spec, r.Action, r.Protocols, ok)
	}
	for i, r := range s.Egress {
		b.at = placeName(Egress, i)
		spec := ruleSpec{rule: rule{direction: Egress, level: level(s.Tier, s.Priority, i)}, subject: &subject}
		ok := b.hasPeers(len(r.To))
		for _, p := range r.To {
			ok = ok && b.egressPeer(&spec, p)
		}
		b.clusterRule(spec, r.Action, r.Protocols, ok)
	}
}

// clusterSubject returns the pods that the policy selects. It returns false if the policy has no effect.
func (b *builder) clusterSubject(s *policyv1alpha2.ClusterNetworkPolicySpec) (scope, bool) {
	switch {
	case s.Tier != policyv1alpha2.AdminTier && s.Tier != policyv1alpha2.BaselineTier:
		b.fault("tier %q: want %s or %s", s.Tier, policyv1alpha2.AdminTier, policyv1alpha2.BaselineTier)
		return scope{}, false
	case s.Priority < 0 || s.Priority > maxPriority:
		b.fault("priority %d: want 0 to %d", s.Priority, maxPriority)
		return scope{}, false
	case len(s.Ingress) > maxRules || len(s.Egress) > maxRules:
		b.fault("%d ingress and %d egress rules: want at most %d of each", len(s.Ingress), len(s.Egress), maxRules)
		return scope{}, false
	}
	subject, ok := b.selected(s.Subject.Namespaces, s.Subject.Pods)
	subject.local = true
	return subject, ok
}

// hasPeers returns false for an empty list: the policy may use peers of a newer version of the API.
func (b *builder) hasPeers(n int) bool {
	if n == 0 {
		b.fault("no peers")
	}
	return n > 0
}

// clusterRule completes and adds a rule that has its peers; ok is false if one of them is not supported.
func (b *builder) clusterRule(spec ruleSpec, action policyv1alpha2.ClusterNetworkPolicyRuleAction, protocols []policyv1alpha2.ClusterNetworkPolicyProtocol, ok bool) {
	spec.name = b.ruleName()
	switch action {
	case policyv1alpha2.ClusterNetworkPolicyRuleActionAccept:
		spec.action = Allow
	case policyv1alpha2.ClusterNetworkPolicyRuleActionPass:
		spec.action = Pass
	case policyv1alpha2.ClusterNetworkPolicyRuleActionDeny:
		spec.action = Deny
	default:
		b.fault("action %q: not known", action)
		spec.action, ok = Deny, false
	}
	spec.anyPort = len(protocols) == 0
	for _, p := range protocols {
		ok = ok && b.clusterPort(&spec, p)
	}
	if ok {
		b.add(spec)
		return
	}
	if spec.action == Allow {
		b.fault("the rule matches nothing")
		return
	}
	b.fault("the rule denies all")
	b.add(ruleSpec{
		rule:    rule{name: spec.name, direction: spec.direction, level: spec.level, action: Deny},
		subject: spec.subject, anyPeer: true, anyPort: true,
	})
}

// selected returns pods by their namespaces, or by both selectors. It returns false if there is no selector, or an invalid one.
func (b *builder) selected(namespaces *metav1.LabelSelector, pods *policyv1alpha2.NamespacedPod) (scope, bool) {
	switch {
	case namespaces != nil:
		selector, ok := b.selector(namespaces)
		return scope{inNamespaces: selector, onPods: labels.Everything()}, ok
	case pods != nil:
		inNamespaces, ok := b.selector(&pods.NamespaceSelector)
		onPods, valid := b.selector(&pods.PodSelector)
		return scope{inNamespaces: inNamespaces, onPods: onPods}, ok && valid
	}
	b.fault("neither namespaces nor pods are selected, nor anything else that is known")
	return scope{}, false
}

func (b *builder) clusterPeer(spec *ruleSpec, namespaces *metav1.LabelSelector, pods *policyv1alpha2.NamespacedPod) bool {
	s, ok := b.selected(namespaces, pods)
	if ok {
		spec.peers = append(spec.peers, s)
	}
	return ok
}

// egressPeer adds a peer. Domain names are not supported: the agent does not see what resolvers answer.
func (b *builder) egressPeer(spec *ruleSpec, p policyv1alpha2.ClusterNetworkPolicyEgressPeer) bool {
	switch {
	case p.Nodes != nil:
		nodes, ok := b.selector(p.Nodes)
		if ok {
			spec.peers = append(spec.peers, scope{onPods: nodes}) // nodes are pods of the namespace "" (nodeKey)
		}
		return ok
	case len(p.Networks) > 0:
		for _, cidr := range p.Networks {
			prefix, err := netip.ParsePrefix(string(cidr))
			if err != nil {
				b.fault("network %q: %w", cidr, err)
				return false
			}
			spec.blocks = append(spec.blocks, prefix.Masked())
		}
		return true
	case len(p.DomainNames) > 0:
		b.fault("domain names can't be peers")
		return false
	}
	return b.clusterPeer(spec, p.Namespaces, p.Pods)
}

func (b *builder) clusterPort(spec *ruleSpec, p policyv1alpha2.ClusterNetworkPolicyProtocol) bool {
	switch {
	case p.TCP != nil:
		return b.destination(spec, corev1.ProtocolTCP, p.TCP.DestinationPort)
	case p.UDP != nil:
		return b.destination(spec, corev1.ProtocolUDP, p.UDP.DestinationPort)
	case p.SCTP != nil:
		return b.destination(spec, corev1.ProtocolSCTP, p.SCTP.DestinationPort)
	case p.DestinationNamedPort != "":
		for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP} {
			spec.named = append(spec.named, portName{protocol, p.DestinationNamedPort})
		}
		return true
	}
	b.fault("a protocol that is not known")
	return false
}

func (b *builder) destination(spec *ruleSpec, protocol corev1.Protocol, p *policyv1alpha2.Port) bool {
	if p == nil {
		spec.ports = append(spec.ports, PortMatch{Protocol: protocol})
		return true
	}
	first, last := p.Number, p.Number
	if p.Range != nil {
		first, last = p.Range.Start, p.Range.End
	}
	ports := b.numbers(protocol, first, last)
	spec.ports = append(spec.ports, ports...)
	return len(ports) > 0
}
