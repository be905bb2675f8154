package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

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

// policy is an active policy. Its rules are built while it has local targets and is within the budgets; without rules it only isolates.
type policy struct {
	key      policyKey
	created  time.Time
	ledger   *ledger // of its namespace; nil for a policy of the whole cluster
	cost     int
	subject  *group // that it isolates; nil if nothing of the policy is active
	isolates [2]bool
	texts    []ruleText
	admitted bool // within the budget of its namespace
	counted  bool // admitted, and selects pods of this node
	built    bool
	rules    []*rule
	groups   []*group // of the rules, to be released
}

// replace makes what the builder read active, in place of the policy of that name. Where budgets don't matter its rules are built first, so that
// groups which both have are not made again.
func (e *Engine) replace(b *builder, created time.Time) {
	p := &policy{key: b.key, created: created, cost: b.cost, isolates: b.isolates, texts: b.texts, admitted: true}
	if b.subject != nil {
		p.subject = e.use(*b.subject)
	}
	e.drop(b.key, p)
}

// drop removes the policy of that name, and puts another one in its place, unless that is nil.
func (e *Engine) drop(key policyKey, next *policy) {
	p := e.policies[key]
	if next != nil && next.local() && e.fits(key.namespace, next, p) {
		e.prepare(next)
	}
	if p != nil {
		delete(e.policies, key)
		e.build(p, false)
		p.isolate(e, false)
		e.settleAccount(p, false)
		if p.subject != nil {
			delete(p.subject.set(0).policies, p)
			e.release(p.subject)
		}
	}
	if next != nil {
		e.policies[key] = next
		if next.subject != nil {
			next.subject.set(0).add(next)
		}
		next.isolate(e, true)
		e.settleAccount(next, true)
		e.consider(next)
	}
}

// local reports whether the policy selects a pod of this node.
func (p *policy) local() bool { return p.subject != nil && len(p.subject.set(0).pods) > 0 }

// prepare makes the rules with their groups, and attaches none.
func (e *Engine) prepare(p *policy) {
	for i := range p.texts {
		p.rules = append(p.rules, e.complete(p, p.texts[i]))
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
		e.release(g)
	}
	p.built, p.rules, p.groups = false, nil, nil
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

// ruleText is a rule with selectors in place of groups.
type ruleText struct {
	rule
	subject scope
	port    portName // zero: all ports that have numbers
	peers   []scope
	blocks  []netip.Prefix
	anyPeer bool
	ports   []PortMatch
	named   []portName
	anyPort bool
}

// builder reads a policy. It needs no engine.
type builder struct {
	key      policyKey
	subject  *scope // nil if nothing of the policy can be active
	isolates [2]bool
	texts    []ruleText
	limit    int     // of cost
	cost     int     // see Cost
	text     int     // see textCost
	at       string  // the rule that is being read; "" before the first
	faults   []error // what can't be carried out
	tooLarge bool
}

// add adds one rule of all ports that have numbers, and one for each port that has a name. It adds nothing that is beyond the limit.
func (b *builder) add(text ruleText) {
	selectors := len(text.peers)
	for _, s := range text.peers {
		selectors += values(s.inNamespaces) + values(s.onPods)
	}
	blocks := len(text.blocks)
	if text.direction == Ingress {
		blocks *= 2 // a flow for pods and others, and one for nodes
	}
	if text.anyPort || len(text.ports) > 0 {
		if b.spend(1 + selectors + blocks + len(text.ports)) {
			b.texts = append(b.texts, text)
		}
	}
	for _, port := range text.named {
		if !b.spend(2 + selectors + blocks) {
			return
		}
		one := text
		one.name = fmt.Sprintf("%s/%s-%s", text.name, port.protocol, port.name)
		one.ports = []PortMatch{{Protocol: port.protocol}}
		one.port = port
		b.texts = append(b.texts, one)
	}
}

// values returns how many values the selector has.
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

// complete makes the rule's groups. The pods at the destination of a named port are distinguished by its number, so there blocks
// are the pods that have addresses in them, one group for all blocks of the rule, and all peers are all pods.
func (e *Engine) complete(p *policy, text ruleText) *rule {
	group := func(s scope) *group {
		g := e.use(s)
		p.groups = append(p.groups, g)
		return g
	}
	r := text.rule
	r.namespace = p.key.namespace
	r.ports, r.anyPort, r.anyPeer, r.named = text.ports, text.anyPort, text.anyPeer, text.port != portName{}
	if r.direction == Ingress {
		text.subject.port = text.port
	}
	r.targets = group(text.subject)
	byNumber := r.named && r.direction == Egress
	for _, s := range text.peers {
		if byNumber {
			s.port = text.port
		}
		r.peers = append(r.peers, group(s))
	}
	if !byNumber {
		r.blocks = text.blocks
		return &r
	}
	everywhere := scope{groupKey: groupKey{port: text.port}, inNamespaces: labels.Everything(), onPods: labels.Everything()}
	if text.anyPeer {
		r.anyPeer = false
		r.peers = append(r.peers, group(everywhere))
	}
	if len(text.blocks) > 0 {
		everywhere.prefixes = disjoint(text.blocks)
		everywhere.within = hashPrefixes(everywhere.prefixes)
		r.peers = append(r.peers, group(everywhere))
	}
	return &r
}

// numbers are the ports from first to last.
func (b *builder) numbers(protocol corev1.Protocol, first, last int32) []PortMatch {
	if first < 1 || last > 0xffff || last < first {
		b.fault("ports %d to %d: want numbers from 1 to 65535, in order", first, last)
		return nil
	}
	return portRange(protocol, uint16(first), uint16(last))
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
