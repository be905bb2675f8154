package caches

import (
	"slices"
	"strings"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/cniargs"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
)

// transform is an informer's transform that removes the annotations and managed fields that the agent does not read, and those fields of pods. The API
// allows 256 KiB of annotations in one object.
func transform(obj any) (any, error) {
	switch o := obj.(type) {
	case *corev1.Pod:
		privileged, hostUsers := config.CompactMacvlan(o)
		containers := append(privileged, compactContainers(&o.Spec)...)
		out := &corev1.Pod{
			ObjectMeta: o.ObjectMeta,
			Spec:       corev1.PodSpec{NodeName: o.Spec.NodeName, HostNetwork: o.Spec.HostNetwork, HostUsers: hostUsers, Containers: containers},
			Status:     corev1.PodStatus{Phase: o.Status.Phase, PodIPs: o.Status.PodIPs},
		}
		out.OwnerReferences, out.Finalizers = nil, nil
		stripMetadata(&out.ObjectMeta, isPodAnnotation)
		return out, nil
	case *networkv1.ClusterNetwork:
		out := *o
		stripMetadata(&out.ObjectMeta, isNetworkAnnotation)
		return &out, nil
	case *networkv1.HostSubnet:
		out := *o
		stripMetadata(&out.ObjectMeta, isNetworkAnnotation)
		return &out, nil
	case *networkv1.NetNamespace:
		out := *o
		stripMetadata(&out.ObjectMeta, isNetworkAnnotation)
		return &out, nil
	case *networkv1.EgressNetworkPolicy:
		return config.CompactEgressNetworkPolicy(o), nil
	}
	return obj, nil
}

// compactContainers returns the named ports, which policies read, and the host ports. Of a pod in the host's network these are all, for the error of a pod that
// asks for one of them; of another pod one, which shows that it has any: kubelet maps those of its containers, and of no init container.
func compactContainers(s *corev1.PodSpec) []corev1.Container {
	containers, ports := policy.CompactContainers(s), config.HostPorts(s)
	if !s.HostNetwork {
		ports = config.HostPorts(&corev1.PodSpec{Containers: s.Containers})
		ports = ports[:min(len(ports), 1)]
		for _, c := range containers {
			for i := range c.Ports {
				c.Ports[i].HostPort = 0
			}
		}
	}
	if len(ports) > 0 {
		containers = append(containers, corev1.Container{Ports: ports})
	}
	return containers
}

// maxAnnotation is the longest value of an annotation that is retained, in bytes: more than any configuration has (config.AcceptedAnnotation).
const maxAnnotation = 16 << 10

// isPodAnnotation reports whether the agent reads the annotation of a pod. Tenants write these: the keys are exact, so that their number is limited.
func isPodAnnotation(key string) bool {
	return slices.Contains(config.PodRequestAnnotations(), key) || slices.Contains(cniargs.PodAnnotations(), key)
}

// isNetworkAnnotation reports whether the annotation is one of the network's objects, which only administrators and controllers write.
func isNetworkAnnotation(key string) bool {
	return strings.Contains(key, "ovsdn.io/") || strings.Contains(key, "network.openshift.io/")
}

// stripMetadata retains the annotations that the agent reads.
func stripMetadata(o *metav1.ObjectMeta, reads func(key string) bool) {
	o.ManagedFields = nil
	var retained map[string]string
	for key, value := range o.Annotations {
		if !reads(key) {
			continue
		}
		if slices.Contains(config.PodRequestAnnotations(), key) {
			value = strings.Clone(value[:min(len(value), config.MaxPodRequest+1)]) // not omitted: an invalid value has a meaning, too
		}
		if len(value) <= maxAnnotation {
			if retained == nil {
				retained = map[string]string{}
			}
			retained[key] = value
		}
	}
	o.Annotations = retained
}
