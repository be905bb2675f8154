// Package deploy has the tests of the manifests in deploy/ that need an API server and nothing else.
package deploy

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/ovsdn/ovsdn/test/apitest"
	"github.com/ovsdn/ovsdn/test/lab/checkout"
	"github.com/ovsdn/ovsdn/test/lab/controlplane"
)

// system is the namespace of the installation.
const system = "ovsdn-system"

// as is a program with its service account.
type as struct {
	kube    kubernetes.Interface
	network networkclient.Interface
}

// cluster is an API server with the installation's rights and two nodes.
type cluster struct {
	config *rest.Config
	admin  as
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{config: apitest.Start(t)}
	c.admin = clients(t, c.config)
	root, err := checkout.Root(".")
	must(t, err)
	for _, folder := range []string{"rbac", "admission"} {
		must(t, controlplane.Apply(t.Context(), c.config, os.DirFS(filepath.Join(root, "deploy", folder))))
	}
	for _, name := range []string{"node1", "node2"} {
		c.addNode(t, name)
	}
	_, err = c.admin.network.NetworkV1().EgressNetworkPolicies(metav1.NamespaceDefault).Create(t.Context(), &networkv1.EgressNetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: networkv1.EgressNetworkPolicySpec{Egress: []networkv1.EgressNetworkPolicyRule{}},
	}, metav1.CreateOptions{})
	must(t, err)
	_, err = c.admin.kube.CoreV1().Secrets(system).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "secret"}}, metav1.CreateOptions{})
	must(t, err)
	_, err = c.admin.network.NetworkV1().NetNamespaces().Create(t.Context(),
		&networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}, NetName: "default"}, metav1.CreateOptions{})
	must(t, err)
	return c
}

// addNode makes a Node with its HostSubnet and a pod, as kubelet, the controller and a user do.
func (c *cluster) addNode(t *testing.T, name string) {
	t.Helper()
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"zone": "a"}},
		Status: corev1.NodeStatus{
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}},
			Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}},
		},
	}
	_, err := c.admin.kube.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	must(t, err)
	_, err = c.admin.network.NetworkV1().HostSubnets().Create(t.Context(),
		&networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Host: name, HostIP: "192.0.2.1", Subnet: "10.128.0.0/23"}, metav1.CreateOptions{})
	must(t, err)
	_, err = c.admin.kube.CoreV1().Events(metav1.NamespaceDefault).Create(t.Context(), event("kubelet."+name, "kubelet", name, "Node", name), metav1.CreateOptions{})
	must(t, err)
	c.addPod(t, name, "agent-on-"+name, "ovsdn-node")
}

func (c *cluster) addPod(t *testing.T, node, name, account string) *corev1.Pod {
	t.Helper()
	pod, err := c.admin.kube.CoreV1().Pods(system).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: node, ServiceAccountName: account, Containers: []corev1.Container{{Name: "c", Image: "i"}},
		},
	}, metav1.CreateOptions{})
	must(t, err)
	return pod
}

// as returns the clients of a pod with its own token, as kubelet would give it; without a pod, of the account with a token of nowhere.
func (c *cluster) as(t *testing.T, account, pod string) as {
	t.Helper()
	request := &authenticationv1.TokenRequest{}
	if pod != "" {
		o, err := c.admin.kube.CoreV1().Pods(system).Get(t.Context(), pod, metav1.GetOptions{})
		must(t, err)
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: o.Name, UID: o.UID}
	}
	token, err := c.admin.kube.CoreV1().ServiceAccounts(system).CreateToken(t.Context(), account, request, metav1.CreateOptions{})
	must(t, err)
	config := rest.AnonymousClientConfig(c.config)
	config.BearerToken = token.Status.Token
	config.QPS = -1
	return clients(t, config)
}

func clients(t *testing.T, config *rest.Config) as {
	t.Helper()
	kube, network := apitest.Clients(t, config)
	return as{kube, network}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// patchEgressStatus patches the status of EgressNetworkPolicy default, which newCluster creates.
func patchEgressStatus(patch string) func(context.Context, as) error {
	return func(ctx context.Context, client as) error {
		_, err := client.network.NetworkV1().EgressNetworkPolicies(metav1.NamespaceDefault).Patch(ctx, "default", types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		return err
	}
}
