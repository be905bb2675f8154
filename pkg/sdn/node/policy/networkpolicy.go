package policy

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// policyKey names a policy.
type policyKey struct{ namespace, name string }

func (k policyKey) String() string { return k.namespace + "/" + k.name }

// policy is a policy in force.
type policy struct {
	subject  *group // nil when its selector does not parse
	isolates [2]bool
	rules    []*rule
	groups   []*group // to be released
}

// SetNetworkPolicy puts the policy in force, in place of its former state. What does not parse, which no API server should
// let through, allows nothing, and is in the error.
func (e *Engine) SetNetworkPolicy(p *networkingv1.NetworkPolicy) error {
	key := policyKey{p.Namespace, p.Name}
	b := builder{engine: e, key: key}
	next := b.build(p)
	// The new policy holds its groups already: those that both have are not made again.
	e.drop(key)
	e.policies[key] = next
	for d, isolates := range next.isolates {
		if isolates && next.subject != nil {
			e.isolate(next.subject, Direction(d), 1) //nolint:gosec // one of two
		}
	}
	for _, r := range next.rules {
		e.attach(r)
	}
	return errors.Join(b.faults...)
}

// DeleteNetworkPolicy puts the policy out of force.
func (e *Engine) DeleteNetworkPolicy(namespace, name string) { e.drop(policyKey{namespace, name}) }

func (e *Engine) drop(key policyKey) {
	p := e.policies[key]
	if p == nil {
		return
	}
	delete(e.policies, key)
	for _, r := range p.rules {
		e.detach(r)
	}
	for d, isolates := range p.isolates {
		if isolates && p.subject != nil {
			e.isolate(p.subject, Direction(d), -1) //nolint:gosec // one of two
		}
	}
	for _, g := range p.groups {
		e.release(g)
	}
}

func (e *Engine) isolate(g *group, d Direction, by int) {
	s := g.set(0)
	if s.isolates[d] += by; s.isolates[d] > 1 || by > 0 && s.isolates[d] != 1 {
		return // it was so before
	}
	for p := range s.pods {
		e.touch(Piece{Kind: Target, Pod: p.PodKey})
	}
}

// builder makes a policy of its text.
type builder struct {
	engine *Engine
	key    policyKey
	out    policy
	faults []error
}

func (b *builder) build(p *networkingv1.NetworkPolicy) *policy {
	subject, ok := b.selector(&p.Spec.PodSelector)
	if !ok {
		return &b.out
	}
	b.out.subject = b.group(groupKey{local: true, namespace: p.Namespace}, nil, subject)
	b.out.isolates = isolates(&p.Spec)
	if b.out.isolates[Ingress] {
		for i, r := range p.Spec.Ingress {
			b.rule(Ingress, i, subject, r.From, r.Ports)
		}
	}
	if b.out.isolates[Egress] {
		for i, r := range p.Spec.Egress {
			b.rule(Egress, i, subject, r.To, r.Ports)
		}
	}
	return &b.out
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
func (b *builder) rule(d Direction, place int, subject labels.Selector, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) {
	name := fmt.Sprintf("%s/%s/%d", b.key, [...]string{"ingress", "egress"}[d], place)
	numbered := &rule{name: name, direction: d, level: NetworkPolicy, action: Allow, anyPort: len(ports) == 0}
	for _, p := range ports {
		protocol := corev1.ProtocolTCP
		if p.Protocol != nil {
			protocol = *p.Protocol
		}
		if p.Port == nil || p.Port.Type == intstr.Int {
			numbered.ports = append(numbered.ports, b.numbers(protocol, p)...)
			continue
		}
		port := portName{protocol, p.Port.StrVal}
		b.add(&rule{
			name: fmt.Sprintf("%s/%s-%s", name, protocol, port.name), direction: d, level: NetworkPolicy, action: Allow,
			named: true, ports: []PortMatch{{Protocol: protocol}},
		}, subject, peers, port)
	}
	if numbered.anyPort || len(numbered.ports) > 0 {
		b.add(numbered, subject, peers, portName{})
	}
}

// numbers are the ports of an item without a name.
func (b *builder) numbers(protocol corev1.Protocol, p networkingv1.NetworkPolicyPort) []PortMatch {
	if p.Port == nil {
		return []PortMatch{{Protocol: protocol}}
	}
	first, last := p.Port.IntVal, p.Port.IntVal
	if p.EndPort != nil {
		last = *p.EndPort
	}
	if first < 1 || last > 0xffff || last < first {
		b.fault("ports %d to %d: want numbers from 1 to 65535, in order", first, last)
		return nil
	}
	return portRange(protocol, uint16(first), uint16(last))
}

// add completes the rule with its targets and peers. The pods at the destination of a named port are told apart by its number.
func (b *builder) add(r *rule, subject labels.Selector, peers []networkingv1.NetworkPolicyPeer, port portName) {
	targets, others := groupKey{local: true, namespace: b.key.namespace}, groupKey{}
	if r.direction == Ingress {
		targets.port = port
	} else {
		others.port = port
	}
	r.targets = b.group(targets, nil, subject)
	r.anyPeer = len(peers) == 0
	if byNumber := others.port != (portName{}); r.anyPeer && byNumber {
		r.anyPeer = false
		r.peers = append(r.peers, b.group(others, labels.Everything(), nil))
	}
	for _, p := range peers {
		if p.IPBlock != nil {
			b.block(r, p.IPBlock, others)
		} else if g := b.peer(p, others); g != nil {
			r.peers = append(r.peers, g)
		}
	}
	b.out.rules = append(b.out.rules, r)
}

// block adds the block; where a port's name must be looked up, the pods that have addresses in it.
func (b *builder) block(r *rule, block *networkingv1.IPBlock, key groupKey) {
	prefixes, err := blocks(block)
	if err != nil {
		b.fault("%w", err)
		return
	}
	if key.port == (portName{}) {
		r.blocks = append(r.blocks, prefixes...)
		return
	}
	for _, p := range prefixes {
		key.within = p
		r.peers = append(r.peers, b.group(key, labels.Everything(), nil))
	}
}

// peer is nil when a selector does not parse.
func (b *builder) peer(p networkingv1.NetworkPolicyPeer, key groupKey) *group {
	pods, ok := b.selector(p.PodSelector)
	if !ok {
		return nil
	}
	if p.NamespaceSelector == nil {
		key.namespace = b.key.namespace
		return b.group(key, nil, pods)
	}
	namespaces, ok := b.selector(p.NamespaceSelector)
	if !ok {
		return nil
	}
	return b.group(key, namespaces, pods)
}

func (b *builder) group(key groupKey, namespaces, pods labels.Selector) *group {
	g := b.engine.use(key, namespaces, pods)
	b.out.groups = append(b.out.groups, g)
	return g
}

// selector of nil selects everything.
func (b *builder) selector(s *metav1.LabelSelector) (labels.Selector, bool) {
	if s == nil {
		return labels.Everything(), true
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		b.fault("selector: %w", err)
		return nil, false
	}
	return selector, true
}

func (b *builder) fault(format string, args ...any) {
	b.faults = append(b.faults, fmt.Errorf("network policy %s: "+format, append([]any{b.key}, args...)...))
}
