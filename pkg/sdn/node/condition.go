package node

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// verdict is what the agent says of the node's network in condition NetworkUnavailable. See package config for who writes when.
type verdict struct {
	status  corev1.ConditionStatus
	reason  string
	message string
}

func available(message string) *verdict {
	return &verdict{corev1.ConditionFalse, config.ReasonReady, message}
}

func unavailable(why error) *verdict {
	return &verdict{corev1.ConditionTrue, config.ReasonNotReady, why.Error()}
}

// condition writes the agent's verdict to its Node.
type condition struct {
	nodes typedcorev1.NodeInterface
	node  string

	mu      sync.Mutex
	verdict *verdict // nil: the controller's turn
	due     chan struct{}

	refused refusal
}

func newCondition(nodes typedcorev1.NodeInterface, node string) *condition {
	return &condition{nodes: nodes, node: node, due: make(chan struct{}, 1)}
}

// set has the verdict written, soon. nil leaves the condition alone from now on.
func (c *condition) set(v *verdict) {
	c.mu.Lock()
	c.verdict = v
	c.mu.Unlock()
	c.restate()
}

// restate has the verdict written again if the condition says something else.
func (c *condition) restate() {
	select {
	case c.due <- struct{}{}:
	default: // it is due already
	}
}

func (c *condition) get() *verdict {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.verdict
}

// run writes until the context ends.
func (c *condition) run(ctx context.Context) {
	const first, last, steps = 200 * time.Millisecond, 30 * time.Second, 20
	backoff := wait.Backoff{Duration: first, Cap: last, Factor: 2, Jitter: 0.1, Steps: steps}
	delay := backoff
	for {
		var again <-chan time.Time
		if v := c.get(); v != nil {
			err := c.write(ctx, *v)
			c.refused.note(err)
			if err != nil && ctx.Err() == nil {
				if !apierrors.IsConflict(err) {
					klog.FromContext(ctx).Error(err, "Could not say on the Node how its network is, will try again")
				}
				again = time.After(delay.Step())
			} else {
				delay = backoff
			}
		}
		select {
		case <-c.due:
		case <-again:
		case <-ctx.Done():
			return
		}
	}
}

// write writes the verdict unless the Node says it already.
func (c *condition) write(ctx context.Context, v verdict) error {
	node, err := c.nodes.Get(ctx, c.node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the Node: %w", err)
	}
	now := metav1.Now()
	written := corev1.NodeCondition{
		Type: corev1.NodeNetworkUnavailable, Status: v.status, Reason: v.reason, Message: v.message,
		LastHeartbeatTime: now, LastTransitionTime: now,
	}
	if old := config.NetworkUnavailable(node); old != nil {
		if old.Status == v.status && old.Reason == v.reason && old.Message == v.message {
			return nil
		}
		if old.Status == v.status {
			written.LastTransitionTime = old.LastTransitionTime
		}
	}
	// Of the Node that was read, and no other: the controller may have written meanwhile.
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion},
		"status":   map[string]any{"conditions": []corev1.NodeCondition{written}},
	})
	if err != nil {
		return fmt.Errorf("encode the Node's condition: %w", err)
	}
	if _, err := c.nodes.Patch(ctx, c.node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("write the Node's condition: %w", err)
	}
	klog.FromContext(ctx).Info("Said on the Node how its network is", "condition", written.Type, "status", v.status, "reason", v.reason)
	return nil
}
