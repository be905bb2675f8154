package policy

import policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

// Level orders rules: of those that a packet meets, the one of the highest level decides. The tiers lie one above the other:
//
//	Admin          by priority, then by the place of the rule in its policy
//	NetworkPolicy  one level, since its rules only allow
//	Isolation      no rule: here a packet of an isolated pod ends
//	Baseline       as Admin
type Level uint16

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
	lowestAdmin   Level = NetworkPolicy + 1
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
