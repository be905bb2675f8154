package sandbox

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// Cache is a cache of the Kubernetes API's pods.
type Cache interface {
	// Cached returns the pod of that name, or nil. The cache may be behind that of kubelet.
	Cached(namespace, name string) *corev1.Pod
}

// IsPod reports whether the sandbox of a pod with the object's name, and the UID in its external_ids, is the object's. Earlier versions wrote the UID of the
// mirror for static pods.
func IsPod(object *corev1.Pod, uid string) bool {
	return uid == string(config.PodUID(object)) || uid == string(object.UID)
}

// CachedObject returns the pod's object from the cache; nil if the cache does not have it, or another one of that name.
func CachedObject(cache Cache, p Pod) *corev1.Pod {
	object := cache.Cached(p.Namespace, p.Name)
	if object == nil || !IsPod(object, p.UID) {
		return nil
	}
	return object
}
