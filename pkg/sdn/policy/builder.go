package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// policyKey names a policy. A ClusterNetworkPolicy has no namespace.
type policyKey struct{ namespace, name string }

func (k policyKey) String() string {
	if k.namespace == "" {
		return k.name
	}
	return k.namespace + "/" + k.name
}

// placeName names a rule within its policy.
func placeName(d Direction, place int) string {
	return [...]string{"ingress", "egress"}[d] + "/" + strconv.Itoa(place)
}

// policy is an active policy. Its rules are built while it has local targets and is within the budgets; without rules it only isolates.
type policy struct {
	key      policyKey
	created  time.Time
	ledger   *ledger // of its namespace; nil for a ClusterNetworkPolicy
	cost     int
	subject  *group // the pods that it selects; nil if the policy has no effect
	isolates [2]bool
	specs    []ruleSpec
	admitted bool // within the budget of its namespace
	counted  bool // admitted, and selects pods of this node
	built    bool
	rules    []*rule
	groups   []*group // of the rules; build(false) releases them
}

// replace activates the policy of the builder in place of the previous one of that name. Within all budgets the new rules are built first, so that
// groups of both policies are not re-created.
func (e *Engine) replace(b *builder, created time.Time) {
	p := &policy{key: b.key, created: created, cost: b.cost, isolates: b.isolates, specs: b.specs, admitted: true}
	if b.subject != nil {
		p.subject = e.acquireGroup(*b.subject)
	}
	e.replacePolicy(b.key, p)
}

// replacePolicy removes the policy of that name, and adds next in its place unless next is nil.
func (e *Engine) replacePolicy(key policyKey, next *policy) {
	p := e.policies[key]
	if next != nil && next.local() && e.fits(key.namespace, next, p) {
		e.prepare(next)
	}
	if p != nil {
		delete(e.policies, key)
		e.build(p, false)
		p.isolate(e, false)
		e.account(p, false)
		if p.subject != nil {
			delete(p.subject.podSet(0).policies, p)
			e.releaseGroup(p.subject)
		}
	}
	if next != nil {
		e.policies[key] = next
		if next.subject != nil {
			next.subject.podSet(0).add(next)
		}
		next.isolate(e, true)
		e.account(next, true)
		e.rebuild(next)
	}
}

// local reports whether the policy selects a pod of this node.
func (p *policy) local() bool { return p.subject != nil && len(p.subject.podSet(0).pods) > 0 }

// prepare creates the rules with their groups, without attaching them.
func (e *Engine) prepare(p *policy) {
	for i := range p.specs {
		p.rules = append(p.rules, e.newRule(p, &p.specs[i]))
	}
}

// build attaches the rules of a policy, or removes them.
func (e *Engine) build(p *policy, should bool) {
	if should {
		if p.built {
			return
		}
		if p.rules == nil {
			e.prepare(p)
		}
		for _, r := range p.rules {
			e.attach(r)
		}
		p.built = true
		return
	}
	if p.built {
		for _, r := range p.rules {
			e.detach(r)
		}
	}
	for _, g := range p.groups {
		e.releaseGroup(g)
	}
	p.built, p.rules, p.groups = false, nil, nil
}

// isolate adds the policy to the isolators of its subject, or removes it.
func (p *policy) isolate(e *Engine, does bool) {
	for d, isolates := range p.isolates {
		if !isolates {
			continue
		}
		s := p.subject.podSet(0)
		was := s.isolated(Direction(d))
		if does {
			s.isolate(Direction(d), p)
		} else {
			delete(s.isolators[d], p)
		}
		if was != s.isolated(Direction(d)) {
			for _, x := range s.pods {
				e.touch(Clause{Kind: Target, Pod: x.PodKey})
			}
			e.revokes = e.revokes || does && len(s.pods) > 0
		}
	}
}

// scope describes the pods of a group.
type scope struct {
	groupKey
	inNamespaces labels.Selector // nil: the namespace of the key
	onPods       labels.Selector
	prefixes     []netip.Prefix // sorted and disjoint, if the key has their hash
}

