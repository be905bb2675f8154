package subnet

import (
	"context"
	"fmt"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/nodecondition"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// reportNoSubnet reports the error that prevents the allocation of a subnet in an Event and in the condition NetworkUnavailable of the Node
// (config.ReasonNoHostSubnet). It returns a reconcile.UserError or, if the condition could not be written, the error of that write.
func (c *Controller) reportNoSubnet(ctx context.Context, node *corev1.Node, reason string, err error) error {
	reported := reconcile.ReportUserError(c.Events, node, reason, err)
	if err := c.setUnavailable(ctx, node, config.ReasonNoHostSubnet, reconcile.OneLine(err)); err != nil {
		return err
	}
	return reported
}

// clearNoSubnet replaces the condition of reportNoSubnet on a Node that has a HostSubnet now.
func (c *Controller) clearNoSubnet(ctx context.Context, node *corev1.Node, hs *networkv1.HostSubnet) error {
	current := config.NetworkUnavailable(node)
	if current == nil || current.Status != corev1.ConditionTrue || current.Reason != config.ReasonNoHostSubnet {
		return nil
	}
	return c.setUnavailable(ctx, node, config.ReasonHostSubnetGiven,
		fmt.Sprintf("the node has the subnet %s; ovsdn-node has not set it up yet", hs.Subnet))
}

func (c *Controller) setUnavailable(ctx context.Context, node *corev1.Node, reason, message string) error {
	return nodecondition.Set(ctx, c.Kube.CoreV1().Nodes(), node, corev1.ConditionTrue, reason, message)
}
