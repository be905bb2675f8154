package hostports

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// hostPodIndex is the index of the cache of pods by the host ports of those in the host's network.
const hostPodIndex = "hostPort"

// HostPodIndexers returns the index that HostPod reads.
func HostPodIndexers() cache.Indexers {
	return cache.Indexers{hostPodIndex: func(obj any) (keys []string, err error) {
		if pod, ok := obj.(*corev1.Pod); ok {
			for _, m := range hostPodMappings(pod) {
				keys = append(keys, m.portKey())
			}
		}
		return keys, nil
	}}
}

func (m Mapping) portKey() string { return fmt.Sprintf("%s/%d", m.Protocol, m.HostPort) }

// hostPodMappings returns the host ports that a pod in the host's network declares.
func hostPodMappings(pod *corev1.Pod) (all []Mapping) {
	if pod.Spec.HostNetwork {
		for _, p := range config.HostPorts(&pod.Spec) {
			all = append(all, Mapping{HostIP: p.HostIP, HostPort: int(p.HostPort), Protocol: strings.ToLower(string(p.Protocol))})
		}
	}
	return all
}

// HostPod returns the pod in the host's network that declares the host port, as NAMESPACE/NAME; "": none.
func HostPod(pods cache.Indexer, m Mapping) (string, error) {
	candidates, err := pods.ByIndex(hostPodIndex, m.portKey())
	for _, obj := range candidates {
		pod, ok := obj.(*corev1.Pod)
		if ok && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed && slices.ContainsFunc(hostPodMappings(pod), m.Overlaps) {
			return cache.MetaObjectToName(pod).String(), nil
		}
	}
	return "", err
}
