package subnet

import (
	"context"
	"errors"
	"fmt"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// A user creates a HostSubnet with networkv1.AssignHostSubnetAnnotation and without a subnet for a machine that is not a node. The controller
// proposes and confirms a subnet by updates of that object. It does not remove the annotation, so that the user's manifest can be applied
// again without an effect.

// syncUserManaged validates a HostSubnet whose subnet a user manages: of an external machine, or created for no Node. It writes nothing to it.
func (c *Controller) syncUserManaged(ctx context.Context, hs *networkv1.HostSubnet, node *corev1.Node) error {
	c.waitQueue.remove(hs.Name)
	c.retryWaiting(c.allocator.MarkAllocated(hs.Name, subnets(hs)...))
	var nodeErr error
	if node != nil {
		nodeErr = c.reportNoSubnet(ctx, node, eventreason.NoHostSubnet, fmt.Errorf(
			"HostSubnet %s has the annotation %s, which makes it an external machine's: remove the annotation, or rename one of the two",
			hs.Name, networkv1.AssignHostSubnetAnnotation))
		if _, reported := errors.AsType[reconcile.UserError](nodeErr); !reported {
			return nodeErr
		}
	}
	h, err := config.ParseHostSubnet(hs)
	if err == nil {
		err = c.checkOverlaps(hs)
	}
	if h != nil {
		owner, failed := c.hostIPOwner(ctx, hs.Name, hs, h.HostIP)
		if failed != nil {
			return failed
		}
		if owner != nil {
			err = errors.Join(err, fmt.Errorf("hostIP: %w", errHostIPInUse(h.HostIP, owner)))
		}
	}
	_, _, vnidErr := config.FixedVNID(hs)
	if err = errors.Join(err, vnidErr); err != nil {
		err = reconcile.ReportUserError(c.Events, hs, eventreason.InvalidHostSubnet, err)
	}
	return errors.Join(nodeErr, err)
}

// proposeExternal proposes a subnet for an external machine.
func (c *Controller) proposeExternal(ctx context.Context, hs *networkv1.HostSubnet) error {
	h, err := config.ParseHostSubnet(hs)
	if err == nil {
		err = c.network.Load().CheckHostSubnet(h)
	}
	_, _, vnidErr := config.FixedVNID(hs)
	if err = errors.Join(err, vnidErr); err != nil {
		return reconcile.ReportUserError(c.Events, hs, eventreason.InvalidHostSubnet, err)
	}
	subnet, err := c.chooseSubnet(ctx, hs.Name)
	if _, full := errors.AsType[*FullError](err); err != nil && !full {
		return err
	}
	if err != nil {
		return reconcile.ReportUserError(c.Events, hs, eventreason.NoHostSubnet, err)
	}
	proposed := hs.DeepCopy()
	proposed.Subnet = subnet.String()
	metav1.SetMetaDataAnnotation(&proposed.ObjectMeta, config.ProposedAnnotation, "")
	if _, err := c.Network.NetworkV1().HostSubnets().Update(ctx, proposed, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("propose subnet of HostSubnet %s: %w", hs.Name, err)
	}
	klog.FromContext(ctx).V(2).Info("Proposed subnet of external machine", "subnet", subnet)
	return nil
}

// withdrawExternal removes the proposed subnet of an external machine, and proposes a different one.
func (c *Controller) withdrawExternal(ctx context.Context, hs *networkv1.HostSubnet) error {
	withdrawn := hs.DeepCopy()
	withdrawn.Subnet = ""
	delete(withdrawn.Annotations, config.ProposedAnnotation)
	withdrawn, err := c.Network.NetworkV1().HostSubnets().Update(ctx, withdrawn, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("withdraw subnet of HostSubnet %s: %w", hs.Name, err)
	}
	c.retryWaiting(c.allocator.Release(hs.Name))
	return c.proposeExternal(ctx, withdrawn)
}
