package e2e

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// leave removes a node from the cluster while its pod runs. No kubelet reports the end of the pod, and Kubernetes deletes it after 20 to 60 seconds, perhaps before
// this function does.
func (x *trio) leave(t *testing.T, p pod, node string) {
	t.Helper()
	x.removeNode(t, node)
	now := int64(0)
	if err := x.Kube.CoreV1().Pods(x.namespace).Delete(t.Context(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
}
