package subnet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// No two confirmed HostSubnets overlap, even if several leaders write at the same time.
//
// The Lease alone can't ensure that: a leader may be suspended for minutes between its last check of the Lease and a write, and the API
// server accepts the write, since HostSubnets are named after nodes and not after subnets. Therefore a subnet is allocated in two writes. The
// first creates the HostSubnet with config.ProposedAnnotation, and all readers ignore its subnet. The second removes the annotation
// (confirms), on condition that the object is unchanged, and only after the informer's cache has the object and no other HostSubnet that overlaps. If
// another overlaps, the proposal is withdrawn and a different subnet is proposed.
//
// Proof: let P and Q overlap, and let P be created first. A controller confirms Q only if its cache contains Q. The cache is the state of the API
// server at one moment (client-go applies changes atomically and in order), which is not before the creation of Q. The cache does not
// contain P, or Q would not be confirmed. So P was deleted before, and a deleted object can't be confirmed. Hence a confirmed P is
// deleted before Q is confirmed. (The subnet of an external machine is written and overwritten, instead of created and deleted: see
// external.go.) The proof does not depend on the number of leaders, on which of them created and confirmed, or on delays. The Lease only
// avoids conflicts.
//
// Users can still edit a HostSubnet. An overlap that an edit causes is reported (validateSubnet) and not withdrawn.

// propose creates a proposed HostSubnet for the node. The subnet stays allocated if the write fails, since the write may have succeeded all the
// same: the retry writes the same subnet, and so does a retry after a user deleted the HostSubnet.
func (c *Controller) propose(ctx context.Context, node *corev1.Node) error {
	addr, unusable, err := c.hostIP(ctx, node, nil)
	if err != nil {
		return err
	}
	if unusable != nil {
		return c.reportNoSubnet(ctx, node, eventreason.NodeAddressUnusable, unusable)
	}
	subnet, err := c.chooseSubnet(ctx, node.Name)
	if _, full := errors.AsType[*FullError](err); err != nil && !full {
		return err
	}
	if err != nil {
		return c.reportNoSubnet(ctx, node, eventreason.NoHostSubnet, err)
	}
	hs := &networkv1.HostSubnet{
		ObjectMeta: metav1.ObjectMeta{
			Name: node.Name,
			Annotations: map[string]string{
				networkv1.NodeUIDAnnotation: string(node.UID),
				config.ProposedAnnotation:   "",
			},
		},
		Host:   node.Name,
		HostIP: addr.String(),
		Subnet: subnet.String(),
	}
	if _, err := c.Network.NetworkV1().HostSubnets().Create(ctx, hs, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create HostSubnet %s: %w", hs.Name, err)
	}
	klog.FromContext(ctx).V(2).Info("Proposed subnet", "subnet", subnet, "hostIP", addr)
	return nil
}

// chooseSubnet allocates the previous subnet of the HostSubnet again or, if it can't be used, another one. The error is a *FullError if no subnet is free.
func (c *Controller) chooseSubnet(ctx context.Context, name string) (netip.Prefix, error) {
	if subnet, ok := c.previousSubnet(name); ok {
		c.retryWaiting(c.allocator.MarkAllocated(name, subnet))
		return subnet, nil
	}
	c.retryWaiting(c.allocator.Release(name))
	subnet, err := c.allocate(ctx, name)
	if _, full := errors.AsType[*FullError](err); full {
		return subnet, fmt.Errorf("%w: add a range to ClusterNetwork %s, or delete Nodes whose machines no longer exist", err, networkv1.ClusterNetworkDefault)
	}
	return subnet, err
}

