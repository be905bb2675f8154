package apitest

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	networkv1 "github.com/openshift/api/network/v1"
	network "github.com/openshift/client-go/network/clientset/versioned"
)

func TestStart(t *testing.T) {
	config := Start(t)
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
