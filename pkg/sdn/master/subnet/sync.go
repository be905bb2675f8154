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
)

// sync makes the HostSubnet of a name what the node of that name needs.
func (c *Controller) sync(ctx context.Context, name string) error {
	node, hs, err := c.lookUp(ctx, name)
	if err != nil {
		return err
	}
	switch {
	case hs == nil && node == nil:
		c.waiting.remove(name)
		c.wakeAfter(c.allocator.Release(name))
		return nil
	case hs == nil:
		return c.create(ctx, node)
	case config.IsExternal(hs), node == nil && ownerUID(hs) == "":
		return c.stepAside(hs, node)
	case node == nil, ownerUID(hs) != "" && ownerUID(hs) != node.UID:
		if err := c.remove(ctx, hs); err != nil || node == nil {
			return err
		}
		return c.create(ctx, node)
	default:
		return c.correct(ctx, node, hs)
	}
}

// lookUp returns the two objects of a name, nil what does not exist. The caches may lag behind, so whatever would make
// sync create or delete something is asked of the API server.
func (c *Controller) lookUp(ctx context.Context, name string) (*corev1.Node, *networkv1.HostSubnet, error) {
	node, err := orNil(c.nodes.Get(name))
	if err != nil {
		return nil, nil, fmt.Errorf("look Node %s up: %w", name, err)
	}
	hs, err := orNil(c.hostSubnets.Get(name))
	if err != nil {
		return nil, nil, fmt.Errorf("look HostSubnet %s up: %w", name, err)
	}
	if hs == nil && node != nil {
		hs, err = orNil(c.Network.NetworkV1().HostSubnets().Get(ctx, name, metav1.GetOptions{}))
		if err != nil {
			return nil, nil, fmt.Errorf("get HostSubnet %s: %w", name, err)
		}
	}
	if hs != nil && ownerUID(hs) != "" && (node == nil || ownerUID(hs) != node.UID) {
		node, err = orNil(c.Kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}))
		if err != nil {
			return nil, nil, fmt.Errorf("get Node %s: %w", name, err)
		}
	}
	return node, hs, nil
}

func orNil[T any](o *T, err error) (*T, error) {
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return o, nil
}

// ownerUID is the UID of the Node that the HostSubnet was made for.
func ownerUID(hs *networkv1.HostSubnet) types.UID {
	return types.UID(hs.Annotations[networkv1.NodeUIDAnnotation])
}

// create makes the node's HostSubnet. The subnet is marked first, and stays the node's when the write fails: it may
// have arrived all the same. So the next attempt writes the same, and so does one after a HostSubnet was deleted by hand.
func (c *Controller) create(ctx context.Context, node *corev1.Node) error {
	addr, err := c.address(node, "")
	if err != nil {
		return c.warn(node, reasonNoAddress, err)
	}
	subnet, ok := c.former(node.Name)
	if ok {
		c.wakeAfter(c.allocator.MarkAllocated(node.Name, subnet))
	} else {
		c.wakeAfter(c.allocator.Release(node.Name))
		if subnet, err = c.allocate(node.Name); err != nil {
			return c.warn(node, reasonNoSubnet, fmt.Errorf("%w: add a range to ClusterNetwork %s, or delete nodes that are gone",
				err, networkv1.ClusterNetworkDefault))
		}
	}
	hs := &networkv1.HostSubnet{
		ObjectMeta: metav1.ObjectMeta{
			Name:        node.Name,
			Annotations: map[string]string{networkv1.NodeUIDAnnotation: string(node.UID)},
		},
		Host:   node.Name,
		HostIP: addr.String(),
		Subnet: subnet.String(),
	}
	if _, err := c.Network.NetworkV1().HostSubnets().Create(ctx, hs, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create HostSubnet %s: %w", hs.Name, err)
	}
	klog.FromContext(ctx).Info("Gave the node its subnet", "subnet", subnet, "hostIP", addr)
	return nil
}

// remove deletes the HostSubnet of a node that is gone, unless it changed meanwhile, and frees its subnet. When there
// was none any more the cache is behind, and what the name holds may be a newer node's by now.
func (c *Controller) remove(ctx context.Context, hs *networkv1.HostSubnet) error {
	err := c.Network.NetworkV1().HostSubnets().Delete(ctx, hs.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &hs.UID, ResourceVersion: &hs.ResourceVersion},
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete HostSubnet %s of a node that is gone: %w", hs.Name, err)
	}
	c.wakeAfter(c.allocator.Release(hs.Name))
	klog.FromContext(ctx).Info("Freed the subnet of a node that is gone", "subnet", hs.Subnet, "nodeUID", ownerUID(hs))
	return nil
}

