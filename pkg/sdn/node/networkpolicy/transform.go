package networkpolicy

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
)

// Transform is the cache.TransformFunc of the informers of Cluster. It removes the fields that no policy depends on, since each node caches the objects of
// the whole cluster: annotations, except for those that are read, and the rules of NetworkPolicies that exceed their budget.
func Transform(obj any) (any, error) {
	switch o := obj.(type) {
	case *corev1.Pod:
		return transformPod(o), nil
	case *corev1.Node:
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: o.Name, UID: o.UID, Labels: o.Labels, ResourceVersion: o.ResourceVersion},
			Status:     corev1.NodeStatus{Addresses: o.Status.Addresses},
		}, nil
	case *corev1.Namespace:
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: o.Name, UID: o.UID, Labels: o.Labels, ResourceVersion: o.ResourceVersion, Annotations: logAnnotation(o.Annotations),
		}}, nil
	case *networkingv1.NetworkPolicy:
		return policy.Compact(o), nil
	case *policyv1alpha2.ClusterNetworkPolicy:
		out := *o
		out.ManagedFields, out.Annotations = nil, nil
		return &out, nil
	}
	return obj, nil
}

// logAnnotation returns the annotation that syncLogged reads, if it is true.
func logAnnotation(all map[string]string) map[string]string {
	if logged, _ := config.ParseLogDenied(all); logged {
		return map[string]string{config.LogDeniedAnnotation: all[config.LogDeniedAnnotation]}
	}
	return nil
}

// mirrorAnnotation returns the annotation that config.PodUID reads. Only mirrors of static pods have it.
func mirrorAnnotation(pod *corev1.Pod) map[string]string {
	if uid, is := pod.Annotations[corev1.MirrorPodAnnotationKey]; is {
		return map[string]string{corev1.MirrorPodAnnotationKey: uid}
	}
	return nil
}

func transformPod(pod *corev1.Pod) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Labels: pod.Labels, ResourceVersion: pod.ResourceVersion,
			Annotations: mirrorAnnotation(pod),
		},
		Spec: corev1.PodSpec{
			HostNetwork: pod.Spec.HostNetwork,
			Containers:  policy.CompactContainers(&pod.Spec),
		},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, PodIPs: pod.Status.PodIPs},
	}
}
