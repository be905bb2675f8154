package master

import (
	"context"
	"fmt"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/ovsdn/ovsdn/test/await"
)

// Objects from informers have no kind set, and kubectl describe finds Events by kind.
func TestNewRecorder_kinds(t *testing.T) {
	kube := fake.NewClientset()
	recorder, stop, err := newRecorder(t.Context(), kube)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	named := metav1.ObjectMeta{Name: "x"}
	for want, about := range map[string]runtime.Object{
		"v1 Node":                                                &corev1.Node{ObjectMeta: named},
		"v1 Namespace":                                           &corev1.Namespace{ObjectMeta: named},
		"network.openshift.io/v1 ClusterNetwork":                 &networkv1.ClusterNetwork{ObjectMeta: named},
		"network.openshift.io/v1 HostSubnet":                     &networkv1.HostSubnet{ObjectMeta: named},
		"network.openshift.io/v1 NetNamespace":                   &networkv1.NetNamespace{ObjectMeta: named},
		"networking.k8s.io/v1 NetworkPolicy":                     &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "x", Namespace: "shop"}},
		"policy.networking.k8s.io/v1alpha2 ClusterNetworkPolicy": &policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: named},
	} {
		recorder.Event(about, corev1.EventTypeWarning, "Test", want)
		await.OK(t, await.SyncTime, func(ctx context.Context) error {
			events, err := kube.CoreV1().Events("").List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			var all []string
			for _, e := range events.Items {
				got := e.InvolvedObject.APIVersion + " " + e.InvolvedObject.Kind
				if got == want && e.Message == want && e.InvolvedObject.Name == "x" {
					return nil
				}
				all = append(all, got)
			}
			return fmt.Errorf("no Event about a %s; got %q", want, all)
		})
	}
}
