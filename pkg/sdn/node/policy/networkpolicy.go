package policy

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// SetNetworkPolicy makes the policy active, in place of its previous state. What does not parse, which no API server should
// let through, allows nothing, and is in the error. So is a policy beyond its budget.
func (e *Engine) SetNetworkPolicy(p *networkingv1.NetworkPolicy) error {
	b := builder{key: policyKey{p.Namespace, p.Name}, limit: e.limits.policy}
	b.networkPolicy(p)
	e.replace(&b, p.CreationTimestamp.Time)
	return b.err()
}

// DeleteNetworkPolicy removes the policy.
func (e *Engine) DeleteNetworkPolicy(namespace, name string) { e.drop(policyKey{namespace, name}, nil) }

func (b *builder) networkPolicy(p *networkingv1.NetworkPolicy) {
	selector, ok := b.selector(&p.Spec.PodSelector)
	if !ok {
		b.fault(notInForce)
		return
	}
	subject := scope{groupKey: groupKey{local: true, namespace: p.Namespace}, onPods: selector}
	b.subject = &subject
	b.isolates = isolates(&p.Spec)
	if b.isolates[Ingress] {
		for i, r := range p.Spec.Ingress {
			if b.over() {
				break
			}
			b.rule(Ingress, i, subject, r.From, r.Ports)
		}
	}
	if b.isolates[Egress] {
		for i, r := range p.Spec.Egress {
			if b.over() {
				break
			}
			b.rule(Egress, i, subject, r.To, r.Ports)
		}
	}
	if b.over() || p.Annotations[compacted] != "" {
		b.tooLarge = true
		b.texts, b.cost, b.faults, b.at = nil, 1, nil, ""
		b.fault("the policy is too large for its budget of %d flows, or has more than %[1]d peers, ports and exceptions: it allows nothing; divide it or make it smaller", b.limit)
	}
}

// isolates are the directions of the policy: those that it names, else ingress, and egress if it has rules for that.
// Source: NetworkPolicySpec.policyTypes.
func isolates(s *networkingv1.NetworkPolicySpec) (out [2]bool) {
	if len(s.PolicyTypes) == 0 {
		return [2]bool{Ingress: true, Egress: len(s.Egress) > 0}
	}
	for _, t := range s.PolicyTypes {
		out[Ingress] = out[Ingress] || t == networkingv1.PolicyTypeIngress
		out[Egress] = out[Egress] || t == networkingv1.PolicyTypeEgress
	}
	return out
}

// rule makes one rule of all ports that have numbers, and one for each port that has a name.
func (b *builder) rule(d Direction, place int, subject scope, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) {
	if b.text += textCost(peers, ports); b.over() {
		return
	}
	b.at = placeName(d, place)
	r := ruleText{
		rule:    rule{name: ruleName(b.key, d, place), direction: d, level: NetworkPolicy, action: Allow},
		subject: subject, anyPeer: len(peers) == 0, anyPort: len(ports) == 0,
	}
	for _, p := range peers {
		if p.IPBlock != nil {
			r.blocks = append(r.blocks, b.block(p.IPBlock)...)
		} else if s, ok := b.peer(p); ok {
			r.peers = append(r.peers, s)
		}
	}
	for _, p := range ports {
		protocol := corev1.ProtocolTCP
		if p.Protocol != nil {
			protocol = *p.Protocol
		}
		switch {
		case p.Port == nil:
			r.ports = append(r.ports, PortMatch{Protocol: protocol})
		case p.Port.Type == intstr.String:
			r.named = append(r.named, portName{protocol, p.Port.StrVal})
		case p.EndPort != nil:
			r.ports = append(r.ports, b.numbers(protocol, p.Port.IntVal, *p.EndPort)...)
		default:
			r.ports = append(r.ports, b.numbers(protocol, p.Port.IntVal, p.Port.IntVal)...)
		}
	}
	b.add(r)
}

// peer is false when a selector does not parse.
func (b *builder) peer(p networkingv1.NetworkPolicyPeer) (scope, bool) {
	pods, ok := b.selector(p.PodSelector)
	if p.NamespaceSelector == nil {
		return scope{groupKey: groupKey{namespace: b.key.namespace}, onPods: pods}, ok
	}
	namespaces, valid := b.selector(p.NamespaceSelector)
	return scope{inNamespaces: namespaces, onPods: pods}, ok && valid
}

func (b *builder) block(block *networkingv1.IPBlock) []netip.Prefix {
	prefixes, err := blocks(block)
	if err != nil {
		b.fault("%w", err)
	}
	return prefixes
}
