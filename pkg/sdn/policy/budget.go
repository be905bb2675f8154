package policy

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
)

// The budgets of NetworkPolicies, in flows (see Cost). Whether a policy is within them depends only on the policies and the pods of this node,
// not on time, load, or the order of events:
//
//   - A policy costs at most maxPolicyCost, and has at most as many peers, ports and exceptions.
//   - The policies of a namespace, the oldest first, cost at most maxNamespaceCost.
//   - Those of them that select pods of this node cost at most maxNodeCost, for all namespaces together. If it is more, all namespaces get the same
//     share, a power of two; one that needs less than its share loses nothing.
//
// A policy over budget has no rules: it isolates the pods that it selects, and allows nothing.
const (
	maxPolicyCost    = 10_000
	maxNamespaceCost = 100_000
	maxNodeCost      = 200_000
)

// compacted is the annotation of a policy of which Compact has removed the rules.
const compacted = "compacted.ovsdn.io"

// Compact returns the policy without metadata that no rule depends on, and, if it is larger than its budget, without its rules: the copy is evaluated and
// reported as the original is, and needs no memory.
func Compact(p *networkingv1.NetworkPolicy) *networkingv1.NetworkPolicy {
	out := *p
	out.ManagedFields, out.Annotations, out.OwnerReferences, out.Finalizers, out.Labels = nil, nil, nil, nil, nil
	b := parseNetworkPolicy(p, maxPolicyCost)
	if b.subject != nil && b.tooLarge {
		out.Annotations = map[string]string{compacted: "true"}
		out.Spec = networkingv1.NetworkPolicySpec{PodSelector: p.Spec.PodSelector, PolicyTypes: types(b.isolates)}
	}
	return &out
}

func types(isolates [2]bool) []networkingv1.PolicyType {
	out := []networkingv1.PolicyType{}
	if isolates[Ingress] {
		out = append(out, networkingv1.PolicyTypeIngress)
	}
	if isolates[Egress] {
		out = append(out, networkingv1.PolicyTypeEgress)
	}
	return out
}

// spend adds to the cost, and reports whether it is still within the limit.
func (b *builder) spend(n int) bool {
	b.cost += n
	return !b.over()
}

func (b *builder) over() bool { return b.cost > b.limit || b.size > b.limit }

// sizeOf returns the cost of reading a rule, whatever it compiles to.
func sizeOf(peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) int {
	n := len(peers) + len(ports)
	for _, p := range peers {
		if p.IPBlock != nil {
			n += len(p.IPBlock.Except)
		}
	}
	return n
}

// limits are budgets in flows.
type limits struct{ policy, namespace, node int }

// budgets is the state of all budgets.
type budgets struct {
	limits       limits
	ledgers      map[string]*ledger   // by namespace
	due          map[*ledger]struct{} // for the next rebalance
	localChanged map[*policy]struct{} // policies that got their first local pod, or lost the last
	local        int                  // cost of all ledgers' local policies
	share        int                  // of the node, that each namespace has at most
	shareDue     bool                 // the shares may have to change

	overBudget      []string // see OverBudget
	overBudgetDirty bool     // a ledger's overBudget has changed since
}

func newBudgets() budgets {
	return budgets{
		limits:  limits{maxPolicyCost, maxNamespaceCost, maxNodeCost},
		ledgers: map[string]*ledger{}, due: map[*ledger]struct{}{}, localChanged: map[*policy]struct{}{}, share: math.MaxInt,
	}
}

// ledger is the account of a namespace.
type ledger struct {
	policies   map[*policy]struct{}
	total      int       // cost of all
	local      int       // cost of the admitted ones that select pods of this node
	over       bool      // some are not admitted
	overBudget []*policy // the local ones without rules; set by setOverBudget
}

// OverBudget returns the names of the policies that exceed the budget of their namespace or of the node, sorted: they select pods of this node and have
// no rules. The caller must not change the slice. While no ledger has changed, the call costs nothing.
func (e *Engine) OverBudget() []string {
	e.rebalance()
	if !e.overBudgetDirty {
		return e.overBudget
	}
	e.overBudgetDirty = false
	e.overBudget = nil
	for _, l := range e.ledgers {
		for _, p := range l.overBudget {
			e.overBudget = append(e.overBudget, p.key.String())
		}
	}
	slices.Sort(e.overBudget)
	return e.overBudget
}

// setOverBudget sets the policies of a ledger that exceed a budget.
func (e *Engine) setOverBudget(l *ledger, policies []*policy) {
	if !slices.Equal(l.overBudget, policies) {
		e.overBudgetDirty = true
	}
	l.overBudget = policies
}

