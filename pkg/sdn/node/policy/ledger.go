package policy

import (
	"maps"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
)

// Ledger reports which NetworkPolicies of a namespace are beyond the namespace's budget, as the engine does.
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
	x := account(p)
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

// Over reports whether there are policies beyond the budget.
func (l *Ledger) Over() bool { return l.total > l.budget }

// Beyond returns the names of the policies that are beyond the budget, the oldest first. It costs O(n log n) if there are any, else nothing.
func (l *Ledger) Beyond() (names []string) {
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

// account reads what counts of a policy. One that is too large has no rules, and costs 1.
func account(p *networkingv1.NetworkPolicy) *policy {
	b := builder{key: policyKey{p.Namespace, p.Name}, limit: maxPolicyCost}
	b.networkPolicy(p)
	return &policy{key: b.key, created: p.CreationTimestamp.Truncate(time.Second), cost: b.cost}
}
