package apitest

import (
	"os"
	"path/filepath"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/ovsdn/ovsdn/test/lab/checkout"
	"github.com/ovsdn/ovsdn/test/lab/controlplane"
)

// ApplyRights applies the folder deploy/rbac: the namespace, accounts and rights of the installation.
func ApplyRights(tb testing.TB, admin *rest.Config) {
	tb.Helper()
	root, err := checkout.Root(".")
	if err != nil {
		tb.Fatal(err)
	}
	if err := controlplane.Apply(tb.Context(), admin, os.DirFS(filepath.Join(root, "deploy", "rbac"))); err != nil {
		tb.Fatal(err)
	}
}

// AddNode creates a Node and its HostSubnet, as kubelet and the controller do.
func AddNode(tb testing.TB, admin *rest.Config, name, hostIP, subnet string) {
	tb.Helper()
	kube, ours := Clients(tb, admin)
	defer Disconnect(kube, ours)
	if _, err := kube.CoreV1().Nodes().Create(tb.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		tb.Fatal(err)
	}
	if _, err := ours.NetworkV1().HostSubnets().Create(tb.Context(), &networkv1.HostSubnet{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Host: name, HostIP: hostIP, Subnet: subnet,
	}, metav1.CreateOptions{}); err != nil {
		tb.Fatal(err)
	}
}

// AsPod creates a pod on the node, and returns a configuration with the token that kubelet gives it: it names the node.
func AsPod(tb testing.TB, admin *rest.Config, namespace, account, node string) *rest.Config {
	tb.Helper()
	kube, ours := Clients(tb, admin)
	defer Disconnect(kube, ours)
	pod, err := kube.CoreV1().Pods(namespace).Create(tb.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: account + "-"},
		Spec:       corev1.PodSpec{NodeName: node, ServiceAccountName: account, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	token, err := kube.CoreV1().ServiceAccounts(namespace).CreateToken(tb.Context(), account, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
	}}, metav1.CreateOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	config := rest.AnonymousClientConfig(admin)
	config.BearerToken, config.QPS = token.Status.Token, -1
	return config
}
