package subnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// The hostIP is the address of the node's tunnel endpoint (VTEP), and belongs to one HostSubnet. Otherwise a node could report the address of
// another node, and its subnet or its fixed VNID would apply to packets of that node. A HostSubnet of a Node owns its hostIP while the Node
// reports it as InternalIP, any other HostSubnet while it exists. If two have the same address, config.CompareHostSubnets decides, as
// it does on the nodes.

// hostIPIndex lists HostSubnets by hostIP.
const hostIPIndex = "hostIP"

// internalIPIndex lists Nodes by InternalIP.
const internalIPIndex = "internalIP"

// hostIPKeys is the cache.IndexFunc of hostIPIndex.
func hostIPKeys(o any) ([]string, error) {
	hs, ok := o.(*networkv1.HostSubnet)
	if !ok {
		return nil, fmt.Errorf("got %T, want a HostSubnet", o)
	}
	if addr, err := config.ParseHostIP(hs.HostIP); err == nil {
		return []string{addr.String()}, nil
	}
	return nil, nil
}

// internalIPKeys is the cache.IndexFunc of internalIPIndex.
func internalIPKeys(o any) ([]string, error) {
	node, ok := o.(*corev1.Node)
	if !ok {
		return nil, fmt.Errorf("got %T, want a Node", o)
	}
	return internalIPs(node), nil
}

func internalIPs(node *corev1.Node) []string {
	var list []string
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			list = append(list, a.Address)
		}
	}
	return list
}

// watchHostIPs indexes Nodes and HostSubnets by address, and reconciles those with an address that another no longer has.
func (c *Controller) watchHostIPs(nodes, hostSubnets cache.SharedIndexInformer) error {
	for _, kind := range []struct {
		informer cache.SharedIndexInformer
		index    string
		keys     cache.IndexFunc
	}{{nodes, internalIPIndex, internalIPKeys}, {hostSubnets, hostIPIndex, hostIPKeys}} {
		if err := kind.informer.AddIndexers(cache.Indexers{kind.index: kind.keys}); err != nil {
			return fmt.Errorf("index by %s: %w", kind.index, err)
		}
		released := func(before, now any) {
			old, _ := kind.keys(before)
			current, _ := kind.keys(now) // none for nil
			for _, addr := range old {
				if !slices.Contains(current, addr) {
					c.addByHostIP(addr)
				}
			}
		}
		_, err := kind.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			UpdateFunc: released,
			DeleteFunc: func(o any) {
				if tombstone, ok := o.(cache.DeletedFinalStateUnknown); ok {
					o = tombstone.Obj
				}
				released(o, nil)
			},
		})
		if err != nil {
			return fmt.Errorf("add event handler for %s: %w", kind.index, err)
		}
	}
	return nil
}

// addByHostIP reconciles all Nodes and HostSubnets with the address.
func (c *Controller) addByHostIP(addr string) {
	nodes, err := c.nodeIndexer.IndexKeys(internalIPIndex, addr)
	hostSubnets, err2 := c.hostSubnetIndexer.IndexKeys(hostIPIndex, addr)
	if err != nil || err2 != nil {
		return // the index does not exist: watchHostIPs has failed
	}
	for _, name := range slices.Concat(nodes, hostSubnets) {
		c.loop.Add(name)
	}
}

// hostIP returns the node's address for tunnels: the current one (of hs, which may be nil) if the Node still reports it as InternalIP, or else
// the first usable InternalIP. unusable is an error that a user has to correct.
func (c *Controller) hostIP(ctx context.Context, node *corev1.Node, hs *networkv1.HostSubnet) (addr netip.Addr, unusable, err error) {
	var first netip.Addr
	var faults []error
	for _, reported := range internalIPs(node) {
		addr, fault := config.ParseHostIP(reported)
		if fault == nil {
			fault = c.network.Load().CheckHostIP(addr)
		}
		if fault == nil {
			owner, err := c.hostIPOwner(ctx, node.Name, hs, addr)
			if err != nil {
				return netip.Addr{}, nil, err
			}
			if owner != nil {
				fault = errHostIPInUse(addr, owner)
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
		return netip.Addr{}, fmt.Errorf("no InternalIP of the node is usable (set kubelet's --node-ip): %w", errors.Join(faults...)), nil
	}
	return netip.Addr{}, errors.New("the node has no InternalIP in its status.addresses: set kubelet's --node-ip, or wait for the cloud's node controller"), nil
}

// hostIPOwner returns the HostSubnet of another name that owns the address, or nil. hs is the HostSubnet of the name, or nil.
func (c *Controller) hostIPOwner(ctx context.Context, name string, hs *networkv1.HostSubnet, addr netip.Addr) (*networkv1.HostSubnet, error) {
	objects, err := c.hostSubnetIndexer.ByIndex(hostIPIndex, addr.String())
	if err != nil {
		return nil, fmt.Errorf("list HostSubnets with hostIP %s: %w", addr, err)
	}
	has := hs != nil && hs.HostIP == addr.String()
	for _, o := range objects {
		other, ok := o.(*networkv1.HostSubnet)
		if !ok || other.Name == name || has && config.CompareHostSubnets(hs, other) < 0 {
			continue
		}
		owns, err := c.ownsHostIP(ctx, other, addr)
		if err != nil || owns {
			return other, err
		}
	}
	return nil, nil
}

// ownsHostIP reports whether the HostSubnet's Node exists and reports the address. If the cached Node does not, it reads the Node from the
// API server.
func (c *Controller) ownsHostIP(ctx context.Context, hs *networkv1.HostSubnet, addr netip.Addr) (bool, error) {
	uid := nodeUID(hs)
	if uid == "" || config.IsExternal(hs) {
		return true, nil
	}
	reports := func(node *corev1.Node) bool {
		return node != nil && node.UID == uid && slices.Contains(internalIPs(node), addr.String())
	}
	if node, err := c.nodes.Get(hs.Name); err == nil && reports(node) {
		return true, nil
	}
	node, err := reconcile.OrNil(c.Kube.CoreV1().Nodes().Get(ctx, hs.Name, metav1.GetOptions{}))
	if err != nil {
		return false, fmt.Errorf("get Node %s, which may have the address %s: %w", hs.Name, addr, err)
	}
	return reports(node), nil
}

// errHostIPInUse returns the error for an address that another HostSubnet owns.
func errHostIPInUse(addr netip.Addr, owner *networkv1.HostSubnet) error {
	if nodeUID(owner) == "" || config.IsExternal(owner) {
		return fmt.Errorf("%s belongs to HostSubnet %s: delete that, or change one of the two addresses", addr, owner.Name)
	}
	return fmt.Errorf("%s belongs to HostSubnet %s, whose Node reports it, too: change one of the two addresses, or delete Node %s if its machine no longer exists",
		addr, owner.Name, owner.Name)
}
