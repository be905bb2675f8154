// Package nodestatus reports the state of the node's network to the API server: by the condition NetworkUnavailable of the Node and by Events. It records whether the
// API server refuses these writes, since only a probe can report that.
package nodestatus

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

// ErrNoHostSubnet is the failure of a running node whose HostSubnet was deleted. Its text follows the name.
var ErrNoHostSubnet = errors.New("was deleted, so other nodes do not reach this node's pods; check that ovsdn-controller runs, which re-creates it")

// NetworkStatus is the agent's value of the Node condition NetworkUnavailable. Package config documents when the agent and when the controller writes it.
type NetworkStatus struct {
	Status  corev1.ConditionStatus
	Reason  string
	Message string

	noHostSubnet bool // the controller's condition about the missing HostSubnet takes precedence
}

// Available is the status of a node whose network works.
func Available(message string) *NetworkStatus {
	return &NetworkStatus{Status: corev1.ConditionFalse, Reason: config.ReasonReady, Message: message}
}

// Unavailable is the status of a node whose network does not work, with the reason.
func Unavailable(why error) *NetworkStatus {
	return &NetworkStatus{Status: corev1.ConditionTrue, Reason: config.ReasonNotReady, Message: why.Error(), noHostSubnet: errors.Is(why, ErrNoHostSubnet)}
}

// Condition writes the agent's NetworkStatus to its Node object.
type Condition struct {
	nodes typedcorev1.NodeInterface
	node  string

	mu            sync.Mutex
	networkStatus *NetworkStatus // nil: the controller writes the condition
	due           chan struct{}

	refused refusal
}

// NewCondition returns a condition that Run does not write before Set.
func NewCondition(nodes typedcorev1.NodeInterface, node string) *Condition {
	return &Condition{nodes: nodes, node: node, due: make(chan struct{}, 1)}
}

// Set schedules a write of the status. With nil, Run no longer writes the condition.
func (c *Condition) Set(v *NetworkStatus) {
	c.mu.Lock()
	c.networkStatus = v
	c.mu.Unlock()
	c.Refresh()
}

// Refresh schedules a write of the status if the condition differs.
func (c *Condition) Refresh() {
	select {
	case c.due <- struct{}{}:
	default: // a write is scheduled
	}
}

// Get returns the last status of Set.
func (c *Condition) Get() *NetworkStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.networkStatus
}

// Run writes scheduled statuses until the context ends.
func (c *Condition) Run(ctx context.Context) {
	const first, last, steps = 200 * time.Millisecond, 30 * time.Second, 20
	backoff := wait.Backoff{Duration: first, Cap: last, Factor: 2, Jitter: 0.1, Steps: steps}
	delay := backoff
	for {
		var again <-chan time.Time
		if v := c.Get(); v != nil {
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
func (c *Condition) write(ctx context.Context, v NetworkStatus) error {
	node, err := c.nodes.Get(ctx, c.node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get Node: %w", err)
	}
	if current := config.NetworkUnavailable(node); v.noHostSubnet && current != nil && current.Status == corev1.ConditionTrue && current.Reason == config.ReasonNoHostSubnet {
		return nil // it has the cause
	}
	return nodecondition.Set(ctx, c.nodes, node, v.Status, v.Reason, v.Message)
}

// Err returns the message of the Node's condition if its status is True, written or scheduled.
func (c *Condition) Err() error {
	if v := c.Get(); v != nil && v.Status == corev1.ConditionTrue {
		return errors.New(v.Message)
	}
	return nil
}

// Refusal returns the API server's refusal of the last write, nil if there is none.
func (c *Condition) Refusal() error { return c.refused.get(0) }
