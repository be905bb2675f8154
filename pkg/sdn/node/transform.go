package node

import (
	"slices"
	"strings"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
)

// transform is an informer's transform that removes the annotations and managed fields that the agent does not read, and those fields of pods. The API
// allows 256 KiB of annotations in one object.
func transform(obj any) (any, error) {
	const ours, openshift, kubelet = "ovsdn.io/", "network.openshift.io/", "kubernetes.io/config." // the last on the mirrors of static pods
	switch o := obj.(type) {
	case *corev1.Pod:
		containers := policy.CompactContainers(&o.Spec)
		if ports := config.HostPorts(&o.Spec); len(ports) > 0 && !o.Spec.HostNetwork {
			containers = append(containers, corev1.Container{Ports: ports}) // no named ports, which policies read
		}
		out := &corev1.Pod{
			ObjectMeta: o.ObjectMeta,
			Spec:       corev1.PodSpec{NodeName: o.Spec.NodeName, HostNetwork: o.Spec.HostNetwork, Containers: containers},
			Status:     corev1.PodStatus{Phase: o.Status.Phase, PodIPs: o.Status.PodIPs},
		}
		out.OwnerReferences, out.Finalizers = nil, nil
		stripMetadata(&out.ObjectMeta, append(config.PodRequestAnnotations(), kubelet)...)
		return out, nil
	case *networkv1.ClusterNetwork:
		out := *o
		stripMetadata(&out.ObjectMeta, ours, openshift)
		return &out, nil
	case *networkv1.HostSubnet:
		out := *o
		stripMetadata(&out.ObjectMeta, ours, openshift)
		return &out, nil
	case *networkv1.NetNamespace:
		out := *o
		stripMetadata(&out.ObjectMeta, ours, openshift)
		return &out, nil
	}
	return obj, nil
}

// maxAnnotation is the longest value of an annotation that is retained, in bytes: more than any configuration has (config.AcceptedAnnotation).
const maxAnnotation = 16 << 10

// stripMetadata retains annotations whose keys contain one of the names.
func stripMetadata(o *metav1.ObjectMeta, names ...string) {
	o.ManagedFields = nil
	var retained map[string]string
	for key, value := range o.Annotations {
		if len(value) <= maxAnnotation && slices.ContainsFunc(names, func(name string) bool { return strings.Contains(key, name) }) {
			if retained == nil {
				retained = map[string]string{}
			}
			retained[key] = value
		}
	}
	o.Annotations = retained
}
