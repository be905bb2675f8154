package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
)

// testTenantPolicies: a packet must pass the VNIDs and the policies.
func testTenantPolicies(t *testing.T, c *cluster) {
	ours, theirs := c.Namespace(t), c.Namespace(t)
	pods := append(c.Run(t, ours, fixture.Netexec("target", fixture.Node1), fixture.Netexec("both", fixture.Node2), fixture.Netexec("vnid", fixture.Node1)), c.Run(t, theirs, fixture.Netexec("policy", fixture.Node2))...)
	target, both, onlyVNID, onlyPolicy := pods[0], pods[1], pods[2], pods[3]
	fixture.Meet(t, onlyVNID.NetNS, target.Addr)
	p := ingressPolicy(ours, "target", target.Name, both.Name)
	p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{
		{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: theirs}}},
	}})
	c.SetPolicy(t, p)
	isolated(t, onlyVNID, target)
	allowed := fixture.AsksHTTP(both.NetNS, target.Addr, fixture.HTTPPort)
	fixture.MustNotReach(t, "the same VNID, without a policy that allows it", fixture.AsksHTTP(onlyVNID.NetNS, target.Addr, fixture.HTTPPort), allowed)
	fixture.MustNotReach(t, "a policy that allows it, with another VNID", fixture.AsksHTTP(onlyPolicy.NetNS, target.Addr, fixture.HTTPPort), allowed)
	c.ChangeNetwork(t, theirs, "join:"+ours)
	fixture.Meet(t, onlyPolicy.NetNS, target.Addr)
	fixture.MustNotReach(t, "still without a policy that allows it", fixture.AsksHTTP(onlyVNID.NetNS, target.Addr, fixture.HTTPPort), fixture.AsksHTTP(onlyPolicy.NetNS, target.Addr, fixture.HTTPPort))
}
