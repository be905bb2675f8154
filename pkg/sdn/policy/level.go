package policy

import (
	"cmp"
	"slices"

	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// Level orders rules: of those that match a packet, the one of the highest level decides. The tiers, the highest first:
//
//	Admin          by priority, then by the place of the rule in its policy
//	NetworkPolicy  in any order, since its rules only allow: one level, and further ones above it if rules are very many
//	Isolation      no rule: packets of isolated pods are denied
//	Baseline       as Admin
type Level uint16

// IsAdmin reports whether the level is in the admin tier, whose rules can pass a packet to the tiers below.
func (l Level) IsAdmin() bool { return l >= lowestAdmin }

// Limits of ClusterNetworkPolicySpec.
const (
	maxPriority = 1000
	maxRules    = 25
	tierLevels  = (maxPriority + 1) * maxRules
)

// Levels.
const (
	Isolation     Level = tierLevels
	NetworkPolicy Level = Isolation + 1
	lowestAdmin   Level = NetworkPolicy + maxBuckets
	Highest       Level = lowestAdmin + tierLevels - 1
)

// level returns the level of a rule of a ClusterNetworkPolicy. A lower priority takes precedence, then a lower place.
func level(tier policyv1alpha2.Tier, priority int32, place int) Level {
	l := Level((maxPriority-int(priority))*maxRules + maxRules - 1 - place) //nolint:gosec // SetClusterNetworkPolicy has checked both
	if tier == policyv1alpha2.AdminTier {
		l += lowestAdmin
	}
	return l
}

// A flow takes about 4,000 conjunction actions: each has 16 bytes, and an OpenFlow message has at most 64 KiB (struct ofp_header). So
// no more rules than that may have the same level, since all of them may have one pod as their target, or one port.
const (
	bucketSize = 3000
	maxBuckets = 4096
)

// priorityBuckets are the active conjunctions of NetworkPolicies, sorted by ID. The first bucketSize have the lowest level, the next the level above. Where
// one level suffices, which is nearly everywhere, a clause is one flow, else one for each level of its rules. Which rules share a level depends only on
// the active ones, so that an agent that restarts finds its own flows on the switch.
type priorityBuckets struct {
	conjs   []*conj            // as settled
	changed map[*conj]struct{} // conjunctions that were activated or deactivated since
}

func (s *priorityBuckets) markChanged(c *conj) {
	if s.changed == nil {
		s.changed = map[*conj]struct{}{}
	}
	s.changed[c] = struct{}{}
}

// merge applies the changes. It costs O(k log k) for k changes, and one pass through the list.
func (s *priorityBuckets) merge() {
	unchanged := slices.DeleteFunc(s.conjs, func(c *conj) bool { _, changed := s.changed[c]; return changed })
	var added []*conj
	for c := range s.changed {
		if c.active {
			added = append(added, c)
		}
	}
	s.changed = nil
	byID := func(x, y *conj) int { return cmp.Compare(x.id, y.id) }
	slices.SortFunc(added, byID)
	s.conjs = append(unchanged, added...)
	// From the end, so that the list needs no copy.
	for i, k, a := len(s.conjs)-1, len(unchanged)-1, len(added)-1; a >= 0; i-- {
		if k >= 0 && byID(unchanged[k], added[a]) > 0 {
			s.conjs[i], k = unchanged[k], k-1
		} else {
			s.conjs[i], a = added[a], a-1
		}
	}
}

// settle assigns levels to conjunctions. Activating or deactivating one moves one conjunction of each level above.
func (e *Engine) settle() {
	e.rebalance()
	for d := range e.buckets {
		s := &e.buckets[d]
		if len(s.changed) == 0 {
			continue
		}
		s.merge()
		for i, c := range s.conjs {
			if bucket := Level(min(i/bucketSize, maxBuckets-1)); c.bucket != bucket { //nolint:gosec // there are at most maxBuckets
				c.bucket = bucket
				e.recent.add(c)
				e.touchConj(c)
			}
		}
	}
}
