package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/nodecondition"
)

// networkStatus is the agent's value of the Node condition NetworkUnavailable. Package config documents when the agent and when the controller writes it.
type networkStatus struct {
	status  corev1.ConditionStatus
	reason  string
	message string

	noHostSubnet bool // the controller's condition about the missing HostSubnet takes precedence
}

func available(message string) *networkStatus {
	return &networkStatus{status: corev1.ConditionFalse, reason: config.ReasonReady, message: message}
}

func unavailable(why error) *networkStatus {
	return &networkStatus{status: corev1.ConditionTrue, reason: config.ReasonNotReady, message: why.Error(), noHostSubnet: errors.Is(why, errNoHostSubnet)}
}

// condition writes the agent's networkStatus to its Node object.
type condition struct {
	nodes typedcorev1.NodeInterface
	node  string

	mu            sync.Mutex
	networkStatus *networkStatus // nil: the controller writes the condition
	due           chan struct{}

	refused refusal
}

func newCondition(nodes typedcorev1.NodeInterface, node string) *condition {
	return &condition{nodes: nodes, node: node, due: make(chan struct{}, 1)}
}

// set schedules a write of the status. With nil, run no longer writes the condition.
func (c *condition) set(v *networkStatus) {
	c.mu.Lock()
	c.networkStatus = v
	c.mu.Unlock()
	c.refresh()
}

// refresh schedules a write of the status if the condition differs.
func (c *condition) refresh() {
	select {
	case c.due <- struct{}{}:
	default: // a write is scheduled
	}
}

func (c *condition) get() *networkStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.networkStatus
}

// run writes scheduled statuses until the context ends.
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
				retryAfter := delay.Step()
				if !apierrors.IsConflict(err) {
					klog.FromContext(ctx).Error(err, "Failed to update Node condition", "type", corev1.NodeNetworkUnavailable, "retryAfter", retryAfter)
				}
				again = time.After(retryAfter)
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

// write writes the status unless the Node has it.
func (c *condition) write(ctx context.Context, v networkStatus) error {
	node, err := c.nodes.Get(ctx, c.node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get Node: %w", err)
	}
	if current := config.NetworkUnavailable(node); v.noHostSubnet && current != nil && current.Status == corev1.ConditionTrue && current.Reason == config.ReasonNoHostSubnet {
		return nil // it has the cause
	}
	return nodecondition.Set(ctx, c.nodes, node, v.status, v.reason, v.message)
}
