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
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
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
	case config.IsExternal(hs) && node == nil && config.IsProposed(hs):
		return c.confirm(ctx, nil, hs)
	case config.IsExternal(hs) && node == nil && hs.Subnet == "":
		return c.assign(ctx, hs)
	case config.IsExternal(hs), node == nil && ownerUID(hs) == "":
		return c.stepAside(ctx, hs, node)
	case node == nil, ownerUID(hs) != "" && ownerUID(hs) != node.UID:
		if err := c.remove(ctx, hs); err != nil || node == nil {
			return err
		}
		return c.create(ctx, node)
	case config.IsProposed(hs):
		return c.confirm(ctx, node, hs)
	default:
		if err := c.handOver(ctx, node, hs); err != nil {
			return err
		}
		return c.correct(ctx, node, hs)
	}
}

// lookUp returns the two objects of a name, nil what does not exist. The caches may lag behind, so whatever would make
// sync delete something is asked of the API server. What would make it create something need not be: the API server
// refuses a second object of the name.
func (c *Controller) lookUp(ctx context.Context, name string) (*corev1.Node, *networkv1.HostSubnet, error) {
	node, err := reconcile.OrNil(c.nodes.Get(name))
	if err != nil {
		return nil, nil, fmt.Errorf("look Node %s up: %w", name, err)
	}
	hs, err := reconcile.OrNil(c.hostSubnets.Get(name))
	if err != nil {
		return nil, nil, fmt.Errorf("look HostSubnet %s up: %w", name, err)
	}
	if hs != nil && ownerUID(hs) != "" && (node == nil || ownerUID(hs) != node.UID) {
		node, err = reconcile.OrNil(c.Kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}))
		if err != nil {
			return nil, nil, fmt.Errorf("get Node %s: %w", name, err)
		}
	}
	return node, hs, nil
}

// ownerUID is the UID of the Node that the HostSubnet was made for.
func ownerUID(hs *networkv1.HostSubnet) types.UID {
	return types.UID(hs.Annotations[networkv1.NodeUIDAnnotation])
}

// remove deletes the HostSubnet unless it changed meanwhile, and frees its subnet. When there
// was none any more the cache is behind, and what the name holds may be a newer node's by now.
func (c *Controller) remove(ctx context.Context, hs *networkv1.HostSubnet) error {
	err := c.Network.NetworkV1().HostSubnets().Delete(ctx, hs.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &hs.UID, ResourceVersion: &hs.ResourceVersion},
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete HostSubnet %s: %w", hs.Name, err)
	}
	c.wakeAfter(c.allocator.Release(hs.Name))
	klog.FromContext(ctx).Info("Freed a subnet", "subnet", hs.Subnet, "nodeUID", ownerUID(hs))
	return nil
}

// stepAside keeps out of a subnet that people manage: an external machine's, or one made by hand for no node.
func (c *Controller) stepAside(ctx context.Context, hs *networkv1.HostSubnet, node *corev1.Node) error {
	c.waiting.remove(hs.Name)
	c.wakeAfter(c.allocator.MarkAllocated(hs.Name, claims(hs)...))
	var nodes error
	if node != nil {
		nodes = c.withoutSubnet(ctx, node, reasonNoSubnet, fmt.Errorf(
			"HostSubnet %s has the annotation %s, which makes it an external machine's: remove the annotation, or rename one of the two",
			hs.Name, networkv1.AssignHostSubnetAnnotation))
		if _, told := errors.AsType[reconcile.Complaint](nodes); !told {
			return nodes
		}
	}
	h, err := config.ParseHostSubnet(hs)
	if err == nil {
		err = c.overlaps(hs)
	}
	if h != nil {
		holder, failed := c.vtepHolder(ctx, hs.Name, hs, h.HostIP)
		if failed != nil {
			return failed
		}
		if holder != nil {
			err = errors.Join(err, fmt.Errorf("hostIP: %w", errVTEPHeld(h.HostIP, holder)))
		}
	}
	if _, _, bad := config.FixedVNID(hs); bad != nil {
		err = errors.Join(err, bad)
	}
	if err != nil {
		err = reconcile.Complain(c.Events, hs, reasonInvalid, err)
	}
	return errors.Join(nodes, err)
}

