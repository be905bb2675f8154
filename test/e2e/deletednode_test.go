package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
)

const kubeletService = "kubelet"

// A Node that is deleted while its pods run, and registers again, has the same subnet, and no packet between pods is lost.
func TestDeletedNodeReturns(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: kubelet registers its Node again")
	}
	x := newTrio(t)
	x.settle(t)
	before := x.footprints(t, fixture.Node1, fixture.Node2)
	x.losesNothing(t, func() { x.deleteNode(t) }, streamOf(x.a, x.c))
	x.returnsTo(t, before)
}

// deleteNode deletes the Node node2 and lets kubelet register it again: it gets its subnet back.
func (x *trio) deleteNode(t *testing.T) {
	t.Helper()
	subnet := x.Subnet(t, fixture.Node2).String()
	deleted, err := x.Kube.CoreV1().Nodes().Get(t.Context(), fixture.Node2, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Kube.CoreV1().Nodes().Delete(t.Context(), fixture.Node2, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	x.awaitHostSubnet(t, "that of a deleted Node", func(hs *networkv1.HostSubnet) bool { return config.IsRetained(hs) && hs.Subnet == subnet })
	x.service(t, fixture.Node2, kubeletService, (*lab.Service).Restart)
	x.awaitHostSubnet(t, "that of the new Node", func(hs *networkv1.HostSubnet) bool {
		uid := hs.Annotations[networkv1.NodeUIDAnnotation]
		return !config.IsRetained(hs) && hs.Subnet == subnet && uid != string(deleted.UID)
	})
	x.available(t, fixture.Node2)
}

// awaitHostSubnet waits until the HostSubnet of node2 is as wanted.
func (c *cluster) awaitHostSubnet(t *testing.T, what string, wanted func(*networkv1.HostSubnet) bool) {
	t.Helper()
	fixture.Eventually(t, fixture.PodTime, "the HostSubnet is "+what, func(ctx context.Context) error {
		hs, err := c.Network.NetworkV1().HostSubnets().Get(ctx, fixture.Node2, metav1.GetOptions{})
		if err == nil && !wanted(hs) {
			err = fmt.Errorf("it is %v with annotations %v", hs.Subnet, hs.Annotations)
		}
		return err
	})
}

// While a node has another subnet than a pod on it, the pod and the Node report that, and new pods have a network. With the previous subnet the pod has its
// network again.
func TestEditedSubnet(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: the agent sets its node up twice")
	}
	x := newTrio(t)
	x.settle(t)
	before := x.footprints(t, fixture.Node1, fixture.Node2)
	subnet := x.Subnet(t, fixture.Node2).String()
	began := time.Now()
	restore := func() { x.editHostSubnet(t, fixture.Node2, map[string]string{"subnet": subnet}) }
	x.editHostSubnet(t, fixture.Node2, map[string]string{"subnet": "10.131.100.0/23"})
	t.Run("changed", func(t *testing.T) {
		x.Warned(t, began, "Pod", x.c.Name, x.c.Addr.String(), "outside of the node's current subnet 10.131.100.0/23", "delete the pod")
		x.unavailable(t, fixture.Node2, x.namespace+"/"+x.c.Name, "delete these pods")
		d := x.Run(t, x.namespace, fixture.Netexec("d", fixture.Node2))[0]
		fixture.Meet(t, x.a.NetNS, d.Addr)
		fixture.MustNotReach(t, "from a pod with an address of the previous subnet to one on its node",
			fixture.AsksHTTP(x.c.NetNS, d.Addr, fixture.HTTPPort), fixture.AsksHTTP(x.a.NetNS, d.Addr, fixture.HTTPPort))
		if err := x.DeletePod(t.Context(), x.namespace, d.Name); err != nil {
			t.Error(err)
		}
	})
	restore()
	fixture.Meet(t, x.a.NetNS, x.c.Addr)
	x.available(t, fixture.Node2)
	x.returnsTo(t, before)
}
