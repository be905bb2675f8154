// Package nodecondition writes the condition NetworkUnavailable of Nodes. Package config documents its reasons, and when the agent and when the
// controller writes it.
package nodecondition

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// Set writes the condition unless the Node has it. It conflicts if the Node was changed since it was read.
func Set(ctx context.Context, nodes typedcorev1.NodeInterface, node *corev1.Node, status corev1.ConditionStatus, reason, message string) error {
	now := metav1.Now()
	want := corev1.NodeCondition{
		Type: corev1.NodeNetworkUnavailable, Status: status, Reason: reason, Message: message,
		LastHeartbeatTime: now, LastTransitionTime: now,
	}
	if current := config.NetworkUnavailable(node); current != nil {
		if Equal(current, &want) {
			return nil
		}
		if current.Status == status {
			want.LastTransitionTime = current.LastTransitionTime
		}
	}
	// A strategic merge patch merges conditions by type, so other conditions are preserved.
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion},
		"status":   map[string]any{"conditions": []corev1.NodeCondition{want}},
	})
	if err != nil {
		return fmt.Errorf("encode condition %s: %w", want.Type, err)
	}
	if _, err := nodes.Patch(ctx, node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("patch condition %s of Node %s: %w", want.Type, node.Name, err)
	}
	klog.FromContext(ctx).Info("Updated Node condition", "type", want.Type, "status", status, "reason", reason)
	return nil
}

// Equal compares conditions, which may be nil, without their times.
func Equal(a, b *corev1.NodeCondition) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}
