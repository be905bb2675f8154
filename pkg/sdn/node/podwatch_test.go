package node

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// A changed annotation reaches the pod manager through the cache and its transform.
func TestWatchPods(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: map[string]string{config.EgressBandwidthAnnotation: "10M"}}}
	a := &agent{kube: fake.NewClientset(pod)}
	c := a.newCaches()
	limits := make(chan string, 1)
	if err := watchPods(c.Local.Core().V1().Pods().Informer(), func(pod *corev1.Pod) { limits <- pod.Annotations[config.EgressBandwidthAnnotation] }); err != nil {
		t.Fatal(err)
	}
	c.Local.Start(t.Context().Done())
	c.Local.WaitForCacheSync(t.Context().Done())
	want := func(limit string) {
		t.Helper()
		select {
		case got := <-limits:
			if got != limit {
				t.Errorf("got limit %q, want %q", got, limit)
			}
		case <-t.Context().Done():
			t.Fatalf("no change to %q", limit)
		}
	}
	want("10M")
	for _, limit := range []string{"20M", ""} {
		changed := pod.DeepCopy()
		changed.Annotations = map[string]string{config.EgressBandwidthAnnotation: limit}
		if _, err := a.kube.CoreV1().Pods("default").Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		want(limit)
	}
}