// correct writes what is the node's to say (name, UID, address) and judges what is not: the subnet.
func (c *Controller) correct(ctx context.Context, node *corev1.Node, hs *networkv1.HostSubnet) error {
	c.waiting.remove(hs.Name)
	want := hs.DeepCopy()
	want.Host = hs.Name
	metav1.SetMetaDataAnnotation(&want.ObjectMeta, networkv1.NodeUIDAnnotation, string(node.UID))
	addr, noAddr, err := c.address(ctx, node, hs)
	if err != nil {
		return err
	}
	if noAddr != nil {
		noAddr = reconcile.Complain(c.Events, node, reasonNoAddress, noAddr)
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
	c.claim(hs) // before the question who else has it, or two that change at once miss each other
	h, err := config.ParseHostSubnet(hs)
	if err == nil {
		err = c.network.Load().CheckHostSubnet(h)
	}
	if err == nil {
		err = c.overlaps(hs)
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
	return reconcile.Complain(c.Events, node, reasonInvalid, err)
}

// claim marks what the HostSubnet claims besides what its name holds.
func (c *Controller) claim(hs *networkv1.HostSubnet) {
	held := c.allocator.HeldBy(hs.Name)
	for _, p := range claims(hs) {
		if !slices.Contains(held, p) {
			held = append(held, p)
		}
	}
	c.allocator.MarkAllocated(hs.Name, held...)
}

// former returns the subnet that the node had before anybody changed it, if it can have that again.
func (c *Controller) former(name string) (netip.Prefix, bool) {
	for _, p := range c.allocator.HeldBy(name) {
		if c.network.Load().CheckSubnet(p) == nil && len(c.allocator.Overlapping(name, p)) == 0 {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// overlaps returns an error that names who else has addresses of the HostSubnet. What is only proposed, or not even written,
// gives way by itself.
func (c *Controller) overlaps(hs *networkv1.HostSubnet) error {
	rivals, err := c.rivals(hs)
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range rivals {
		if !config.IsProposed(r) {
			errs = append(errs, fmt.Errorf("subnet: %s overlaps %s of HostSubnet %s", hs.Subnet, r.Subnet, r.Name))
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

// address returns the node's address in the underlay: its present one (of hs, nil if it has none) if that is still among its InternalIPs, else
// the first usable one. unusable is what users have to correct.
func (c *Controller) address(ctx context.Context, node *corev1.Node, hs *networkv1.HostSubnet) (addr netip.Addr, unusable, err error) {
	var first netip.Addr
	var faults []error
	for _, reported := range internalIPs(node) {
		addr, fault := config.ParseHostIP(reported)
		if fault == nil {
			fault = c.network.Load().CheckHostIP(addr)
		}
		if fault == nil {
			holder, err := c.vtepHolder(ctx, node.Name, hs, addr)
			if err != nil {
				return netip.Addr{}, nil, err
			}
			if holder != nil {
				fault = errVTEPHeld(addr, holder)
			}
		}
		switch {
		case fault != nil:
			faults = append(faults, fault)
		case hs != nil && reported == hs.HostIP:
			return addr, nil, nil
		case !first.IsValid():
			first = addr
		}
	}
	switch {
	case first.IsValid():
		return first, nil, nil
	case len(faults) > 0:
		return netip.Addr{}, fmt.Errorf("no InternalIP of the node will do (set kubelet's --node-ip): %w", errors.Join(faults...)), nil
	}
	return netip.Addr{}, errors.New("the node has no InternalIP in its status.addresses: set kubelet's --node-ip, or wait for the cloud's node controller"), nil
}
