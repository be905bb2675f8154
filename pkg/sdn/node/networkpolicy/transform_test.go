package networkpolicy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestTransform_retainsFieldsOfPolicies(t *testing.T) {
	written := []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
	addresses := []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
	spec := networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: labels("web")}}
	for _, c := range []struct{ object, want runtime.Object }{
		{
			&corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "x", Labels: labels("web"), ManagedFields: written},
				Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{
					Name: "c", Image: "i", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 80}},
				}}},
				Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.128.0.5"}}, Message: "m"},
			},
			&corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "x", Labels: labels("web")},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 80}}}}},
				Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.128.0.5"}}},
			},
		},
		{
			&corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: labels("n"), ManagedFields: written},
				Status:     corev1.NodeStatus{Addresses: addresses, Images: []corev1.ContainerImage{{Names: []string{"i"}}}},
			},
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: labels("n")}, Status: corev1.NodeStatus{Addresses: addresses}},
		},
		{
			&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p", ManagedFields: written}, Spec: spec},
			&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p"}, Spec: spec},
		},
	} {
		got, err := Transform(c.object)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}
