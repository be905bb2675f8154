package policy

import (
	networkingv1 "k8s.io/api/networking/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// noEffect is the error of a policy without a valid subject, tier or priority.
const noEffect = "the policy has no effect"

// CheckNetworkPolicy returns the errors that SetNetworkPolicy returns on every node, one for each invalid field, in the order of the policy. The
// invalid parts allow nothing.
func CheckNetworkPolicy(p *networkingv1.NetworkPolicy) []error {
	return parseNetworkPolicy(p, maxPolicyCost).faults
}

// CheckClusterNetworkPolicy is CheckNetworkPolicy for SetClusterNetworkPolicy. The errors include the effect on the rule.
func CheckClusterNetworkPolicy(p *policyv1alpha2.ClusterNetworkPolicy) []error {
	return parseClusterPolicy(p).faults
}
