package hostports

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// HostPod returns the pod in the host's network that declares the host port, as NAMESPACE/NAME; "": none.
func HostPod(pods []*corev1.Pod, m Mapping) string {
	for _, pod := range pods {
		if !pod.Spec.HostNetwork || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		for _, p := range config.HostPorts(&pod.Spec) {
			if m.Overlaps(Mapping{HostIP: p.HostIP, HostPort: int(p.HostPort), Protocol: strings.ToLower(string(p.Protocol))}) {
				return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}.String()
			}
		}
	}
	return ""
}
