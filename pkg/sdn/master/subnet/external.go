package subnet

import (
	"context"
	"errors"
	"fmt"

	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// A HostSubnet with networkv1.AssignHostSubnetAnnotation and without a subnet is a machine's that is no node, and that waits
// for the controller to give it one. The subnet is proposed and confirmed as a node's is, by updates of the object that people
// have made. It keeps the annotation: what was written by hand can be applied again without any effect.

// assign proposes a subnet for an external machine.
func (c *Controller) assign(ctx context.Context, hs *networkv1.HostSubnet) error {
	h, err := config.ParseHostSubnet(hs)
	if err == nil {
		err = c.network.Load().CheckHostSubnet(h)
	}
	if _, _, bad := config.FixedVNID(hs); bad != nil {
		err = errors.Join(err, bad)
	}
	if err != nil {
		return reconcile.Complain(c.Events, hs, reasonInvalid, err)
	}
	subnet, err := c.choose(hs.Name)
	if err != nil {
		return reconcile.Complain(c.Events, hs, reasonNoSubnet, err)
	}
	proposed := hs.DeepCopy()
	proposed.Subnet = subnet.String()
	metav1.SetMetaDataAnnotation(&proposed.ObjectMeta, config.ProposedAnnotation, "")
	if _, err := c.Network.NetworkV1().HostSubnets().Update(ctx, proposed, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("propose a subnet for HostSubnet %s: %w", hs.Name, err)
	}
	klog.FromContext(ctx).V(2).Info("Proposed a subnet for an external machine", "subnet", subnet)
	return nil
}

// withdraw takes a proposed subnet back, and proposes another.
func (c *Controller) withdraw(ctx context.Context, hs *networkv1.HostSubnet) error {
	waiting := hs.DeepCopy()
	waiting.Subnet = ""
	delete(waiting.Annotations, config.ProposedAnnotation)
	waiting, err := c.Network.NetworkV1().HostSubnets().Update(ctx, waiting, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("withdraw the subnet of HostSubnet %s: %w", hs.Name, err)
	}
	c.wakeAfter(c.allocator.Release(hs.Name))
	return c.assign(ctx, waiting)
}
