package hostports

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// Host ports that pods in the host's network declare are taken.
func TestHostPod(t *testing.T) {
	pods := cache.NewIndexer(cache.MetaNamespaceKeyFunc, HostPodIndexers())
	for name, spec := range map[string]struct {
		hostNetwork bool
		phase       corev1.PodPhase
		port        corev1.ContainerPort
	}{
		"proxy": {true, corev1.PodRunning, corev1.ContainerPort{HostPort: 80}}, "probes": {true, corev1.PodPending, corev1.ContainerPort{HostPort: 81, HostIP: "127.0.0.1"}},
		"done": {true, corev1.PodSucceeded, corev1.ContainerPort{HostPort: 82}}, "web": {false, corev1.PodRunning, corev1.ContainerPort{HostPort: 83}},
	} {
		if err := pods.Add(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Status: corev1.PodStatus{Phase: spec.phase},
			Spec: corev1.PodSpec{HostNetwork: spec.hostNetwork, Containers: []corev1.Container{{Ports: []corev1.ContainerPort{spec.port}}}},
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		mapping Mapping
		want    string
	}{
		{Mapping{HostPort: 80, Protocol: "tcp"}, "ns/proxy"}, {Mapping{HostPort: 80, Protocol: "udp"}, ""},
		{Mapping{HostPort: 80, Protocol: "tcp", HostIP: "192.0.2.1"}, "ns/proxy"}, {Mapping{HostPort: 81, Protocol: "tcp"}, "ns/probes"},
		{Mapping{HostPort: 81, Protocol: "tcp", HostIP: "192.0.2.1"}, ""},
		{Mapping{HostPort: 82, Protocol: "tcp"}, ""}, {Mapping{HostPort: 83, Protocol: "tcp"}, ""},
	} {
		if got, err := HostPod(pods, tc.mapping); got != tc.want || err != nil {
			t.Errorf("host port %s: got pod %q, error %v, want %q", tc.mapping, got, err, tc.want)
		}
	}
}
