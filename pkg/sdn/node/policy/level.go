package policy

import (
	"cmp"
	"slices"

	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// Level orders rules: of those that a packet meets, the one of the highest level decides. The tiers lie one above the other:
//
//	Admin          by priority, then by the place of the rule in its policy
//	NetworkPolicy  in any order, since its rules only allow: one level, and as many above it as it takes when rules are very many
//	Isolation      no rule: here a packet of an isolated pod ends
//	Baseline       as Admin
type Level uint16

// IsAdmin says whether rules of the level can pass a packet on to the tiers below.
func (l Level) IsAdmin() bool { return l >= lowestAdmin }

// The most that ClusterNetworkPolicySpec takes.
const (
	maxPriority = 1000
	maxRules    = 25
	tierLevels  = (maxPriority + 1) * maxRules
)

// Levels.
const (
	Isolation     Level = tierLevels
	NetworkPolicy Level = Isolation + 1
	lowestAdmin   Level = NetworkPolicy + maxShelves
	Highest       Level = lowestAdmin + tierLevels - 1
)

// level of a rule of a cluster's policy, by the policy's tier and priority and the rule's place. A lower priority comes first.
func level(tier policyv1alpha2.Tier, priority int32, place int) Level {
	l := Level((maxPriority-int(priority))*maxRules + maxRules - 1 - place) //nolint:gosec // SetClusterNetworkPolicy has checked both
	if tier == policyv1alpha2.AdminTier {
		l += lowestAdmin
	}
	return l
}

// A flow takes some 4,000 conjunctions at most: each has 16 bytes, and all of a message in OpenFlow 64 KiB (struct ofp_header). So
// no more rules than that may have one level, since there might be a pod that is the target of them all, or a port that all have.
const (
	shelfRoom  = 3000
	maxShelves = 4096
)

// shelves are the active conjunctions of network policies, by ID. So many as a level has room for lie on the lowest, the next above: where one
// level suffices, which is nearly everywhere, a piece of state is one flow, else one for each level on which it is part of a rule. Which rules share a
// level follows from the active ones alone, so that an agent that starts finds on the switch what it would write.
type shelves struct {
	conjs   []*conj            // as settled
	changed map[*conj]struct{} // conjunctions that were activated or deactivated since
}

func (s *shelves) place(c *conj) {
	if s.changed == nil {
		s.changed = map[*conj]struct{}{}
	}
	s.changed[c] = struct{}{}
}

// merge takes over what changed: it costs O(k log k) for k changes, and one pass through the list.
func (s *shelves) merge() {
	kept := slices.DeleteFunc(s.conjs, func(c *conj) bool { _, changed := s.changed[c]; return changed })
	var added []*conj
	for c := range s.changed {
		if c.active {
			added = append(added, c)
		}
	}
	s.changed = nil
	byID := func(x, y *conj) int { return cmp.Compare(x.id, y.id) }
	slices.SortFunc(added, byID)
	s.conjs = append(kept, added...)
	// From behind, so that the list needs no copy.
	for i, k, a := len(s.conjs)-1, len(kept)-1, len(added)-1; a >= 0; i-- {
		if k >= 0 && byID(kept[k], added[a]) > 0 {
			s.conjs[i], k = kept[k], k-1
		} else {
			s.conjs[i], a = added[a], a-1
		}
	}
}

// settle assigns levels to conjunctions. One that is activated or deactivated moves one on each level above.
func (e *Engine) settle() {
	e.rebalance()
	for d := range e.shelves {
		s := &e.shelves[d]
		if len(s.changed) == 0 {
			continue
		}
		s.merge()
		for i, c := range s.conjs {
			if shelf := Level(min(i/shelfRoom, maxShelves-1)); c.shelf != shelf { //nolint:gosec // there are at most maxShelves
				c.shelf = shelf
				e.recent.add(c)
				e.touchConj(c)
			}
		}
	}
}
