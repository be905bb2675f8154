package config

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func podWith(edit func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 80}}}}}}
	edit(pod)
	return pod
}

func TestHostPorts(t *testing.T) {
	pod := podWith(func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Ports[0].HostPort = 8080
		pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports, corev1.ContainerPort{HostPort: 8080, Protocol: corev1.ProtocolTCP})
		pod.Spec.InitContainers = []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 53, HostPort: 53, Protocol: corev1.ProtocolUDP}}}}
	})
	want := []corev1.ContainerPort{{HostPort: 8080, Protocol: corev1.ProtocolTCP}, {HostPort: 53, Protocol: corev1.ProtocolUDP}}
	if diff := cmp.Diff(want, HostPorts(&pod.Spec)); diff != "" {
		t.Errorf("host ports (-want +got):\n%s", diff)
	}
	for i := range int32(5000) {
		pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports, corev1.ContainerPort{HostPort: 1000 + i})
	}
	if got := len(HostPorts(&pod.Spec)); got != maxHostPorts {
		t.Errorf("got %d of 5,000 host ports, want %d", got, maxHostPorts)
	}
}
