package master_test

import (
	"context"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	policyclient "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/master"
)

// testPolicies: an invalid operator of a selector, which the CRD does not validate, in a policy with a name of the greatest length.
func testPolicies(t *testing.T, c *cluster) {
	name := "near" + strings.Repeat("n", 249)
	client := must(policyclient.NewForConfig(c.admin))(t)
	clusterPolicies := client.PolicyV1alpha2().ClusterNetworkPolicies()
	t.Cleanup(func() {
		// The test's context has ended.
		if err := clusterPolicies.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if c, ok := client.PolicyV1alpha2().RESTClient().(*rest.RESTClient); ok {
			c.Client.CloseIdleConnections()
		}
	})
	_, stop := c.run(t, func(cfg *master.Config) { cfg.Mode = config.ModeNetworkPolicy.String() })
	policy := func(to policyv1alpha2.ClusterNetworkPolicyEgressPeer) *policyv1alpha2.ClusterNetworkPolicy {
		return &policyv1alpha2.ClusterNetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: policyv1alpha2.ClusterNetworkPolicySpec{
				Tier:    policyv1alpha2.AdminTier,
				Subject: policyv1alpha2.ClusterNetworkPolicySubject{Namespaces: &metav1.LabelSelector{}},
				Egress: []policyv1alpha2.ClusterNetworkPolicyEgressRule{{
					Action: policyv1alpha2.ClusterNetworkPolicyRuleActionAccept, To: []policyv1alpha2.ClusterNetworkPolicyEgressPeer{to},
				}},
			},
		}
	}
	names := policy(policyv1alpha2.ClusterNetworkPolicyEgressPeer{DomainNames: []policyv1alpha2.DomainName{"example.com."}})
	if _, err := clusterPolicies.Create(t.Context(), names, metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("the standard CRD does not refuse domain names: %v", err)
	}
	near := policy(policyv1alpha2.ClusterNetworkPolicyEgressPeer{Namespaces: &metav1.LabelSelector{
		MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Near"}},
	}})
	must(clusterPolicies.Create(t.Context(), near, metav1.CreateOptions{}))(t)
	c.event(t, "ClusterNetworkPolicy", name, "PartlyNotEnforced", `"Near" is not a valid label selector operator; egress/0: the rule matches nothing`)
	stop()
}
