package subnet

import (
	"context"
	"encoding/json"
	"fmt"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// The controller's half of the Node's condition NetworkUnavailable; config.ReasonNoHostSubnet says who writes when.

// withoutSubnet says on the node why it can't be given a subnet: in an Event and in the condition. It returns the error as
// a complaint, unless the condition could not be written, which is tried again sooner.
func (c *Controller) withoutSubnet(ctx context.Context, node *corev1.Node, reason string, err error) error {
	told := reconcile.Complain(c.Events, node, reason, err)
	if err := c.setUnavailable(ctx, node, config.ReasonNoHostSubnet, reconcile.OneLine(err)); err != nil {
		return err
	}
	return told
}

// handOver takes back what withoutSubnet said of a node that has its HostSubnet now.
func (c *Controller) handOver(ctx context.Context, node *corev1.Node, hs *networkv1.HostSubnet) error {
	now := config.NetworkUnavailable(node)
	if now == nil || now.Status != corev1.ConditionTrue || now.Reason != config.ReasonNoHostSubnet {
		return nil
	}
	return c.setUnavailable(ctx, node, config.ReasonHostSubnetGiven,
		fmt.Sprintf("the node has the subnet %s; ovsdn-node has not set it up yet", hs.Subnet))
}

// setUnavailable writes the condition, unless it is so already or the node has changed since it was read.
func (c *Controller) setUnavailable(ctx context.Context, node *corev1.Node, reason, message string) error {
	now := metav1.Now()
	want := corev1.NodeCondition{
		Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue,
		Reason: reason, Message: message,
		LastHeartbeatTime: now, LastTransitionTime: now,
	}
	if before := config.NetworkUnavailable(node); before != nil {
		if saysTheSame(before, &want) {
			return nil
		}
		if before.Status == want.Status {
			want.LastTransitionTime = before.LastTransitionTime
		}
	}
	// Conditions are merged by their type: the others stay.
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": node.ResourceVersion},
		"status":   map[string]any{"conditions": []corev1.NodeCondition{want}},
	})
	if err != nil {
		return fmt.Errorf("encode the condition of Node %s: %w", node.Name, err)
	}
	if _, err := c.Kube.CoreV1().Nodes().Patch(ctx, node.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("set the condition %s of Node %s: %w", want.Type, node.Name, err)
	}
	return nil
}

// saysTheSame compares conditions without their times; nil is none.
func saysTheSame(a, b *corev1.NodeCondition) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}
