package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// testTenantPolicies: a packet must pass the VNIDs and the policies.
func testTenantPolicies(t *testing.T, c *cluster) {
	ours, theirs := c.namespace(t), c.namespace(t)
	pods := append(c.run(t, ours, netexec("target", node1), netexec("both", node2), netexec("vnid", node1)), c.run(t, theirs, netexec("policy", node2))...)
	target, both, onlyVNID, onlyPolicy := pods[0], pods[1], pods[2], pods[3]
	meet(t, onlyVNID.netns, target.addr)
	p := ingressPolicy(ours, "target", target.name, both.name)
	p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{
		{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: theirs}}},
	}})
	c.setPolicy(t, p)
	keptAway(t, onlyVNID, target)
	allowed := asksHTTP(both.netns, target.addr, httpPort)
	mustNotReach(t, "the same VNID, without a policy that allows it", asksHTTP(onlyVNID.netns, target.addr, httpPort), allowed)
	mustNotReach(t, "a policy that allows it, with another VNID", asksHTTP(onlyPolicy.netns, target.addr, httpPort), allowed)
	c.changeNetwork(t, theirs, "join:"+ours)
	meet(t, onlyPolicy.netns, target.addr)
	mustNotReach(t, "still without a policy that allows it", asksHTTP(onlyVNID.netns, target.addr, httpPort), asksHTTP(onlyPolicy.netns, target.addr, httpPort))
}