// older orders policies by age, then by name.
func older(x, y *policy) int {
	return cmp.Or(x.created.Truncate(time.Second).Compare(y.created.Truncate(time.Second)), cmp.Compare(x.key.name, y.key.name))
}

// fits reports whether all policies stay within all budgets if next replaces a policy, which may be nil.
func (e *Engine) fits(namespace string, next, before *policy) bool {
	if namespace == "" {
		return true
	}
	total, had := 0, 0
	if l := e.ledgers[namespace]; l != nil {
		if l.over {
			return false
		}
		total = l.total
	}
	if before != nil {
		had = before.cost
	}
	return total-had+next.cost <= e.limits.namespace && e.share == math.MaxInt && e.local+next.cost <= e.limits.node
}

// account adds a policy to its namespace's ledger, or removes it.
func (e *Engine) account(p *policy, added bool) {
	if p.key.namespace == "" {
		return
	}
	if p.ledger = e.ledgers[p.key.namespace]; p.ledger == nil {
		p.ledger = &ledger{policies: map[*policy]struct{}{}}
		e.ledgers[p.key.namespace] = p.ledger
	}
	l := p.ledger
	if added {
		l.policies[p] = struct{}{}
		l.total += p.cost
	} else {
		e.setCounted(p, false)
		delete(l.policies, p)
		l.total -= p.cost
	}
	if l.over || l.total > e.limits.namespace {
		e.due[l] = struct{}{}
	}
	if len(l.policies) == 0 {
		e.setOverBudget(l, nil)
		delete(e.ledgers, p.key.namespace)
	}
}

// setCounted counts an admitted policy among those that select pods of this node, or no longer.
func (e *Engine) setCounted(p *policy, local bool) {
	if p.counted == local {
		return
	}
	p.counted = local
	change := p.cost
	if !local {
		change = -change
	}
	p.ledger.local += change
	e.local += change
	if e.local > e.limits.node || e.share != math.MaxInt {
		e.shareDue = true
		e.due[p.ledger] = struct{}{}
	}
}

func (e *Engine) rebuildLocalChanged() {
	for p := range e.localChanged {
		delete(e.localChanged, p)
		if e.policies[p.key] == p {
			e.rebuild(p)
		}
	}
}

// rebuild builds the rules of a policy, or removes them. Where a budget is exceeded, which is rare, rebalance does it.
func (e *Engine) rebuild(p *policy) {
	l := p.ledger
	if l == nil {
		e.build(p, p.local())
		return
	}
	if _, due := e.due[l]; due || l.over {
		e.due[l] = struct{}{}
		return
	}
	e.setCounted(p, p.local())
	if e.shareDue || e.share != math.MaxInt {
		e.due[l] = struct{}{}
		return
	}
	e.build(p, p.local())
}

// rebalance applies the budgets of namespaces that exceed theirs, and the budget of the node if it is exceeded. It costs O(n log n) for the n policies of the
// namespaces whose policies or local pods changed; for those of all namespaces if the share changed, which is a power of two.
func (e *Engine) rebalance() {
	for l := range e.due {
		cost := 0
		l.over = false
		for _, p := range slices.SortedFunc(maps.Keys(l.policies), older) {
			cost += p.cost
			p.admitted = cost <= e.limits.namespace
			l.over = l.over || !p.admitted
			e.setCounted(p, p.admitted && p.local())
		}
	}
	if e.shareDue {
		e.shareDue = false
		if share := e.fairShare(); share != e.share {
			e.share = share
			for _, l := range e.ledgers {
				e.due[l] = struct{}{}
			}
		}
	}
	for l := range e.due {
		e.apply(l)
	}
	clear(e.due)
}

// apply builds the rules of the oldest local policies within the namespace's share, and removes those of the others.
func (e *Engine) apply(l *ledger) {
	var over []*policy
	cost := 0
	for _, p := range slices.SortedFunc(maps.Keys(l.policies), older) {
		if p.counted {
			cost += p.cost
		}
		e.build(p, p.counted && cost <= e.share)
		if !p.built && p.local() {
			over = append(over, p)
		}
	}
	e.setOverBudget(l, over)
}

// fairShare returns the largest power of two that each namespace can have of the node's budget, if none takes more than it needs; math.MaxInt if the
// budget suffices for all.
func (e *Engine) fairShare() int {
	if e.local <= e.limits.node {
		return math.MaxInt
	}
	for share := 1 << 30; share > 0; share /= 2 {
		sum := 0
		for _, l := range e.ledgers {
			sum += min(l.local, share)
		}
		if sum <= e.limits.node {
			return share
		}
	}
	return 0
}
