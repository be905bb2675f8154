package subnet

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// A tunnel endpoint belongs to one HostSubnet. Otherwise a node could report another node's address as its own, and its subnet, or its fixed
// VNID, would apply to packets of the other. A HostSubnet holds its hostIP while its Node reports it; one that no Node has holds it while it
// exists. If two hold the same address, it belongs to the senior (config.CompareHostSubnets), as on the agents.

// hostIPIndex lists HostSubnets by hostIP.
const hostIPIndex = "hostIP"

// internalIPIndex lists Nodes by InternalIP.
const internalIPIndex = "internalIP"

// hostIPKeys is a cache.IndexFunc.
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

// internalIPKeys is a cache.IndexFunc.
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

// watchVTEPs indexes both kinds by address, and queues the other claimants of an address when it may have become free.
func (c *Controller) watchVTEPs(nodes, hostSubnets cache.SharedIndexInformer) error {
	for _, kind := range []struct {
		informer cache.SharedIndexInformer
		index    string
		keys     cache.IndexFunc
	}{{nodes, internalIPIndex, internalIPKeys}, {hostSubnets, hostIPIndex, hostIPKeys}} {
		if err := kind.informer.AddIndexers(cache.Indexers{kind.index: kind.keys}); err != nil {
			return fmt.Errorf("index by %s: %w", kind.index, err)
		}
		freed := func(before, now any) {
			had, _ := kind.keys(before) // of another type: none
			has, _ := kind.keys(now)
			for _, addr := range had {
				if !slices.Contains(has, addr) {
					c.queueClaimants(addr)
				}
			}
		}
		_, err := kind.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			UpdateFunc: freed,
			DeleteFunc: func(o any) {
				if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
					o = gone.Obj
				}
				freed(o, nil)
			},
		})
		if err != nil {
			return fmt.Errorf("watch by %s: %w", kind.index, err)
		}
	}
	return nil
}

// queueClaimants queues the names of all Nodes and HostSubnets with the address.
func (c *Controller) queueClaimants(addr string) {
	nodes, err := c.reported.IndexKeys(internalIPIndex, addr)
	hostSubnets, err2 := c.written.IndexKeys(hostIPIndex, addr)
	if err != nil || err2 != nil {
		return // no such index: watchVTEPs has failed
	}
	for _, name := range slices.Concat(nodes, hostSubnets) {
		c.loop.Add(name)
	}
}

// vtepHolder returns the HostSubnet of another name to which the address belongs, or nil. hs is the HostSubnet of the name, or nil.
func (c *Controller) vtepHolder(ctx context.Context, name string, hs *networkv1.HostSubnet, addr netip.Addr) (*networkv1.HostSubnet, error) {
	objects, err := c.written.ByIndex(hostIPIndex, addr.String())
	if err != nil {
		return nil, fmt.Errorf("look up HostSubnets with hostIP %s: %w", addr, err)
	}
	holds := hs != nil && hs.HostIP == addr.String()
	for _, o := range objects {
		other, ok := o.(*networkv1.HostSubnet)
		if !ok || other.Name == name || holds && config.CompareHostSubnets(hs, other) < 0 {
			continue
		}
		held, err := c.holdsVTEP(ctx, other, addr)
		if err != nil || held {
			return other, err
		}
	}
	return nil, nil
}

// holdsVTEP reports whether the HostSubnet's Node exists and reports the address. The cache may lack a Node or its address, so a negative
// answer is read from the API server.
func (c *Controller) holdsVTEP(ctx context.Context, hs *networkv1.HostSubnet, addr netip.Addr) (bool, error) {
	uid := ownerUID(hs)
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
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("get Node %s, which may have the address %s: %w", hs.Name, addr, err)
	}
	return reports(node), nil
}

// errVTEPHeld is the fault of an address that belongs to another HostSubnet.
func errVTEPHeld(addr netip.Addr, holder *networkv1.HostSubnet) error {
	if ownerUID(holder) == "" || config.IsExternal(holder) {
		return fmt.Errorf("%s belongs to HostSubnet %s: delete that, or change one of the two addresses", addr, holder.Name)
	}
	return fmt.Errorf("%s belongs to HostSubnet %s, whose Node reports it, too: change one of the two addresses, or delete Node %s if its machine no longer exists",
		addr, holder.Name, holder.Name)
}
