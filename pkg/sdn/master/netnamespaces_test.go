package master_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/master"
)

// The HostSubnet of an external machine as in OpenShift's documentation, without a subnet.
func testExternalWithoutSubnet(t *testing.T, c *cluster) {
	client := must(dynamic.NewForConfig(c.admin))(t)
	hostSubnets := client.Resource(schema.GroupVersionResource{Group: "network.openshift.io", Version: "v1", Resource: "hostsubnets"})
	external := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "network.openshift.io/v1", "kind": "HostSubnet",
		"metadata": map[string]any{"name": "f5", "annotations": map[string]any{
			"pod.network.openshift.io/assign-subnet": "true", "pod.network.openshift.io/fixed-vnid-host": "0",
		}},
		"host": "f5", "hostIP": "192.0.2.100",
	}}
	must(hostSubnets.Create(t.Context(), external, metav1.CreateOptions{}))(t)
	c.run(t, nil)
	assigned := c.hostSubnet(t, "f5", func(hs *networkv1.HostSubnet) error {
		if hs.Subnet == "" {
			return errors.New("f5 has no subnet")
		}
		return nil
	})
	if assigned.Subnet != "10.128.0.0/23" || assigned.Annotations[networkv1.FixedVNIDHostAnnotation] != "0" || !config.IsExternal(assigned) {
		t.Errorf("got %+v", assigned)
	}
	c.addNode(t, "node1", "192.0.2.1")
	c.hostSubnet(t, "node1", has("10.129.0.0/23"))
	// After the subnet was removed, the same one is allocated again.
	assigned.Subnet = ""
	must(c.network.NetworkV1().HostSubnets().Update(t.Context(), assigned, metav1.UpdateOptions{}))(t)
	c.hostSubnet(t, "f5", has("10.128.0.0/23"))
	// An invalid VNID is reported.
	invalid := &networkv1.HostSubnet{
		ObjectMeta: metav1.ObjectMeta{Name: "f6", Annotations: map[string]string{
			networkv1.AssignHostSubnetAnnotation: "true", networkv1.FixedVNIDHostAnnotation: "16777216",
		}},
		Host: "f6", HostIP: "192.0.2.101",
	}
	must(c.network.NetworkV1().HostSubnets().Create(t.Context(), invalid, metav1.CreateOptions{}))(t)
	c.event(t, "HostSubnet", "f6", "InvalidHostSubnet", "16777216 is not a VNID")
}

func testNetNamespaces(t *testing.T, c *cluster) {
	first, second := "master-1"+strings.Repeat("n", 55), "master-2"+strings.Repeat("n", 55) // 63 characters, the most of a Namespace's name
	large := strings.Repeat("x", 250<<10)                                                   // nearly the most of annotations
	c.store(t, "redhat/openshift-ovs-multitenant", "10.128.0.0/14")
	_, stop := c.run(t, func(cfg *master.Config) { cfg.GlobalNamespaces = []string{"default", first} })
	for _, name := range []string{first, second} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{config.LogDeniedAnnotation: large}}}
		if _, err := c.kube.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	vnid := func(name string, ok func(uint32) bool) {
		t.Helper()
		eventually(t, func(ctx context.Context) error {
			nn, err := c.network.NetworkV1().NetNamespaces().Get(ctx, name, metav1.GetOptions{})
			if err == nil && !ok(nn.NetID) {
				err = fmt.Errorf("got VNID %d of %s", nn.NetID, name)
			}
			return err
		})
	}
	global, tenant := func(v uint32) bool { return v == 0 }, func(v uint32) bool { return v >= 10 }
	vnid("default", global)
	c.event(t, "Namespace", second, "InvalidLogDenied", large[:128]+`..." is neither`)
	vnid(first, global)
	vnid(second, tenant)
	request := func(change string) {
		t.Helper()
		eventually(t, func(ctx context.Context) error {
			nn, err := c.network.NetworkV1().NetNamespaces().Get(ctx, second, metav1.GetOptions{})
			if err != nil {
				return err
			}
			metav1.SetMetaDataAnnotation(&nn.ObjectMeta, networkv1.ChangePodNetworkAnnotation, change)
			_, err = c.network.NetworkV1().NetNamespaces().Update(ctx, nn, metav1.UpdateOptions{})
			return err
		})
	}
	request("join:" + first)
	vnid(second, global)
	c.eventOf(t, "Normal", "NetNamespace", second, "NetworkChanged", "join:"+first+": its VNID is 0")
	request("isolate")
	vnid(second, tenant)
	nowhere := strings.Repeat("w", 63)
	request("join:" + nowhere)
	c.event(t, "NetNamespace", second, "NetworkChangeRefused", "there is no Namespace "+nowhere)
	stop()
}
