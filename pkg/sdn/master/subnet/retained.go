package subnet

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// Pods continue to run when the Node object of their node is deleted. Therefore the HostSubnet of a deleted Node is retained for a while
// (docs/decisions/0012): a Node of the same name and InternalIP gets it back, and until then other nodes reach its pods. All state is in
// config.NodeDeletedAnnotation, so that it does not depend on which controller leads.

// retainedIndex lists HostSubnets of Nodes with config.NodeDeletedAnnotation, all under retainedKey.
const (
	retainedIndex = "retained"
	retainedKey   = "true"
)

// retainedKeys is the cache.IndexFunc of retainedIndex.
func retainedKeys(o any) ([]string, error) {
	hs, ok := o.(*networkv1.HostSubnet)
	if !ok {
		return nil, fmt.Errorf("got %T, want a HostSubnet", o)
	}
	if !config.IsRetained(hs) || nodeUID(hs) == "" || config.IsExternal(hs) {
		return nil, nil // a user manages it, whatever its annotations
	}
	return []string{retainedKey}, nil
}

// syncDeletedNode retains the HostSubnet of a deleted Node, or deletes it when its time has ended. node is the next Node of that name, or nil: it gets the
// HostSubnet back if it has the same address. With another address it is treated as another machine, and gets another subnet.
func (c *Controller) syncDeletedNode(ctx context.Context, hs *networkv1.HostSubnet, node *corev1.Node) error {
	// kubelet or a cloud's node controller may write the addresses later.
	awaited := node == nil || len(internalIPs(node)) == 0
	if !awaited {
		returned, err := c.hasReturned(ctx, hs, node)
		if err != nil {
			return err
		}
		if returned {
			return c.update(ctx, node, hs)
		}
	}
	now := time.Now()
	since, marked := config.NodeDeletedSince(hs)
	marked = marked && !since.After(now)
	if !marked {
		since = now
	}
	remaining := c.retention - now.Sub(since)
	if !awaited || remaining <= 0 || config.IsProposed(hs) {
		if _, err := c.remove(ctx, hs); err != nil || node == nil {
			return err
		}
		return c.propose(ctx, node)
	}
	if !marked {
		return c.retain(ctx, hs, now) // the change of the cache causes the next sync
	}
	c.loop.AddAfter(hs.Name, remaining)
	if node != nil {
		_, unusable, err := c.hostIP(ctx, node, hs)
		if err != nil || unusable == nil {
			return err
		}
		return reconcile.ReportUserError(c.Events, node, eventreason.NodeAddressUnusable, unusable)
	}
	c.retryWaiting(true) // allocateRetained releases the subnet if a node waits for one
	return nil
}

// hasReturned reports whether the Node is the HostSubnet's deleted one, registered again: it has the same address, which is no other's. An invalid HostSubnet
// is replaced instead.
func (c *Controller) hasReturned(ctx context.Context, hs *networkv1.HostSubnet, node *corev1.Node) (bool, error) {
	addr, unusable, err := c.hostIP(ctx, node, hs)
	if err != nil || unusable != nil || addr.String() != hs.HostIP || config.IsProposed(hs) {
		return false, err
	}
	h, err := config.ParseHostSubnet(hs)
	return err == nil && c.network.Load().CheckHostSubnet(h) == nil && c.checkOverlaps(hs) == nil, nil
}

// retain marks the HostSubnet as that of a deleted Node.
func (c *Controller) retain(ctx context.Context, hs *networkv1.HostSubnet, since time.Time) error {
	retained := hs.DeepCopy()
	metav1.SetMetaDataAnnotation(&retained.ObjectMeta, config.NodeDeletedAnnotation, since.UTC().Format(time.RFC3339))
	if _, err := c.Network.NetworkV1().HostSubnets().Update(ctx, retained, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("retain HostSubnet %s of a deleted Node: %w", hs.Name, err)
	}
	klog.FromContext(ctx).Info("Retained HostSubnet of deleted Node", "subnet", hs.Subnet, "hostIP", hs.HostIP, "retention", c.retention)
	return nil
}

// allocateRetained deletes HostSubnets of deleted Nodes, the one that is retained for the longest time first, until a subnet can be allocated. It returns the
// error full if none remains.
func (c *Controller) allocateRetained(ctx context.Context, name string, full error) (netip.Prefix, error) {
	retained, err := c.listRetained()
	if err != nil {
		return netip.Prefix{}, err
	}
	for _, hs := range retained {
		if hs.Name == name || !c.isAllocatable(hs) {
			continue
		}
		// The Node may have returned in the meantime.
		node, current, err := c.get(ctx, hs.Name)
		if err != nil {
			return netip.Prefix{}, err
		}
		if node != nil || current == nil || !config.IsRetained(current) {
			continue
		}
		released, err := c.remove(ctx, current)
		if err != nil {
			return netip.Prefix{}, err
		}
		if !released { // the cache is outdated: its update releases a subnet, so no other Node has to lose its own
			return netip.Prefix{}, fmt.Errorf("release subnet %s: HostSubnet %s was deleted in the meantime", hs.Subnet, hs.Name)
		}
		klog.FromContext(ctx).Info("Released retained subnet early", "deletedNode", hs.Name, "subnet", hs.Subnet, "cause", "no free subnet")
		if p, err := c.allocator.Allocate(name); err == nil {
			return p, nil
		}
	}
	return netip.Prefix{}, full
}

// isAllocatable reports whether the subnet could be allocated to another node, if it was released.
func (c *Controller) isAllocatable(hs *networkv1.HostSubnet) bool {
	return slices.ContainsFunc(subnets(hs), func(p netip.Prefix) bool { return c.network.Load().CheckSubnet(p) == nil })
}

// listRetained returns the HostSubnets of deleted Nodes in the cache, the one that is retained for the longest time first.
func (c *Controller) listRetained() ([]*networkv1.HostSubnet, error) {
	objects, err := c.hostSubnetIndexer.ByIndex(retainedIndex, retainedKey)
	if err != nil {
		return nil, fmt.Errorf("list HostSubnets of deleted Nodes: %w", err)
	}
	list := make([]*networkv1.HostSubnet, 0, len(objects))
	for _, o := range objects {
		if hs, ok := o.(*networkv1.HostSubnet); ok {
			list = append(list, hs)
		}
	}
	slices.SortFunc(list, func(a, b *networkv1.HostSubnet) int {
		sinceA, _ := config.NodeDeletedSince(a)
		sinceB, _ := config.NodeDeletedSince(b)
		return cmp.Or(sinceA.Compare(sinceB), cmp.Compare(a.Name, b.Name))
	})
	return list, nil
}
