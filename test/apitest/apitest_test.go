package apitest

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	networkv1 "github.com/openshift/api/network/v1"
	network "github.com/openshift/client-go/network/clientset/versioned"
)

func TestStart(t *testing.T) {
	config := Start(t)
	wantBackdated(t, config)
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
	if _, err := kube.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Errorf("create a node: %v", err)
	}
	client, err := network.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	subnet := &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: "node1"}, Host: "node1", HostIP: "172.31.0.11", Subnet: "10.128.0.0/23"}
	if _, err := client.NetworkV1().HostSubnets().Create(t.Context(), subnet, metav1.CreateOptions{}); err != nil {
		t.Errorf("create a HostSubnet: %v", err)
	}
}

// wantBackdated checks that the API server delays no creation of the project's objects.
func wantBackdated(t *testing.T, config *rest.Config) {
	t.Helper()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	crds := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	list, err := crds.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, crd := range list.Items {
		conditions, _, err := unstructured.NestedSlice(crd.Object, "status", "conditions")
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range conditions {
			condition := c.(map[string]any)
			if condition["type"] != "Established" {
				continue
			}
			since, err := time.Parse(time.RFC3339, condition["lastTransitionTime"].(string))
			if err != nil {
				t.Fatal(err)
			}
			if age := time.Since(since); condition["status"] != "True" || age < time.Hour {
				t.Errorf("%s: got %v, for %v, want it for an hour", crd.GetName(), condition, age)
			}
		}
	}
	if len(list.Items) == 0 {
		t.Error("got no CRDs")
	}
}
