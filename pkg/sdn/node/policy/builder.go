package policy

import (
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// policyKey names a policy; one of the whole cluster has no namespace.
type policyKey struct{ namespace, name string }

func (k policyKey) String() string {
	if k.namespace == "" {
		return k.name
	}
	return k.namespace + "/" + k.name
}

func ruleName(k policyKey, d Direction, place int) string {
	return k.String() + "/" + placeName(d, place)
}

// placeName is a rule's within its policy.
func placeName(d Direction, place int) string {
	return fmt.Sprintf("%s/%d", [...]string{"ingress", "egress"}[d], place)
}

// policy is a policy in force.
type policy struct {
	key      policyKey
	subject  *group // that it isolates; nil when it isolates none
	isolates [2]bool
	rules    []*rule
	groups   []*group // to be released
}

// replace puts the policy in force, in place of the one of that name. It holds its groups already, so that those which
// both have are not made again.
func (e *Engine) replace(key policyKey, p *policy) {
	e.drop(key)
	p.key = key
	e.policies[key] = p
	p.isolate(e, true)
	for _, r := range p.rules {
		e.attach(r)
	}
}

func (e *Engine) drop(key policyKey) {
	p := e.policies[key]
	if p == nil {
		return
	}
	delete(e.policies, key)
	for _, r := range p.rules {
		e.detach(r)
	}
	p.isolate(e, false)
	for _, g := range p.groups {
		e.release(g)
	}
}

// isolate puts the policy among those that isolate its subject, or takes it from there.
func (p *policy) isolate(e *Engine, does bool) {
	for d, isolates := range p.isolates {
		if !isolates {
			continue
		}
		s := p.subject.set(0)
		was := s.isolated(Direction(d))
		if does {
			s.isolate(Direction(d), p)
		} else {
			delete(s.isolators[d], p)
		}
		if was != s.isolated(Direction(d)) {
			for _, x := range s.pods {
				e.touch(Piece{Kind: Target, Pod: x.PodKey})
			}
			e.forbids = e.forbids || does && len(s.pods) > 0
		}
	}
}

// scope is what a group is made of.
type scope struct {
	groupKey
	inNamespaces labels.Selector // nil: of the key's namespace
	onPods       labels.Selector
	prefixes     []netip.Prefix // sorted and disjoint, if the key has their hash
}

// ruleText is a rule as its policy has it: several named ports among its ports.
type ruleText struct {
	rule
	subject scope
	peers   []scope
	blocks  []netip.Prefix
	anyPeer bool
	ports   []PortMatch
	named   []portName
	anyPort bool
}

// builder makes a policy of its text.
type builder struct {
	engine *Engine
	key    policyKey
	out    policy
	at     string  // the rule that is being made; "" before the first
	faults []error // what can't be carried out
}

// add makes one rule of all ports that have numbers, and one for each port that has a name.
func (b *builder) add(text ruleText) {
	if text.anyPort || len(text.ports) > 0 {
		b.complete(text, portName{})
	}
	for _, port := range text.named {
		one := text
		one.name = fmt.Sprintf("%s/%s-%s", text.name, port.protocol, port.name)
		one.ports = []PortMatch{{Protocol: port.protocol}}
		b.complete(one, port)
	}
}

// complete finds the rule's groups. The pods at the destination of a named port are told apart by its number, so there blocks
// are the pods that have addresses in them, one group for all blocks of the rule, and all peers are all pods.
func (b *builder) complete(text ruleText, port portName) {
	r := text.rule
	r.ports, r.anyPort, r.anyPeer, r.named = text.ports, text.anyPort, text.anyPeer, port != portName{}
	if r.direction == Ingress {
		text.subject.port = port
	}
	r.targets = b.group(text.subject)
	if r.direction == Ingress || !r.named {
		r.blocks = text.blocks
		for _, s := range text.peers {
			r.peers = append(r.peers, b.group(s))
		}
	} else {
		b.byNumber(&r, text, port)
	}
	b.out.rules = append(b.out.rules, &r)
}

func (b *builder) byNumber(r *rule, text ruleText, port portName) {
	for _, s := range text.peers {
		s.port = port
		r.peers = append(r.peers, b.group(s))
	}
	everywhere := scope{groupKey: groupKey{port: port}, inNamespaces: labels.Everything(), onPods: labels.Everything()}
	if text.anyPeer {
		r.anyPeer = false
		r.peers = append(r.peers, b.group(everywhere))
	}
	if len(text.blocks) > 0 {
		everywhere.prefixes = disjoint(text.blocks)
		everywhere.within = hashPrefixes(everywhere.prefixes)
		r.peers = append(r.peers, b.group(everywhere))
	}
}

// numbers are the ports from first to last.
func (b *builder) numbers(protocol corev1.Protocol, first, last int32) []PortMatch {
	if first < 1 || last > 0xffff || last < first {
		b.fault("ports %d to %d: want numbers from 1 to 65535, in order", first, last)
		return nil
	}
	return portRange(protocol, uint16(first), uint16(last))
}

func (b *builder) group(s scope) *group {
	g := b.engine.use(s)
	b.out.groups = append(b.out.groups, g)
	return g
}

// selector of nil selects everything. It is false when the selector does not parse.
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
	err := fmt.Errorf(format, args...)
	if b.at != "" {
		err = fmt.Errorf("%s: %w", b.at, err)
	}
	b.faults = append(b.faults, err)
}

// err is nil when all can be carried out.
func (b *builder) err() error {
	if len(b.faults) == 0 {
		return nil
	}
	return fmt.Errorf("network policy %s: %w", b.key, errors.Join(b.faults...))
}
