package policy

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A pod with compacted containers is the same pod for policies, and has at most one container, of at most maxNamedPorts ports.
func TestCompactContainers(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	container := func(restart *corev1.ContainerRestartPolicy, ports ...corev1.ContainerPort) corev1.Container {
		return corev1.Container{Name: "c", Image: "i", RestartPolicy: restart, Ports: ports}
	}
	named := func(name string, number int32) corev1.ContainerPort {
		return corev1.ContainerPort{Name: name, ContainerPort: number, Protocol: corev1.ProtocolUDP}
	}
	var many []corev1.Container
	for i := range int32(maxNamedPorts) {
		many = append(many, container(nil, named(fmt.Sprintf("p%d", i), 1000+i), corev1.ContainerPort{ContainerPort: 1}))
	}
	for name, spec := range map[string]corev1.PodSpec{
		"no ports":                      {Containers: []corev1.Container{container(nil), container(nil)}},
		"unnamed ports":                 {Containers: []corev1.Container{container(nil, corev1.ContainerPort{ContainerPort: 80})}},
		"several containers":            {Containers: []corev1.Container{container(nil, named("web", 80)), container(nil, named("web", 81), named("dns", 53))}},
		"sidecar":                       {Containers: []corev1.Container{container(nil, named("web", 80))}, InitContainers: []corev1.Container{container(&always, named("web", 90)), container(nil, named("init", 70))}},
		"as many as rules match":        {Containers: many},
		"more than rules match":         {Containers: append(many[:len(many):len(many)], container(nil, named("last", 53)))},
		"more, with those of a sidecar": {Containers: many[1:], InitContainers: []corev1.Container{container(&always, named("first", 1), named("last", 2))}},
	} {
		original := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: spec}
		compacted := original.DeepCopy()
		compacted.Spec = corev1.PodSpec{Containers: CompactContainers(&spec)}
		if diff := cmp.Diff(NewPod(original), NewPod(compacted)); diff != "" {
			t.Errorf("%s (-original +compacted):\n%s", name, diff)
		}
		all := compacted.Spec.Containers
		if len(all) > 1 || len(all) == 1 && (len(all[0].Ports) == 0 || len(all[0].Ports) > maxNamedPorts) {
			t.Errorf("%s: got %d containers, want at most one with 1 to %d ports", name, len(all), maxNamedPorts)
		}
	}
}
