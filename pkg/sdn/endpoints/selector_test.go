package endpoints

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// TestSliceSelector checks that the agent reads every slice that a version of kube-proxy reads.
func TestSliceSelector(t *testing.T) {
	selector, err := labels.Parse(SliceSelector)
	if err != nil {
		t.Fatal(err)
	}
	for label, want := range map[string]bool{"": true, ProxyNameLabel: true, corev1.IsHeadlessService: false} {
		if got := selector.Matches(labels.Set{discoveryv1.LabelServiceName: "svc", label: ""}); got != want {
			t.Errorf("a slice with label %q is selected: got %v, want %v", label, got, want)
		}
	}
}
