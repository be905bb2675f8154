package policy

import (
	"net/netip"
	"slices"
)

// PodByAddr returns the pod with the address, or the node, whose key has no namespace; false if neither is known. If several pods have the
// address for a while, it prefers the one on this node.
func (e *Engine) PodByAddr(addr netip.Addr) (PodKey, bool) {
	a := e.byAddr[addr]
	if a == nil || len(a.pods) == 0 {
		return PodKey{}, false
	}
	if i := slices.IndexFunc(a.pods, func(p *pod) bool { return p.local }); i >= 0 {
		return a.pods[i].PodKey, true
	}
	return a.pods[0].PodKey, true
}

// RuleName returns the name of the rule with the conjunction ID: its policy, direction and place in the policy, such as
// "default/web/ingress/0". It returns false if no rule has the ID.
func (e *Engine) RuleName(id uint32) (string, bool) {
	c := e.byID[id]
	if c == nil {
		return "", false
	}
	return c.rule.name, true
}

// Isolators returns the names of at most most policies that isolate a pod of this node, sorted, and the number of
// further ones.
func (e *Engine) Isolators(key PodKey, d Direction, most int) (names []string, more int) {
	pod := e.pods[key]
	if pod == nil || !pod.local {
		return nil, 0
	}
	for _, m := range pod.sets.list {
		for p := range m.set.isolators[d] {
			name := p.key.String()
			place, _ := slices.BinarySearch(names, name)
			if names = slices.Insert(names, place, name); len(names) > most {
				names = names[:most]
				more++
			}
		}
	}
	return names, more
}

// RuleIDs returns the IDs of the conjunctions that the policy's rules have on this node, sorted, and whether it isolates pods of this node. The namespace of a
// ClusterNetworkPolicy is "". It returns false if the policy does not exist, or selects no pod of this node.
func (e *Engine) RuleIDs(namespace, name string) (ids []uint32, isolates, ok bool) {
	p := e.policies[policyKey{namespace, name}]
	if p == nil || !p.local() {
		return nil, false, false
	}
	for _, r := range p.rules {
		for _, c := range r.conjs {
			if c.active {
				ids = append(ids, c.id)
			}
		}
	}
	slices.Sort(ids)
	return ids, p.isolates[Ingress] || p.isolates[Egress], true
}
