package policy

import (
	"math"

	networkingv1 "k8s.io/api/networking/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// notInForce is the fault of a policy of which the pods that it is about, or its place among others, can't be told.
const notInForce = "nothing of the policy is in force"

// CheckNetworkPolicy returns what of the policy can't be carried out, and allows nothing: what SetNetworkPolicy says of it on every
// node, a line for each fault, in the policy's order.
func CheckNetworkPolicy(p *networkingv1.NetworkPolicy) []error {
	b := builder{key: policyKey{p.Namespace, p.Name}, limit: maxPolicyCost}
	b.networkPolicy(p)
	return b.faults
}

// CheckClusterNetworkPolicy is CheckNetworkPolicy for what SetClusterNetworkPolicy says. What becomes of a rule is among the faults.
func CheckClusterNetworkPolicy(p *policyv1alpha2.ClusterNetworkPolicy) []error {
	b := builder{key: policyKey{name: p.Name}, limit: math.MaxInt}
	b.clusterPolicy(&p.Spec)
	return b.faults
}
