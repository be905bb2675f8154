package node

import (
	"slices"
	"strings"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// trim removes from an object the metadata that the agent does not read. Annotations of one object may have 256 KiB, and everyone who may write a
// Pod decides how large they are. It is an informer's transform.
func trim(obj any) (any, error) {
	const ours, openshift, kubelet = "ovsdn.io/", "network.openshift.io/", "kubernetes.io/config." // the last on the mirrors of static pods
	switch o := obj.(type) {
	case *corev1.Pod:
		out := *o
		trimMeta(&out.ObjectMeta, kubelet)
		return &out, nil
	case *networkv1.ClusterNetwork:
		out := *o
		trimMeta(&out.ObjectMeta, ours, openshift)
		return &out, nil
	case *networkv1.HostSubnet:
		out := *o
		trimMeta(&out.ObjectMeta, ours, openshift)
		return &out, nil
	case *networkv1.NetNamespace:
		out := *o
		trimMeta(&out.ObjectMeta, ours, openshift)
		return &out, nil
	}
	return obj, nil
}

// maxAnnotation is the longest value of an annotation that is retained, in bytes: more than any configuration has (config.AcceptedAnnotation).
const maxAnnotation = 16 << 10

// trimMeta retains annotations whose keys contain one of the names.
func trimMeta(o *metav1.ObjectMeta, names ...string) {
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
