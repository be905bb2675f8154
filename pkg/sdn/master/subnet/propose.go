package subnet

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// No subnet is given twice, whoever writes and however late.
//
// A lease can't see to that. A leader may be stopped for minutes between its last look at the lease and the write that it
// had decided on, and the API server, which knows HostSubnets by the names of nodes, takes the write. So a subnet is given
// in two writes. The first creates the HostSubnet with an annotation that says that its subnet is only proposed, and which
// all readers respect. The second takes the annotation away (confirms), on the condition that the object is as it was
// created, and only after a cache that has the object had no other that overlaps. If it has one, the proposal is
// withdrawn and another subnet tried.
//
// Proof. Say that P and Q overlap and P was created first. Whoever confirms Q has Q in its cache, which shows what the API
// server had at one moment not before Q's creation (client-go replaces and extends it atomically and in the server's
// order). P isn't in it, or Q would not be confirmed. So P was deleted before, and what is deleted is confirmed by nobody
// any more. Thus a confirmed P is gone before Q is confirmed. (For an external machine read written instead of created, and
// written over instead of deleted: see external.go.) It does not matter who created and who confirmed, how many leaders
// there are, and how long they sleep: the lease only keeps them from getting into each other's way.
//
// People may still write what they like. What overlaps because of that is reported (judge), and not withdrawn.

// create proposes a HostSubnet for the node. The subnet is marked first, and stays the node's when the write fails: it may
// have arrived all the same. So the next attempt writes the same, and so does one after a HostSubnet was deleted by hand.
func (c *Controller) create(ctx context.Context, node *corev1.Node) error {
	addr, unusable, err := c.address(ctx, node, nil)
	if err != nil {
		return err
	}
	if unusable != nil {
		return c.withoutSubnet(ctx, node, reasonNoAddress, unusable)
	}
	subnet, err := c.choose(node.Name)
	if err != nil {
		return c.withoutSubnet(ctx, node, reasonNoSubnet, err)
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
	klog.FromContext(ctx).V(2).Info("Proposed a subnet", "subnet", subnet, "hostIP", addr)
	return nil
}

// choose marks a subnet for the name: the one it had, or else a free one.
func (c *Controller) choose(name string) (netip.Prefix, error) {
	if subnet, ok := c.former(name); ok {
		c.wakeAfter(c.allocator.MarkAllocated(name, subnet))
		return subnet, nil
	}
	c.wakeAfter(c.allocator.Release(name))
	subnet, err := c.allocate(name)
	if err != nil {
		return subnet, fmt.Errorf("%w: add a range to ClusterNetwork %s, or delete nodes that are gone", err, networkv1.ClusterNetworkDefault)
	}
	return subnet, nil
}

// confirm makes a proposed HostSubnet the node's if nobody else has the subnet, and withdraws it otherwise. Without a node
// it is an external machine's.
func (c *Controller) confirm(ctx context.Context, node *corev1.Node, hs *networkv1.HostSubnet) error {
	cached, err := reconcile.OrNil(c.hostSubnets.Get(hs.Name))
	if err != nil {
		return fmt.Errorf("look HostSubnet %s up: %w", hs.Name, err)
	}
	if cached == nil || cached.UID != hs.UID || cached.ResourceVersion != hs.ResourceVersion {
		return nil // the cache has moved on, or has yet to learn of it: that brings us here again
	}
	rivals, err := c.rivals(hs)
	if err != nil {
		return err
	}
	fits := len(rivals) == 0 && len(claims(hs)) > 0
	for _, p := range claims(hs) {
		fits = fits && c.network.Load().CheckSubnet(p) == nil
	}
	if !fits {
		for _, r := range rivals { // so that what is tried next is not theirs again
			c.claim(r)
			c.loop.Add(r.Name) // which may have gone meanwhile
		}
		klog.FromContext(ctx).Info("Withdrawing a proposed subnet", "subnet", hs.Subnet, "rivals", klog.KObjSlice(rivals))
		if node == nil {
			return c.withdraw(ctx, hs)
		}
		if err := c.remove(ctx, hs); err != nil {
			return err
		}
		return c.create(ctx, node)
	}
	c.wakeAfter(c.allocator.MarkAllocated(hs.Name, claims(hs)...)) // another leader may have chosen it
	confirmed := hs.DeepCopy()
	delete(confirmed.Annotations, config.ProposedAnnotation)
	if _, err := c.Network.NetworkV1().HostSubnets().Update(ctx, confirmed, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("confirm HostSubnet %s: %w", hs.Name, err)
	}
	c.waiting.remove(hs.Name)
	klog.FromContext(ctx).Info("Gave the node its subnet", "subnet", hs.Subnet, "hostIP", hs.HostIP)
	return nil
}

// rivals returns all other HostSubnets in the cache that have addresses of this one, by name.
func (c *Controller) rivals(hs *networkv1.HostSubnet) ([]*networkv1.HostSubnet, error) {
	found := map[string]*networkv1.HostSubnet{}
	for _, p := range claims(hs) {
		keys := []string{withinKey(p)}
		for bits := range p.Bits() {
			keys = append(keys, exactKey(netip.PrefixFrom(p.Addr(), bits).Masked()))
		}
		for _, key := range keys {
			objects, err := c.written.ByIndex(overlapIndex, key)
			if err != nil {
				return nil, fmt.Errorf("look up who has addresses of %s: %w", p, err)
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

// overlapIndex finds HostSubnets by what they overlap: under withinKey all inside a range, under exactKey those that
// are that range.
const overlapIndex = "overlap"

func withinKey(p netip.Prefix) string { return "in " + p.String() }
func exactKey(p netip.Prefix) string  { return p.String() }

// overlapKeys is a cache.IndexFunc.
func overlapKeys(o any) ([]string, error) {
	hs, ok := o.(*networkv1.HostSubnet)
	if !ok {
		return nil, fmt.Errorf("%T is no HostSubnet", o)
	}
	var keys []string
	for _, p := range claims(hs) {
		keys = append(keys, exactKey(p), withinKey(p))
		for bits := range p.Bits() {
			keys = append(keys, withinKey(netip.PrefixFrom(p.Addr(), bits).Masked()))
		}
	}
	return keys, nil
}
