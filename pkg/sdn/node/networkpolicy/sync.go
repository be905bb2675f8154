package networkpolicy

import (
	"context"
	"net/netip"
	"slices"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// sync updates the engine with the cached object, or deletes the object from the engine.
func (p *Policies) sync(ctx context.Context, o objectRef) {
	e, c := p.compiler.engine, p.cluster
	namespace, name, _ := cache.SplitMetaNamespaceKey(o.key) // a valid key of an informer
	var err error
	switch o.kind {
	case kindNamespace:
		if ns := reconcile.Cached[corev1.Namespace](c.Namespaces, o.key); ns != nil {
			e.SetNamespace(name, ns.Labels)
			p.syncLogged(name, ns.Annotations)
		} else {
			e.DeleteNamespace(name)
			p.syncLogged(name, nil)
		}
	case kindNetNamespace:
		p.syncVNID(name)
	case kindNode:
		p.syncNode(name)
	case kindPod:
		p.syncPod(policy.PodKey{Namespace: namespace, Name: name, UID: o.uid})
	case kindNetworkPolicy:
		if np := reconcile.Cached[networkingv1.NetworkPolicy](c.NetworkPolicies, o.key); np != nil {
			err = e.SetNetworkPolicy(np)
		} else {
			e.DeleteNetworkPolicy(namespace, name)
		}
	case kindClusterPolicy:
		if cnp := reconcile.Cached[policyv1alpha2.ClusterNetworkPolicy](c.ClusterPolicies, o.key); cnp != nil {
			err = e.SetClusterNetworkPolicy(cnp)
		} else {
			e.DeleteClusterNetworkPolicy(name)
		}
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Policy has invalid parts, which allow nothing", "policy", o.key, "action", "correct the policy")
	}
}

// syncPod prefers the object that Attach got until the watch delivers the pod: the cache may still have a previous pod of that name.
func (p *Policies) syncPod(key policy.PodKey) {
	pod := p.cachedPod(key)
	if p.unwatched[key] != nil {
		if pod == nil {
			return
		}
		delete(p.unwatched, key)
	}
	_, local := p.compiler.local[key]
	switch {
	case pod != nil:
		p.compiler.engine.SetPod(policy.NewPod(pod))
	case local:
		p.compiler.engine.EndPod(key)
	default:
		p.compiler.engine.DeletePod(key)
	}
}

// cachedPod returns the pod from the cache; nil if the cache has none of that name, or another one.
func (p *Policies) cachedPod(key policy.PodKey) *corev1.Pod {
	pod := reconcile.Cached[corev1.Pod](p.cluster.Pods, cache.ObjectName{Namespace: key.Namespace, Name: key.Name}.String())
	if pod == nil || config.PodUID(pod) != key.UID {
		return nil
	}
	return pod
}

// syncVNID leaves the VNID as it is while the NetNamespace is invalid, as package vnids does.
func (p *Policies) syncVNID(name string) {
	o := reconcile.Cached[networkv1.NetNamespace](p.cluster.NetNamespaces, name)
	if o == nil {
		p.compiler.engine.SetVNID(name, 0)
		return
	}
	if n, err := config.ParseNetNamespace(o); err == nil {
		p.compiler.engine.SetVNID(n.Name, uint32(n.VNID))
	}
}

// syncNode sets the labels and addresses of a node, and those from which it opens connections to pods. As in the flows of table 10, the last valid ones
// of these stay in use while the HostSubnet is invalid, and a host that is not a Node has none.
func (p *Policies) syncNode(name string) {
	e := p.compiler.engine
	subnet := reconcile.Cached[networkv1.HostSubnet](p.cluster.HostSubnets, name)
	var h *config.HostSubnet // nil if it is invalid, too
	var gateways []netip.Addr
	if subnet != nil {
		h, _ = config.ParseHostSubnet(subnet)
	}
	if h != nil {
		for _, s := range h.Subnets {
			gateways = append(gateways, config.Gateway(s))
		}
	}
	switch {
	case subnet == nil || !config.IsNode(subnet):
		e.SetNodeNetwork(name, netip.Addr{})
	case h != nil:
		e.SetNodeNetwork(name, h.HostIP, gateways...)
	}

	node := reconcile.Cached[corev1.Node](p.cluster.Nodes, name)
	if node == nil {
		e.DeleteNode(name)
		return
	}
	addrs := slices.Clone(gateways)
	for _, a := range node.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil { // NodeAddresses may be host names
			addrs = append(addrs, addr.Unmap())
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	e.SetNode(name, node.Labels, slices.Compact(addrs)...)
}
