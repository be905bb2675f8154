package subnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// sync reconciles the HostSubnet of that name with the Node of that name.
func (c *Controller) sync(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	node, hs, err := c.get(ctx, name)
	if err != nil {
		return err
	}
	switch {
	case hs == nil && node == nil:
		c.waitQueue.remove(name)
		c.retryWaiting(c.allocator.Release(name))
		return nil
	case hs == nil:
		return c.propose(ctx, node)
	case config.IsExternal(hs) && node == nil && config.IsProposed(hs):
		return c.confirm(ctx, nil, hs)
	case config.IsExternal(hs) && node == nil && hs.Subnet == "":
		return c.proposeExternal(ctx, hs)
	case config.IsExternal(hs), node == nil && nodeUID(hs) == "":
		return c.syncUserManaged(ctx, hs, node)
	case node == nil, nodeUID(hs) != "" && nodeUID(hs) != node.UID:
		return c.syncDeletedNode(ctx, hs, node)
	case config.IsProposed(hs):
		return c.confirm(ctx, node, hs)
	default:
		if err := c.clearNoSubnet(ctx, node, hs); err != nil {
			return err
		}
		return c.update(ctx, node, hs)
	}
}

// get returns the Node and the HostSubnet of that name, nil if they don't exist. The cache may be outdated. If by the result the HostSubnet's Node was
// deleted, get reads the Node from the API server. It does not if sync would create one: the API server rejects a second
// object of the same name.
func (c *Controller) get(ctx context.Context, name string) (*corev1.Node, *networkv1.HostSubnet, error) {
	node, err := reconcile.OrNil(c.nodes.Get(name))
	if err != nil {
		return nil, nil, fmt.Errorf("get Node %s from the cache: %w", name, err)
	}
	hs, err := reconcile.OrNil(c.hostSubnets.Get(name))
	if err != nil {
		return nil, nil, fmt.Errorf("get HostSubnet %s from the cache: %w", name, err)
	}
	if hs != nil && nodeUID(hs) != "" && (node == nil || nodeUID(hs) != node.UID) {
		node, err = reconcile.OrNil(c.Kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}))
		if err != nil {
			return nil, nil, fmt.Errorf("get Node %s: %w", name, err)
		}
	}
	return node, hs, nil
}

// nodeUID returns the UID of the Node for which the HostSubnet was created; "": none.
func nodeUID(hs *networkv1.HostSubnet) types.UID {
	return types.UID(hs.Annotations[networkv1.NodeUIDAnnotation])
}

// remove deletes this version of the HostSubnet and releases its subnet. If the HostSubnet does not exist, the cache is outdated and the
// allocation may already belong to a newer Node of that name: remove does not release it.
func (c *Controller) remove(ctx context.Context, hs *networkv1.HostSubnet) (released bool, err error) {
	err = c.Network.NetworkV1().HostSubnets().Delete(ctx, hs.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &hs.UID, ResourceVersion: &hs.ResourceVersion},
	})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("delete HostSubnet %s: %w", hs.Name, err)
	}
	c.retryWaiting(c.allocator.Release(hs.Name))
	klog.FromContext(ctx).Info("Released subnet", "subnet", hs.Subnet, "nodeUID", nodeUID(hs))
	return true, nil
}

// update writes the fields that the Node determines (name, UID, address), and validates the subnet. The HostSubnet of a deleted Node becomes the Node's.
func (c *Controller) update(ctx context.Context, node *corev1.Node, hs *networkv1.HostSubnet) error {
	c.waitQueue.remove(hs.Name)
	want := hs.DeepCopy()
	want.Host = hs.Name
	metav1.SetMetaDataAnnotation(&want.ObjectMeta, networkv1.NodeUIDAnnotation, string(node.UID))
	delete(want.Annotations, config.NodeDeletedAnnotation)
	addr, unusable, err := c.hostIP(ctx, node, hs)
	if err != nil {
		return err
	}
	if unusable != nil {
		unusable = reconcile.ReportUserError(c.Events, node, eventreason.NodeAddressUnusable, unusable)
	} else {
		want.HostIP = addr.String()
	}
	if !equality.Semantic.DeepEqual(want, hs) {
		if _, err := c.Network.NetworkV1().HostSubnets().Update(ctx, want, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("update HostSubnet %s: %w", hs.Name, err)
		}
		klog.FromContext(ctx).Info("Updated HostSubnet", "hostIP", want.HostIP, "previousHostIP", hs.HostIP, "nodeUID", node.UID)
	}
	return errors.Join(unusable, c.validateSubnet(node, want))
}

// validateSubnet reports an invalid or overlapping subnet on the Node. While it is invalid, the previous subnet stays allocated too: pods of
// the node may still use it.
func (c *Controller) validateSubnet(node *corev1.Node, hs *networkv1.HostSubnet) error {
	c.markAllocated(hs) // before checkOverlaps: of two concurrent edits, at least one must find the other
	h, err := config.ParseHostSubnet(hs)
	if err == nil {
		err = c.network.Load().CheckHostSubnet(h)
	}
	if err == nil {
		err = c.checkOverlaps(hs)
	}
	if err == nil {
		c.retryWaiting(c.allocator.MarkAllocated(hs.Name, h.Subnets...))
		return nil
	}
	err = fmt.Errorf("HostSubnet %s can't be used: %w", hs.Name, err)
	switch previous, ok := c.previousSubnet(hs.Name); {
	case !ok:
		err = fmt.Errorf("%w: delete it, and the node gets another subnet", err)
	case previous.String() != hs.Subnet:
		err = fmt.Errorf("%w: write back %s, or delete it, and it is re-created with that", err, previous)
	}
	return reconcile.ReportUserError(c.Events, node, eventreason.InvalidHostSubnet, err)
}

// markAllocated adds the subnet of the HostSubnet to its allocations.
func (c *Controller) markAllocated(hs *networkv1.HostSubnet) {
	allocated := c.allocator.Subnets(hs.Name)
	for _, p := range subnets(hs) {
		if !slices.Contains(allocated, p) {
			allocated = append(allocated, p)
		}
	}
	c.allocator.MarkAllocated(hs.Name, allocated...)
}

// previousSubnet returns the first allocation of that name that is valid and overlaps no other.
func (c *Controller) previousSubnet(name string) (netip.Prefix, bool) {
	for _, p := range c.allocator.Subnets(name) {
		if c.network.Load().CheckSubnet(p) == nil && len(c.allocator.Overlapping(name, p)) == 0 {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// checkOverlaps returns an error that names the HostSubnets that overlap this one. It ignores proposed ones, which are withdrawn.
func (c *Controller) checkOverlaps(hs *networkv1.HostSubnet) error {
	overlapping, err := c.overlapping(hs)
	if err != nil {
		return err
	}
	var errs []error
	for _, other := range overlapping {
		if !config.IsProposed(other) {
			errs = append(errs, fmt.Errorf("subnet: %s overlaps %s of HostSubnet %s", hs.Subnet, other.Subnet, other.Name))
		}
	}
	return errors.Join(errs...)
}

// subnets returns the masked subnet of the HostSubnet, or none if it can't be parsed. It ignores other invalid fields, so that the subnet of an
// invalid HostSubnet is not allocated to another.
func subnets(hs *networkv1.HostSubnet) []netip.Prefix {
	p, err := netip.ParsePrefix(hs.Subnet)
	if err != nil {
		return nil
	}
	return []netip.Prefix{p.Masked()}
}
