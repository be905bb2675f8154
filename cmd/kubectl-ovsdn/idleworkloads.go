package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/retry"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// workload is an object that can be scaled, as it was read.
type workload struct {
	config.UnidleTarget
	version string // resourceVersion
}

func (w workload) resource() string {
	name := strings.ToLower(w.Kind)
	if w.Group != "" {
		name += "." + w.Group
	}
	return name
}

// workloads returns the objects that have created the pods of a service and have replicas. The selector finds them with one request; the service's EndpointSlices
// list the same pods, except those without an address yet.
func (c *idler) workloads(ctx context.Context, service *corev1.Service) ([]workload, error) {
	pods, err := c.kube.CoreV1().Pods(c.namespace).List(ctx, metav1.ListOptions{LabelSelector: labels.SelectorFromSet(service.Spec.Selector).String()})
	if err != nil {
		return nil, err
	}
	owners := map[metav1.OwnerReference]bool{}
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		owner := metav1.GetControllerOf(&pod)
		if owner == nil {
			return nil, fmt.Errorf("pod %s of service %s has no controller, so it can't be scaled", pod.Name, service.Name)
		}
		owners[metav1.OwnerReference{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name}] = true
	}
	if len(owners) == 0 {
		return nil, fmt.Errorf("service %s has no pods to scale", service.Name)
	}
	found := map[string]workload{} // by resource and name: several ReplicaSets belong to one Deployment
	for owner := range owners {
		w, err := c.workload(ctx, owner)
		if err != nil {
			return nil, err
		}
		if w.Replicas > 0 { // a ReplicaSet of an earlier revision may still have pods that end
			found[w.resource()+"/"+w.Name] = w
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("the pods of service %s end already: all that created them have 0 replicas", service.Name)
	}
	var all []workload
	for _, key := range slices.Sorted(maps.Keys(found)) {
		all = append(all, found[key])
	}
	return all, nil
}

// workload reads the controller of pods or, of a ReplicaSet, its Deployment.
func (c *idler) workload(ctx context.Context, owner metav1.OwnerReference) (workload, error) {
	var object metav1.Object
	var replicas *int32
	var err error
	group := appsv1.GroupName
	switch owner.APIVersion + " " + owner.Kind {
	case "apps/v1 Deployment":
		var o *appsv1.Deployment
		o, err = c.kube.AppsV1().Deployments(c.namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		object, replicas = o, o.Spec.Replicas
	case "apps/v1 ReplicaSet":
		var o *appsv1.ReplicaSet
		o, err = c.kube.AppsV1().ReplicaSets(c.namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		object, replicas = o, o.Spec.Replicas
	case "apps/v1 StatefulSet":
		var o *appsv1.StatefulSet
		o, err = c.kube.AppsV1().StatefulSets(c.namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		object, replicas = o, o.Spec.Replicas
	case "v1 ReplicationController":
		var o *corev1.ReplicationController
		o, err = c.kube.CoreV1().ReplicationControllers(c.namespace).Get(ctx, owner.Name, metav1.GetOptions{})
		object, replicas, group = o, o.Spec.Replicas, corev1.GroupName
	default:
		return workload{}, fmt.Errorf("the pods are those of %s %s, which can't be idled: only Deployments, ReplicaSets, StatefulSets and ReplicationControllers can",
			owner.Kind, owner.Name)
	}
	if err != nil {
		return workload{}, err
	}
	if above := metav1.GetControllerOf(object); above != nil {
		if owner.Kind == "ReplicaSet" && above.APIVersion == "apps/v1" && above.Kind == "Deployment" {
			return c.workload(ctx, *above)
		}
		return workload{}, fmt.Errorf("%s %s belongs to %s %s, which may scale it up again: scale that by hand", owner.Kind, owner.Name, above.Kind, above.Name)
	}
	count := int32(1) // as the API server's default
	if replicas != nil {
		count = *replicas
	}
	return workload{config.UnidleTarget{Group: group, Kind: owner.Kind, Name: owner.Name, Replicas: count}, object.GetResourceVersion()}, nil
}

// scaleToZero scales a workload, unless its replicas have changed since they were recorded.
func (c *idler) scaleToZero(ctx context.Context, w workload) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		err := c.updateScale(ctx, w)
		if !apierrors.IsConflict(err) {
			return err
		}
		now, readErr := c.workload(ctx, w.reference())
		switch {
		case readErr != nil:
			return readErr
		case now.Replicas != w.Replicas:
			return fmt.Errorf("it was scaled from %d to %d in the meantime", w.Replicas, now.Replicas)
		}
		w.version = now.version // its status has changed
		return err
	})
}

func (w workload) reference() metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: schema.GroupVersion{Group: w.Group, Version: "v1"}.String(), Kind: w.Kind, Name: w.Name}
}

func (c *idler) updateScale(ctx context.Context, w workload) (err error) {
	scale := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: w.Name, ResourceVersion: w.version}}
	switch w.Kind {
	case "Deployment":
		_, err = c.kube.AppsV1().Deployments(c.namespace).UpdateScale(ctx, w.Name, scale, metav1.UpdateOptions{})
	case "ReplicaSet":
		_, err = c.kube.AppsV1().ReplicaSets(c.namespace).UpdateScale(ctx, w.Name, scale, metav1.UpdateOptions{})
	case "StatefulSet":
		_, err = c.kube.AppsV1().StatefulSets(c.namespace).UpdateScale(ctx, w.Name, scale, metav1.UpdateOptions{})
	case "ReplicationController":
		_, err = c.kube.CoreV1().ReplicationControllers(c.namespace).UpdateScale(ctx, w.Name, scale, metav1.UpdateOptions{})
	}
	return err
}
