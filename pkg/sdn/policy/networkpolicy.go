package policy

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// SetNetworkPolicy adds or replaces the policy. Invalid parts, which the API server should reject, allow nothing, and are in the error. So is a
// policy that is too large.
func (e *Engine) SetNetworkPolicy(p *networkingv1.NetworkPolicy) error {
	b := parseNetworkPolicy(p, e.limits.policy)
	e.replace(b, p.CreationTimestamp.Time)
	return b.err()
}

// DeleteNetworkPolicy removes the policy.
func (e *Engine) DeleteNetworkPolicy(namespace, name string) {
	e.replacePolicy(policyKey{namespace, name}, nil)
}

// parseNetworkPolicy parses the policy, whose rules cost at most limit.
func parseNetworkPolicy(p *networkingv1.NetworkPolicy, limit int) *builder {
	key := policyKey{p.Namespace, p.Name}
	b := &builder{key: key, name: key.String(), limit: limit}
	b.networkPolicy(p)
	return b
}

func (b *builder) networkPolicy(p *networkingv1.NetworkPolicy) {
	selector, ok := b.selector(&p.Spec.PodSelector)
	if !ok {
		b.fault(noEffect)
		return
	}
	b.subject = &scope{groupKey: groupKey{local: true, namespace: p.Namespace, pods: selector.String()}, onPods: selector}
	b.isolates = isolates(&p.Spec)
	b.specs = make([]ruleSpec, 0, len(p.Spec.Ingress)+len(p.Spec.Egress))
	if b.isolates[Ingress] {
		for i, r := range p.Spec.Ingress {
			if b.over() {
				break
			}
			b.rule(Ingress, i, b.subject, r.From, r.Ports)
		}
	}
	if b.isolates[Egress] {
		for i, r := range p.Spec.Egress {
			if b.over() {
				break
			}
			b.rule(Egress, i, b.subject, r.To, r.Ports)
		}
	}
	if b.over() || p.Annotations[compacted] != "" {
		b.tooLarge = true
		b.specs, b.cost, b.faults, b.at = nil, 1, nil, ""
		b.fault("the policy is too large for its budget of %d flows, or has more than %[1]d peers, ports and exceptions: it allows nothing; divide it or make it smaller", b.limit)
	}
}

// isolates returns the directions of the policy: those that it names, else ingress, and egress if it has egress rules.
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

// rule adds one rule for all numeric ports, and one for each named port.
func (b *builder) rule(d Direction, place int, subject *scope, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) {
	if b.size += sizeOf(peers, ports); b.over() {
		return
	}
	b.at = placeName(d, place)
	r := ruleSpec{
		rule:    rule{name: b.ruleName(), direction: d, level: NetworkPolicy, action: Allow},
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

// peer returns false if a selector is invalid.
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
