package config

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// PodUID returns the UID that the container runtime has for the pod's sandboxes: the pod's own or, for the mirror of a static pod, that of the static pod,
// which kubelet writes in an annotation. kubelet re-creates a deleted mirror with another UID of its own, while the static pod runs on.
func PodUID(pod *corev1.Pod) types.UID {
	if uid := pod.Annotations[corev1.MirrorPodAnnotationKey]; uid != "" {
		return types.UID(uid)
	}
	return pod.UID
}
