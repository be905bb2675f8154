package master_test

import (
	"context"
	"fmt"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/egressstatus"
)

// testEgressPolicies: conditions with the controller's rights, and what the CRD refuses.
func testEgressPolicies(t *testing.T, c *cluster) {
	api := c.network.NetworkV1().EgressNetworkPolicies(metav1.NamespaceDefault)
	policy := func(name string, action networkv1.EgressNetworkPolicyRuleType, to networkv1.EgressNetworkPolicyPeer) *networkv1.EgressNetworkPolicy {
		return &networkv1.EgressNetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       networkv1.EgressNetworkPolicySpec{Egress: []networkv1.EgressNetworkPolicyRule{{Type: action, To: to}}},
		}
	}
	for what, invalid := range map[string]*networkv1.EgressNetworkPolicy{
		"both":     policy("x", "Deny", networkv1.EgressNetworkPolicyPeer{CIDRSelector: "192.0.2.0/24", DNSName: "example.com"}),
		"none":     policy("x", "Deny", networkv1.EgressNetworkPolicyPeer{}),
		"wildcard": policy("x", "Deny", networkv1.EgressNetworkPolicyPeer{DNSName: "*.example.com"}),
		"label":    policy("x", "Deny", networkv1.EgressNetworkPolicyPeer{DNSName: "a-.example.com"}),
		"type":     policy("x", "AllowAll", networkv1.EgressNetworkPolicyPeer{DNSName: "example.com"}),
		"CIDR":     policy("x", "Deny", networkv1.EgressNetworkPolicyPeer{CIDRSelector: "192.0.2.0/33"}),
	} {
		if _, err := api.Create(t.Context(), invalid, metav1.CreateOptions{}); err == nil {
			t.Errorf("%s: got no error, want a refusal", what)
		}
	}
	for _, o := range []*networkv1.EgressNetworkPolicy{
		policy("a", "Allow", networkv1.EgressNetworkPolicyPeer{DNSName: "www.example.com."}),
		policy("b", "Deny", networkv1.EgressNetworkPolicyPeer{CIDRSelector: "0.0.0.0/32"}),
	} {
		must(api.Create(t.Context(), o, metav1.CreateOptions{}))(t)
		t.Cleanup(func() {
			// The test's context has ended.
			if err := api.Delete(context.Background(), o.Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	_, stop := c.run(t, nil)
	status := egressstatus.Client{Network: c.network}
	for name, want := range map[string]string{"a": egressstatus.ReasonAccepted, "b": egressstatus.ReasonAcceptedAsEverywhere} {
		eventually(t, func(ctx context.Context) error {
			s, err := status.Get(ctx, metav1.NamespaceDefault, name)
			if err != nil {
				return err
			}
			accepted, merged := meta.FindStatusCondition(s.Conditions, egressstatus.ConditionAccepted), meta.FindStatusCondition(s.Conditions, egressstatus.ConditionMerged)
			if accepted == nil || accepted.Status != metav1.ConditionTrue || accepted.Reason != want || merged == nil || merged.Status != metav1.ConditionTrue {
				return fmt.Errorf("got %v, want reason %s, and several policies", s.Conditions, want)
			}
			return nil
		})
	}
	c.event(t, "EgressNetworkPolicy", "b", "EgressNetworkPolicyNotAsWritten", "0.0.0.0/0")
	c.event(t, "EgressNetworkPolicy", "a", "EgressNetworkPoliciesMerged", "a, b")
	stop()
}
