package master_test

import (
	"context"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// testUnsupported: objects of OpenShift SDN that the network ignores, with the controller's rights.
func testUnsupported(t *testing.T, c *cluster) {
	api := c.network.NetworkV1()
	policy := &networkv1.EgressNetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "restrict", Namespace: metav1.NamespaceDefault},
		Spec: networkv1.EgressNetworkPolicySpec{Egress: []networkv1.EgressNetworkPolicyRule{
			{Type: networkv1.EgressNetworkPolicyRuleDeny, To: networkv1.EgressNetworkPolicyPeer{CIDRSelector: "0.0.0.0/0"}},
		}},
	}
	must(api.EgressNetworkPolicies(policy.Namespace).Create(t.Context(), policy, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		// The test's context has ended.
		if err := api.EgressNetworkPolicies(policy.Namespace).Delete(context.Background(), policy.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	_, stop := c.run(t, nil)
	c.eventOf(t, corev1.EventTypeWarning, "EgressNetworkPolicy", policy.Name, "NotSupported", "denies nothing")
	eventually(t, func(ctx context.Context) error {
		nn, err := api.NetNamespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{})
		if err != nil {
			return err
		}
		nn.EgressIPs = []networkv1.NetNamespaceEgressIP{"192.0.2.7"}
		_, err = api.NetNamespaces().Update(ctx, nn, metav1.UpdateOptions{})
		return err
	})
	c.event(t, "NetNamespace", metav1.NamespaceDefault, "NotSupported", "egressIPs 192.0.2.7")
	stop()
}
