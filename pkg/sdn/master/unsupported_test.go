package master_test

import (
	"context"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// testUnsupported: objects of OpenShift SDN that the network ignores, with the controller's rights.
func testUnsupported(t *testing.T, c *cluster) {
	api := c.network.NetworkV1()
	_, stop := c.run(t, nil)
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