// ruleSpec is a parsed rule: it has selectors in place of groups.
type ruleSpec struct {
	rule
	subject *scope
	port    portName // zero: all numeric ports
	peers   []scope
	blocks  []netip.Prefix
	anyPeer bool
	ports   []PortMatch
	named   []portName
	anyPort bool
}

// builder parses a policy, without an engine: see parseNetworkPolicy and parseClusterPolicy.
type builder struct {
	key      policyKey
	subject  *scope // nil if the policy has no effect
	isolates [2]bool
	specs    []ruleSpec
	limit    int     // of cost
	cost     int     // see Cost
	size     int     // see sizeOf
	name     string  // of the policy, as in the names of its rules
	at       string  // the current rule's place; "" before the first
	faults   []error // of invalid or unsupported fields
	tooLarge bool
}

// ruleName names the current rule.
func (b *builder) ruleName() string { return b.name + "/" + b.at }

// add adds one rule for all numeric ports, and one for each named port. It adds nothing that exceeds the limit.
func (b *builder) add(spec ruleSpec) {
	selectors := len(spec.peers)
	for _, s := range spec.peers {
		selectors += values(s.inNamespaces) + values(s.onPods)
	}
	blocks := len(spec.blocks)
	if spec.direction == Ingress {
		blocks *= 2 // a flow for pods and others, and one for nodes
	}
	if spec.anyPort || len(spec.ports) > 0 {
		if b.spend(1 + selectors + blocks + len(spec.ports)) {
			b.specs = append(b.specs, spec)
		}
	}
	for _, port := range spec.named {
		if !b.spend(2 + selectors + blocks) {
			return
		}
		one := spec
		one.name = spec.name + "/" + string(port.protocol) + "-" + port.name
		one.ports = []PortMatch{{Protocol: port.protocol}}
		one.port = port
		b.specs = append(b.specs, one)
	}
}

// values returns the number of values of the selector.
func values(s labels.Selector) (n int) {
	if s == nil {
		return 0
	}
	requirements, _ := s.Requirements()
	for _, r := range requirements {
		n += r.Values().Len()
	}
	return n
}

// newRule creates a rule with its groups. The pods at the destination of a named port are distinguished by its number. So blocks become one group of the
// pods with an address in any of them, and "any peer" becomes all pods.
func (e *Engine) newRule(p *policy, spec *ruleSpec) *rule {
	group := func(s scope) *group {
		g := e.acquireGroup(s)
		p.groups = append(p.groups, g)
		return g
	}
	r := spec.rule
	r.namespace = p.key.namespace
	r.ports, r.anyPort, r.anyPeer, r.named = spec.ports, spec.anyPort, spec.anyPeer, spec.port != portName{}
	subject := *spec.subject
	if r.direction == Ingress {
		subject.port = spec.port
	}
	r.targets = group(subject)
	byNumber := r.named && r.direction == Egress
	for _, s := range spec.peers {
		if byNumber {
			s.port = spec.port
		}
		r.peers = append(r.peers, group(s))
	}
	if !byNumber {
		r.blocks = spec.blocks
		return &r
	}
	everywhere := scope{groupKey: groupKey{port: spec.port}, inNamespaces: labels.Everything(), onPods: labels.Everything()}
	if spec.anyPeer {
		r.anyPeer = false
		r.peers = append(r.peers, group(everywhere))
	}
	if len(spec.blocks) > 0 {
		everywhere.prefixes = disjoint(spec.blocks)
		everywhere.within = hashPrefixes(everywhere.prefixes)
		r.peers = append(r.peers, group(everywhere))
	}
	return &r
}

// numbers returns the ports from first to last.
func (b *builder) numbers(protocol corev1.Protocol, first, last int32) []PortMatch {
	if first < 1 || last > 0xffff || last < first {
		b.fault("ports %d to %d: want numbers from 1 to 65535, in order", first, last)
		return nil
	}
	return portRange(protocol, uint16(first), uint16(last))
}

// selector parses a selector; nil selects everything. It returns false if the selector is invalid.
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

// err returns the joined faults, or nil if there are none.
func (b *builder) err() error {
	if len(b.faults) == 0 {
		return nil
	}
	return fmt.Errorf("network policy %s: %w", b.name, errors.Join(b.faults...))
}
