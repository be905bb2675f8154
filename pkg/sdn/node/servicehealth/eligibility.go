package servicehealth

import (
	"fmt"
	"slices"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// deletionTaint is the taint with which the cluster autoscaler announces the deletion of a Node.
const deletionTaint = "ToBeDeletedByClusterAutoscaler"

// eligibility is whether load balancers should send new connections to a node (KEP-3836).
type eligibility struct {
	name     string
	eligible atomic.Bool
}

// newEligibility follows the Node of that name.
func newEligibility(name string, nodes cache.SharedIndexInformer) (*eligibility, error) {
	e := &eligibility{name: name}
	_, err := nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: e.set, UpdateFunc: func(_, current any) { e.set(current) }, DeleteFunc: e.unset,
	})
	if err != nil {
		return nil, fmt.Errorf("watch Node %s: %w", name, err)
	}
	return e, nil
}

func (e *eligibility) set(obj any) {
	if node, ok := obj.(*corev1.Node); ok && node.Name == e.name {
		e.eligible.Store(isEligible(node))
	}
}

// unset handles a deletion. Without its Node a node is not eligible.
func (e *eligibility) unset(obj any) {
	if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil && key == e.name {
		e.eligible.Store(false)
	}
}

func isEligible(node *corev1.Node) bool {
	return node.DeletionTimestamp.IsZero() && !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == deletionTaint })
}
