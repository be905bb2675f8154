package master_test

import (
	"context"
	"fmt"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/master"
)

// testEgressIPs: the controller assigns an egress IP and reports conflicts, with its rights.
func testEgressIPs(t *testing.T, c *cluster) {
	for i, name := range []string{"node1", "node2"} {
		node := c.addNode(t, name, fmt.Sprint("192.0.2.", 1+i))
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		must(c.kube.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}))(t)
	}
	_, stop := c.run(t, func(cfg *master.Config) { cfg.Mode = config.ModeMultitenant.String() })
	c.setNamespaceEgress(t, "192.0.2.77")
	c.hostSubnet(t, "node2", nil)
	c.setNodeEgress(t, "node2", "192.0.2.0/24")
	c.hostSubnet(t, "node2", func(hs *networkv1.HostSubnet) error {
		if len(hs.EgressIPs) != 1 || hs.EgressIPs[0] != "192.0.2.77" {
			return fmt.Errorf("got egress IPs %v, want 192.0.2.77", hs.EgressIPs)
		}
		return nil
	})
	c.setNamespaceEgress(t, "192.0.2.1")
	c.event(t, "NetNamespace", metav1.NamespaceDefault, "EgressIPConflict", "192.0.2.1 is not used, since it is the address of a node")
	events := must(c.kube.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=NotSupported"}))(t)
	for _, e := range events.Items {
		t.Errorf("got Event %s about %s: %s", e.Reason, e.InvolvedObject.Name, e.Message)
	}
	stop()
}

// setNamespaceEgress sets the egress IP of namespace default.
func (c *cluster) setNamespaceEgress(t *testing.T, ip networkv1.NetNamespaceEgressIP) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		nn, err := c.network.NetworkV1().NetNamespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{})
		if err != nil {
			return err
		}
		nn.EgressIPs = []networkv1.NetNamespaceEgressIP{ip}
		_, err = c.network.NetworkV1().NetNamespaces().Update(ctx, nn, metav1.UpdateOptions{})
		return err
	})
}

// setNodeEgress sets the range of a node.
func (c *cluster) setNodeEgress(t *testing.T, name string, cidr networkv1.HostSubnetEgressCIDR) {
	t.Helper()
	eventually(t, func(ctx context.Context) error {
		hs, err := c.network.NetworkV1().HostSubnets().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		hs.EgressCIDRs = []networkv1.HostSubnetEgressCIDR{cidr}
		_, err = c.network.NetworkV1().HostSubnets().Update(ctx, hs, metav1.UpdateOptions{})
		return err
	})
}
