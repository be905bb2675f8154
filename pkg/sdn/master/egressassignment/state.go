package egressassignment

import (
	"net/netip"
	"slices"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/egressip"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/reachability"
)

// Usage is the number of egress IPs by state.
type Usage struct{ Active, Unhosted, Conflict, Unreachable, Unused int }

// Usage returns the number of egress IPs by state.
func (c *Controller) Usage() Usage {
	if u := c.usage.Load(); u != nil {
		return *u
	}
	return Usage{}
}

// Failovers returns how many times a node with egress IPs was found unreachable.
func (c *Controller) Failovers() uint64 { return c.failovers.Load() }

// load reads all objects again, for another network.
func (c *Controller) load(network *config.Network) {
	for name := range c.hosts {
		c.prober.Remove(name)
	}
	clear(c.namespaces)
	clear(c.hosts)
	c.table = nil
	c.usage.Store(nil)
	if network.Mode == config.ModeSubnet {
		clear(c.unhosted)
		c.reports.set(nil) // problems of another mode
		return
	}
	c.table = egressip.New(egressip.Reserved(network))
	namespaces, _ := c.informers.NetNamespaces.GetIndexer().IndexKeys(egressIndex, "") // the index exists
	for _, name := range namespaces {
		c.setNamespace(name)
	}
	for _, name := range c.informers.HostSubnets.GetStore().ListKeys() {
		c.setHostSubnet(name)
	}
}

// setNamespace reads a NetNamespace, and returns whether a plan may differ.
func (c *Controller) setNamespace(name string) (changed bool) {
	obj, exists, err := c.informers.NetNamespaces.GetStore().GetByKey(name)
	o, ok := obj.(*networkv1.NetNamespace)
	before := c.namespaces[name]
	if err != nil || !exists || !ok || len(o.EgressIPs) == 0 {
		delete(c.namespaces, name)
		return len(c.table.SetNamespace(name, nil)) > 0 || before != nil
	}
	ips, _, fault := config.ParseNamespaceEgressIPs(o)
	c.namespaces[name] = &namespace{object: o, fault: fault}
	return len(c.table.SetNamespace(name, ips)) > 0 || before == nil || fault != nil || before.fault != nil
}

// setHostSubnet reads a HostSubnet, and returns whether a plan may differ.
func (c *Controller) setHostSubnet(name string) (changed bool) {
	o := c.current(name)
	if o == nil {
		c.prober.Remove(name)
		changed = len(c.table.SetNode(name, egressip.Node{})) > 0 || c.hosts[name] != nil
		delete(c.hosts, name)
		return changed
	}
	return c.useHostSubnet(o)
}

// useHostSubnet uses a version of a HostSubnet.
func (c *Controller) useHostSubnet(o *networkv1.HostSubnet) (changed bool) {
	n, _ := egressip.NodeOf(o, netip.Addr{}) // without invalid entries
	changed = len(c.table.SetNode(o.Name, n)) > 0
	_, isMarked := o.Annotations[config.EgressUnreachableAnnotation]
	_, isProbed := o.Annotations[config.EgressProbedAnnotation]
	before := c.hosts[o.Name]
	if len(o.EgressIPs) == 0 && len(o.EgressCIDRs) == 0 && !isMarked && !isProbed {
		c.prober.Remove(o.Name)
		delete(c.hosts, o.Name)
		return changed || before != nil
	}
	h := &hostSubnet{object: o, addr: n.Addr}
	h.EgressNode, h.fault = config.ParseEgressNode(o)
	c.hosts[o.Name] = h
	if h.isProbed() {
		c.prober.Set(o.Name, h.addr, reachability.State{Unreachable: isMarked, Answered: isProbed})
	} else {
		c.prober.Remove(o.Name)
	}
	return changed || before == nil || !sameHostSubnet(before.object, o)
}

// current returns the latest version of a HostSubnet that this controller has read or written, nil if it does not exist.
func (c *Controller) current(name string) *networkv1.HostSubnet {
	obj, exists, err := c.informers.HostSubnets.GetStore().GetByKey(name)
	o, ok := obj.(*networkv1.HostSubnet)
	if err != nil || !exists || !ok {
		delete(c.written, name)
		return nil
	}
	if w := c.written[name]; w != nil {
		if slices.Contains(w.superseded, o.ResourceVersion) {
			return w.object
		}
		delete(c.written, name)
	}
	return o
}

// wanted returns the namespace of each IP that may be assigned: one namespace wants it, and no node hosts it manually.
func (c *Controller) wanted() map[netip.Addr]string {
	wanted := map[netip.Addr]string{}
	for _, a := range c.table.IPs() {
		ip := c.table.IP(a)
		isManual := slices.ContainsFunc(ip.Nodes, func(node string) bool { h := c.hosts[node]; return h != nil && !h.isAutomatic() })
		if len(ip.Namespaces) == 1 && !isManual && ip.Problem != egressip.NodeAddress && ip.Problem != egressip.InNetwork {
			wanted[a] = ip.Namespaces[0]
		}
	}
	return wanted
}

// automatic returns the nodes with egressCIDRs.
func (c *Controller) automatic() (hosts []host) {
	for name, h := range c.hosts {
		if h.isAutomatic() {
			isUsable := h.addr.IsValid() && len(h.CIDRs) > 0 && !c.prober.State(name).Unreachable
			hosts = append(hosts, host{name: name, cidrs: h.CIDRs, ips: h.IPs, isUsable: isUsable})
		}
	}
	return hosts
}

func (c *Controller) count() {
	var u Usage
	for _, a := range c.table.IPs() {
		switch ip := c.table.IP(a); {
		case ip.IsConflict():
			u.Conflict++
		case ip.Problem == egressip.Unhosted:
			u.Unhosted++
		case ip.Problem == egressip.NotReachable:
			u.Unreachable++
		case ip.Problem == egressip.Unused:
			u.Unused++
		default:
			u.Active++
		}
	}
	c.usage.Store(&u)
}
