package attacks

import (
	"context"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
)

// thief has the token of the agent of node2, as its kubelet gives it to the agent's pod.
type thief struct {
	kube    kubernetes.Interface
	network networkclient.Interface
}

func (w *world) newThief(t *testing.T) thief {
	t.Helper()
	agent := w.agent(t, fixture.Node2)
	lifetime := int64(600) // seconds, the least that the API server takes
	token, err := w.Kube.CoreV1().ServiceAccounts(productNamespace).CreateToken(t.Context(), agent.Spec.ServiceAccountName, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: &lifetime,
			BoundObjectRef:    &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: agent.Name, UID: agent.UID},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	admin, err := w.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(admin)
	config.BearerToken = token.Status.Token
	var th thief
	if th.kube, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	if th.network, err = networkclient.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	return th
}

// testCredentials uses an agent's token for what concerns others.
func testCredentials(t *testing.T, w *world) {
	th := w.newThief(t)
	if _, err := th.kube.CoreV1().Nodes().Get(t.Context(), fixture.Node2, metav1.GetOptions{}); err != nil {
		t.Fatalf("the token is of no use: %v", err)
	}
	for _, r := range th.requests(w) {
		t.Run(r.name, func(t *testing.T) {
			err := r.do(t.Context())
			arrived := 0
			if err == nil {
				arrived = 1
				fixture.Arrived(t, "the API server accepts it, want that it is forbidden")
			} else if !apierrors.IsForbidden(err) {
				t.Errorf("got %v, want that it is forbidden", err)
			}
			report(t, attack{position: apiClient, sent: "with the token of the agent of node2: " + r.name}, arrived, []string{"refusal: " + errText(err)})
		})
	}
}

// request is one of the API that must be forbidden.
type request struct {
	name string
	do   func(context.Context) error
}

// requests returns those of a thief.
func (th thief) requests(w *world) []request {
	merge := func(patch string) []byte { return []byte(patch) }
	status := `{"status":{"conditions":[{"type":"NetworkUnavailable","status":"True","reason":"Attack"}]}}`
	return []request{
		{"write the status of another Node", func(ctx context.Context) error {
			_, err := th.kube.CoreV1().Nodes().Patch(ctx, fixture.Node1, types.StrategicMergePatchType, merge(status), metav1.PatchOptions{}, "status")
			return err
		}},
		{"label another Node", func(ctx context.Context) error {
			_, err := th.kube.CoreV1().Nodes().Patch(ctx, fixture.Node1, types.MergePatchType, merge(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{})
			return err
		}},
		{"claim the address of another node", func(ctx context.Context) error {
			_, err := th.network.NetworkV1().HostSubnets().Patch(ctx, fixture.Node2, types.MergePatchType, merge(`{"hostIP":"172.31.0.11"}`), metav1.PatchOptions{})
			return err
		}},
		{"move another node's tunnel", func(ctx context.Context) error {
			_, err := th.network.NetworkV1().HostSubnets().Patch(ctx, fixture.Node1, types.MergePatchType, merge(`{"hostIP":"172.31.0.12"}`), metav1.PatchOptions{})
			return err
		}},
		{"make a HostSubnet", func(ctx context.Context) error {
			_, err := th.network.NetworkV1().HostSubnets().Create(ctx, &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: "attack"}, Host: "attack", HostIP: "192.0.2.9", Subnet: "10.131.0.0/23"}, metav1.CreateOptions{})
			return err
		}},
		{"make a namespace global", func(ctx context.Context) error {
			_, err := th.network.NetworkV1().NetNamespaces().Patch(ctx, w.attackers, types.MergePatchType, merge(`{"netid":0}`), metav1.PatchOptions{})
			return err
		}},
		{"change the network", func(ctx context.Context) error {
			_, err := th.network.NetworkV1().ClusterNetworks().Patch(ctx, "default", types.MergePatchType, merge(`{"pluginName":"redhat/openshift-ovs-subnet"}`), metav1.PatchOptions{})
			return err
		}},
		{"an Event as another node", th.event(fixture.Node1, "Node", fixture.Node2)},
		{"an Event about another Node", th.event(fixture.Node2, "Node", fixture.Node1)},
		{"an Event about a Service", th.event(fixture.Node2, "Service", "kubernetes")},
		{"read secrets", func(ctx context.Context) error {
			_, err := th.kube.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{})
			return err
		}},
		{"delete a pod of another node", func(ctx context.Context) error {
			return th.kube.CoreV1().Pods(w.victims).Delete(ctx, w.v1.Name, metav1.DeleteOptions{})
		}},
		{"delete a policy", func(ctx context.Context) error {
			return th.kube.NetworkingV1().NetworkPolicies(w.guarded).Delete(ctx, "server", metav1.DeleteOptions{})
		}},
		{"a token for the controller", func(ctx context.Context) error {
			_, err := th.kube.CoreV1().ServiceAccounts(productNamespace).CreateToken(ctx, "ovsdn-controller", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
			return err
		}},
	}
}

// event returns a function that reports on an object as the agent of a node.
func (th thief) event(host, kind, name string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := th.kube.CoreV1().Events(metav1.NamespaceDefault).Create(ctx, &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{GenerateName: "attack-", Namespace: metav1.NamespaceDefault},
			InvolvedObject: corev1.ObjectReference{Kind: kind, Name: name}, Type: corev1.EventTypeWarning, Reason: "Attack", Message: "attack",
			Source: corev1.EventSource{Component: "ovsdn-node", Host: host},
		}, metav1.CreateOptions{})
		return err
	}
}

func errText(err error) string {
	if err == nil {
		return "none"
	}
	return err.Error()
}