// stepAside keeps out of a subnet that people manage: an external machine's, or one made by hand for no node.
func (c *Controller) stepAside(hs *networkv1.HostSubnet, node *corev1.Node) error {
	c.wakeAfter(c.allocator.MarkAllocated(hs.Name, claims(hs)...))
	var errs []error
	if _, err := config.ParseHostSubnet(hs); err != nil {
		errs = append(errs, c.warn(hs, reasonInvalid, err))
	} else if err := c.overlaps(hs.Name, claims(hs)); err != nil {
		errs = append(errs, c.warn(hs, reasonInvalid, err))
	}
	if node != nil {
		errs = append(errs, c.warn(node, reasonNoSubnet, fmt.Errorf(
			"HostSubnet %s has the annotation %s, which makes it an external machine's: remove the annotation, or rename one of the two",
			hs.Name, networkv1.AssignHostSubnetAnnotation)))
	}
	return errors.Join(errs...)
}

// correct writes what is the node's to say (name, UID, address) and judges what is not: the subnet.
func (c *Controller) correct(ctx context.Context, node *corev1.Node, hs *networkv1.HostSubnet) error {
	want := hs.DeepCopy()
	want.Host = hs.Name
	metav1.SetMetaDataAnnotation(&want.ObjectMeta, networkv1.NodeUIDAnnotation, string(node.UID))
	addr, noAddr := c.address(node, hs.HostIP)
	if noAddr != nil {
		noAddr = c.warn(node, reasonNoAddress, noAddr)
	} else {
		want.HostIP = addr.String()
	}
	if !equality.Semantic.DeepEqual(want, hs) {
		if _, err := c.Network.NetworkV1().HostSubnets().Update(ctx, want, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("update HostSubnet %s: %w", hs.Name, err)
		}
		klog.FromContext(ctx).Info("Corrected the node's HostSubnet", "hostIP", want.HostIP, "was", hs.HostIP)
	}
	return errors.Join(noAddr, c.judge(node, want))
}

// judge says on the node what is wrong with its HostSubnet's subnet. As long as anything is, the node keeps what it had
// besides what it claims now: pods may use the one, and peers the other.
func (c *Controller) judge(node *corev1.Node, hs *networkv1.HostSubnet) error {
	held := c.allocator.HeldBy(hs.Name)
	for _, p := range claims(hs) {
		if !slices.Contains(held, p) {
			held = append(held, p)
		}
	}
	c.allocator.MarkAllocated(hs.Name, held...) // before the question who else has it, or two that change at once miss each other

	h, err := config.ParseHostSubnet(hs)
	if err == nil {
		err = c.network.CheckHostSubnet(h)
	}
	if err == nil {
		err = c.overlaps(hs.Name, h.Subnets)
	}
	if err == nil {
		c.wakeAfter(c.allocator.MarkAllocated(hs.Name, h.Subnets...))
		return nil
	}
	err = fmt.Errorf("HostSubnet %s can't be used: %w", hs.Name, err)
	switch former, ok := c.former(hs.Name); {
	case !ok:
		err = fmt.Errorf("%w: delete it, and the node gets another subnet", err)
	case former.String() != hs.Subnet:
		err = fmt.Errorf("%w: write back %s, or delete it, and it is made anew with that", err, former)
	}
	return c.warn(node, reasonInvalid, err)
}

// former returns the subnet that the node had before anybody changed it, if it can have that again.
func (c *Controller) former(name string) (netip.Prefix, bool) {
	for _, p := range c.allocator.HeldBy(name) {
		if c.network.CheckSubnet(p) == nil && c.overlaps(name, []netip.Prefix{p}) == nil {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// overlaps returns an error that names who else has addresses of the subnets.
func (c *Controller) overlaps(name string, subnets []netip.Prefix) error {
	var errs []error
	for _, p := range subnets {
		for _, h := range c.allocator.Overlapping(name, p) {
			errs = append(errs, fmt.Errorf("subnet: %s overlaps %s of HostSubnet %s", p, h.Subnet, h.Holder))
		}
	}
	return errors.Join(errs...)
}

// claims returns the ranges that a HostSubnet means, as far as they can be made out: what is wrong with it otherwise
// is no reason to give its addresses to somebody else.
func claims(hs *networkv1.HostSubnet) []netip.Prefix {
	p, err := netip.ParsePrefix(hs.Subnet)
	if err != nil {
		return nil
	}
	return []netip.Prefix{p.Masked()}
}

// address returns the node's address in the underlay: the one it has now if that is still among its InternalIPs, else the
// first that will do.
func (c *Controller) address(node *corev1.Node, now string) (netip.Addr, error) {
	var first netip.Addr
	var faults []error
	for _, a := range node.Status.Addresses {
		if a.Type != corev1.NodeInternalIP {
			continue
		}
		addr, err := config.ParseHostIP(a.Address)
		if err == nil {
			err = c.network.CheckHostIP(addr)
		}
		switch {
		case err != nil:
			faults = append(faults, err)
		case a.Address == now:
			return addr, nil
		case !first.IsValid():
			first = addr
		}
	}
	switch {
	case first.IsValid():
		return first, nil
	case len(faults) > 0:
		return netip.Addr{}, fmt.Errorf("no InternalIP of the node will do (set kubelet's --node-ip): %w", errors.Join(faults...))
	}
	return netip.Addr{}, errors.New("the node has no InternalIP in its status.addresses: set kubelet's --node-ip, or wait for the cloud's node controller")
}