// confirm confirms a proposed HostSubnet if no other overlaps, and withdraws it otherwise. It does nothing while the cache does not have that
// version of the object: the change of the cache triggers the next attempt. node is nil for an external machine.
func (c *Controller) confirm(ctx context.Context, node *corev1.Node, hs *networkv1.HostSubnet) error {
	cached, err := reconcile.OrNil(c.hostSubnets.Get(hs.Name))
	if err != nil {
		return fmt.Errorf("get HostSubnet %s from the cache: %w", hs.Name, err)
	}
	if cached == nil || cached.UID != hs.UID || cached.ResourceVersion != hs.ResourceVersion {
		return nil
	}
	overlapping, err := c.overlapping(hs)
	if err != nil {
		return err
	}
	valid := len(overlapping) == 0 && len(subnets(hs)) > 0
	for _, p := range subnets(hs) {
		valid = valid && c.network.Load().CheckSubnet(p) == nil
	}
	if !valid {
		return c.withdraw(ctx, node, hs, overlapping)
	}
	c.retryWaiting(c.allocator.MarkAllocated(hs.Name, subnets(hs)...)) // another leader may have proposed it
	confirmed := hs.DeepCopy()
	delete(confirmed.Annotations, config.ProposedAnnotation)
	if _, err := c.Network.NetworkV1().HostSubnets().Update(ctx, confirmed, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("confirm HostSubnet %s: %w", hs.Name, err)
	}
	c.waitQueue.remove(hs.Name)
	klog.FromContext(ctx).Info("Allocated subnet", "subnet", hs.Subnet, "hostIP", hs.HostIP)
	return nil
}

// withdraw replaces a proposed HostSubnet by a proposal with a different subnet.
func (c *Controller) withdraw(ctx context.Context, node *corev1.Node, hs *networkv1.HostSubnet, overlapping []*networkv1.HostSubnet) error {
	for _, other := range overlapping { // the next proposal must not overlap them again
		c.markAllocated(other)
		c.loop.Add(other.Name) // it may have been deleted in the meantime
	}
	klog.FromContext(ctx).Info("Withdrawing proposed subnet", "subnet", hs.Subnet, "overlapping", klog.KObjSlice(overlapping))
	if node == nil {
		return c.withdrawExternal(ctx, hs)
	}
	if _, err := c.remove(ctx, hs); err != nil {
		return err
	}
	return c.propose(ctx, node)
}

// overlapping returns the other HostSubnets in the cache that overlap this one, sorted by name.
func (c *Controller) overlapping(hs *networkv1.HostSubnet) ([]*networkv1.HostSubnet, error) {
	found := map[string]*networkv1.HostSubnet{}
	for _, p := range subnets(hs) {
		keys := []string{withinKey(p)}
		for bits := range p.Bits() {
			keys = append(keys, exactKey(netip.PrefixFrom(p.Addr(), bits).Masked()))
		}
		for _, key := range keys {
			objects, err := c.hostSubnetIndexer.ByIndex(overlapIndex, key)
			if err != nil {
				return nil, fmt.Errorf("list HostSubnets that overlap %s: %w", p, err)
			}
			for _, o := range objects {
				if other, ok := o.(*networkv1.HostSubnet); ok && other.Name != hs.Name {
					found[other.Name] = other
				}
			}
		}
	}
	var list []*networkv1.HostSubnet
	for _, name := range slices.Sorted(maps.Keys(found)) {
		list = append(list, found[name])
	}
	return list, nil
}

// overlapIndex finds the HostSubnets that overlap a range: with withinKey those inside of the range, with exactKey those that are equal to it.
const overlapIndex = "overlap"

func withinKey(p netip.Prefix) string { return "in " + p.String() }
func exactKey(p netip.Prefix) string  { return p.String() }

// overlapKeys is the cache.IndexFunc of overlapIndex.
func overlapKeys(o any) ([]string, error) {
	hs, ok := o.(*networkv1.HostSubnet)
	if !ok {
		return nil, fmt.Errorf("got %T, want a HostSubnet", o)
	}
	var keys []string
	for _, p := range subnets(hs) {
		keys = append(keys, exactKey(p), withinKey(p))
		for bits := range p.Bits() {
			keys = append(keys, withinKey(netip.PrefixFrom(p.Addr(), bits).Masked()))
		}
	}
	return keys, nil
}
