package policy

import (
	"maps"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
)

// Ledger reports which NetworkPolicies of a namespace exceed its budget, by the same rules as the engine.
type Ledger struct {
	budget   int
	total    int
	policies map[string]*policy
}

// NewLedger returns a ledger without policies.
func NewLedger() *Ledger { return &Ledger{budget: maxNamespaceCost, policies: map[string]*policy{}} }

// Set adds or changes a policy.
func (l *Ledger) Set(p *networkingv1.NetworkPolicy) {
	l.Delete(p.Name)
	x := policyWithCost(p)
	l.policies[p.Name] = x
	l.total += x.cost
}

// Delete removes a policy. It reports whether the ledger is empty.
func (l *Ledger) Delete(name string) bool {
	if p := l.policies[name]; p != nil {
		l.total -= p.cost
		delete(l.policies, name)
	}
	return len(l.policies) == 0
}

// Over reports whether policies exceed the budget.
func (l *Ledger) Over() bool { return l.total > l.budget }

// OverBudget returns the names of the policies that exceed the budget, the oldest first. It costs O(n log n) if there are any, else nothing.
func (l *Ledger) OverBudget() (names []string) {
	if !l.Over() {
		return nil
	}
	cost := 0
	for _, p := range slices.SortedFunc(maps.Values(l.policies), older) {
		if cost += p.cost; cost > l.budget {
			names = append(names, p.key.name)
		}
	}
	return names
}

// policyWithCost returns a policy with its cost only: its part in the budgets. Each rule, each named port of a rule, each peer, value of a peer's selector,
// prefix and mask of ports counts one; those of a rule again for each of its named ports, and prefixes of ingress twice. A policy that is too large has no
// rules, and costs 1.
func policyWithCost(p *networkingv1.NetworkPolicy) *policy {
	b := parseNetworkPolicy(p, maxPolicyCost)
	return &policy{key: b.key, created: p.CreationTimestamp.Truncate(time.Second), cost: b.cost}
}
