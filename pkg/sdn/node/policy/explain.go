package policy

import (
	"net/netip"
	"slices"
)

// Who returns the pod that has the address, or the node, which has no namespace; false if nobody is known to have it. Of several, for a
// while, it is the one that has it on this node.
func (e *Engine) Who(addr netip.Addr) (PodKey, bool) {
	a := e.byAddr[addr]
	if a == nil || len(a.pods) == 0 {
		return PodKey{}, false
	}
	if i := slices.IndexFunc(a.pods, func(p *pod) bool { return p.local }); i >= 0 {
		return a.pods[i].PodKey, true
	}
	return a.pods[0].PodKey, true
}

// RuleName returns what the rule is called that the switch knows by a number: its policy, direction and place there, such as
// "default/web/ingress/0". False if there is none any more.
func (e *Engine) RuleName(id uint32) (string, bool) {
	c := e.byID[id]
	if c == nil {
		return "", false
	}
	return c.rule.name, true
}

// Isolators returns the names of the policies that isolate a pod of this node, in order, and how many there are beyond the most that are
// wanted.
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
