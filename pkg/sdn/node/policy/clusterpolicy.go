package policy

import (
	"math"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// SetClusterNetworkPolicy makes the policy active, in place of its previous state. A rule that can't be carried out fails
// closed, as ClusterNetworkPolicyEgressPeer says: one that accepts matches nothing, another denies all. Those rules are
// in the error. The budgets are for NetworkPolicies: the API bounds what one of the cluster has.
func (e *Engine) SetClusterNetworkPolicy(p *policyv1alpha2.ClusterNetworkPolicy) error {
	b := builder{key: policyKey{name: p.Name}, limit: math.MaxInt}
	b.clusterPolicy(&p.Spec)
	e.replace(&b, p.CreationTimestamp.Time)
	return b.err()
}

// DeleteClusterNetworkPolicy removes the policy.
func (e *Engine) DeleteClusterNetworkPolicy(name string) { e.drop(policyKey{name: name}, nil) }

func (b *builder) clusterPolicy(s *policyv1alpha2.ClusterNetworkPolicySpec) {
	subject, ok := b.clusterSubject(s)
	if !ok {
		b.fault(notInForce)
		return
	}
	b.subject = &subject
	for i, r := range s.Ingress {
		b.at = placeName(Ingress, i)
		text := ruleText{rule: rule{direction: Ingress, level: level(s.Tier, s.Priority, i)}, subject: subject}
		ok := b.hasPeers(len(r.From))
		for _, p := range r.From {
			ok = ok && b.clusterPeer(&text, p.Namespaces, p.Pods)
		}
		b.clusterRule(text, i, r.Action, r.Protocols, ok)
	}
	for i, r := range s.Egress {
		b.at = placeName(Egress, i)
		text := ruleText{rule: rule{direction: Egress, level: level(s.Tier, s.Priority, i)}, subject: subject}
		ok := b.hasPeers(len(r.To))
		for _, p := range r.To {
			ok = ok && b.egressPeer(&text, p)
		}
		b.clusterRule(text, i, r.Action, r.Protocols, ok)
	}
}

// clusterSubject are the pods that the policy is about. It is false when nothing of the policy can be carried out.
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

// hasPeers is false for a list that is empty, as one is that was written for a newer version.
func (b *builder) hasPeers(n int) bool {
	if n == 0 {
		b.fault("no peers")
	}
	return n > 0
}

// clusterRule completes a rule of which the peers are there, if they are all understood.
func (b *builder) clusterRule(text ruleText, place int, action policyv1alpha2.ClusterNetworkPolicyRuleAction, protocols []policyv1alpha2.ClusterNetworkPolicyProtocol, ok bool) {
	text.name = ruleName(b.key, text.direction, place)
	switch action {
	case policyv1alpha2.ClusterNetworkPolicyRuleActionAccept:
		text.action = Allow
	case policyv1alpha2.ClusterNetworkPolicyRuleActionPass:
		text.action = Pass
	case policyv1alpha2.ClusterNetworkPolicyRuleActionDeny:
		text.action = Deny
	default:
		b.fault("action %q: not known", action)
		text.action, ok = Deny, false
	}
	text.anyPort = len(protocols) == 0
	for _, p := range protocols {
		ok = ok && b.clusterPort(&text, p)
	}
	if ok {
		b.add(text)
		return
	}
	if text.action == Allow {
		b.fault("the rule matches nothing")
		return
	}
	b.fault("the rule denies all")
	b.add(ruleText{
		rule:    rule{name: text.name, direction: text.direction, level: text.level, action: Deny},
		subject: text.subject, anyPeer: true, anyPort: true,
	})
}

// selected are pods by their namespaces, or by both. It is false where there is no selector, or one that does not parse.
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

func (b *builder) clusterPeer(text *ruleText, namespaces *metav1.LabelSelector, pods *policyv1alpha2.NamespacedPod) bool {
	s, ok := b.selected(namespaces, pods)
	if ok {
		text.peers = append(text.peers, s)
	}
	return ok
}

// egressPeer does not know domain names: what a resolver tells pods is not seen here.
func (b *builder) egressPeer(text *ruleText, p policyv1alpha2.ClusterNetworkPolicyEgressPeer) bool {
	switch {
	case p.Nodes != nil:
		nodes, ok := b.selector(p.Nodes)
		if ok {
			text.peers = append(text.peers, scope{onPods: nodes}) // in the namespace without a name
		}
		return ok
	case len(p.Networks) > 0:
		for _, cidr := range p.Networks {
			prefix, err := netip.ParsePrefix(string(cidr))
			if err != nil {
				b.fault("network %q: %w", cidr, err)
				return false
			}
			text.blocks = append(text.blocks, prefix.Masked())
		}
		return true
	case len(p.DomainNames) > 0:
		b.fault("domain names can't be peers")
		return false
	}
	return b.clusterPeer(text, p.Namespaces, p.Pods)
}

func (b *builder) clusterPort(text *ruleText, p policyv1alpha2.ClusterNetworkPolicyProtocol) bool {
	switch {
	case p.TCP != nil:
		return b.destination(text, corev1.ProtocolTCP, p.TCP.DestinationPort)
	case p.UDP != nil:
		return b.destination(text, corev1.ProtocolUDP, p.UDP.DestinationPort)
	case p.SCTP != nil:
		return b.destination(text, corev1.ProtocolSCTP, p.SCTP.DestinationPort)
	case p.DestinationNamedPort != "":
		for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP} {
			text.named = append(text.named, portName{protocol, p.DestinationNamedPort})
		}
		return true
	}
	b.fault("a protocol that is not known")
	return false
}

func (b *builder) destination(text *ruleText, protocol corev1.Protocol, p *policyv1alpha2.Port) bool {
	if p == nil {
		text.ports = append(text.ports, PortMatch{Protocol: protocol})
		return true
	}
	first, last := p.Number, p.Number
	if p.Range != nil {
		first, last = p.Range.Start, p.Range.End
	}
	ports := b.numbers(protocol, first, last)
	text.ports = append(text.ports, ports...)
	return len(ports) > 0
}
