package vnids

import (
	"fmt"
	"maps"
	"slices"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// network is the set of namespaces with the same VNID. The value is whether the namespace has multicast enabled.
type network map[string]bool

// hasMulticast reports whether the VNID's multicast is enabled. As in OpenShift SDN all its namespaces must enable it: no namespace can make another
// one receive packets.
func (n network) hasMulticast() bool {
	for _, enabled := range n {
		if !enabled {
			return false
		}
	}
	return len(n) > 0
}

// change is the effect of one event on networks. The lock of VNIDs is held from newChange to send.
type change struct {
	v        *VNIDs
	update   flowstore.Update
	affected map[config.VNID]bool
}

func (v *VNIDs) newChange() *change { return &change{v: v, affected: map[config.VNID]bool{}} }

// join adds the namespace to the network of its VNID, and publishes the VNID.
func (c *change) join(name string, ns namespace) {
	if c.v.namespaces[name].uid != ns.uid {
		c.retire(name)
	}
	c.leave(name)
	c.affected[ns.vnid] = true
	if c.v.networks[ns.vnid] == nil {
		c.v.networks[ns.vnid] = network{}
	}
	c.v.networks[ns.vnid][name] = ns.multicast
	c.v.namespaces[name] = ns
	delete(c.v.invalid, name)
	c.update.Publish = append(c.update.Publish,
		flowstore.Published{Input: inputs.VNID(name), Value: ns.vnid}, flowstore.Published{Input: inputs.NamespaceUID(name), Value: ns.uid})
	if ns.uid != "" {
		c.update.Publish = append(c.update.Publish, flowstore.Published{Input: inputs.NamespaceVNID(name, ns.uid), Value: ns.vnid})
	}
}

// retire makes pods of the Namespace retain its VNID, and no others get it.
func (c *change) retire(name string) {
	if uid := c.v.namespaces[name].uid; uid != "" {
		c.update.Retire = append(c.update.Retire, inputs.NamespaceVNID(name, uid))
	}
}

// leave removes the namespace from its network, if it has one.
func (c *change) leave(name string) {
	ns, exists := c.v.namespaces[name]
	if !exists {
		return
	}
	c.affected[ns.vnid] = true
	n := c.v.networks[ns.vnid]
	delete(n, name)
	if len(n) == 0 {
		delete(c.v.networks, ns.vnid)
	}
	delete(c.v.namespaces, name)
}

// send updates the store, including the multicast flows of all affected networks.
func (c *change) send() []*flowstore.Commit {
	for vnid := range c.affected {
		c.v.follow(vnid) // before the flows: until the new receivers are known, all nodes get the multicast
		enabled := c.v.networks[vnid].hasMulticast()
		if enabled || c.v.replicated[vnid] {
			c.update.Changes = append(c.update.Changes, c.v.multicast(vnid))
		}
		delete(c.v.replicated, vnid)
		if enabled {
			c.v.replicated[vnid] = true
		}
	}
	return c.v.store.Update(c.update)
}

// multicast returns the change that installs the VNID's multicast flows, or removes them if its multicast is disabled.
func (v *VNIDs) multicast(vnid config.VNID) flowstore.Change {
	change := flowstore.Change{Owner: pipeline.Owner{Kind: pipeline.KindMulticast, Key: fmt.Sprintf("vnid/%s", vnid)}}
	n := v.networks[vnid]
	if !n.hasMulticast() {
		return change
	}
	nodes := inputs.MulticastNodesOf(vnid)
	var ports []flowstore.Input
	for name := range n {
		ports = append(ports, v.ports(name))
	}
	change.Reads = append(slices.Clone(ports), nodes)
	change.Compile = func(values *flowstore.Values) pipeline.State {
		m := pipeline.Multicast{VNID: vnid}
		for _, p := range ports {
			m.OFPorts = append(m.OFPorts, flowstore.Read[[]int](values, p)...)
		}
		if len(m.OFPorts) == 0 {
			return pipeline.State{}
		}
		slices.Sort(m.OFPorts)
		to := flowstore.Read[inputs.MulticastNodes](values, nodes)
		m.Nodes, m.AllNodes = to.VTEPs, !to.Known
		return v.node.Multicast(m)
	}
	return change
}

// follow updates the follower. It follows VNIDs with multicast and pods on this node only.
func (v *VNIDs) follow(vnid config.VNID) {
	if v.follower == nil {
		return
	}
	n := v.networks[vnid]
	if !n.hasMulticast() || !v.hasPods(n) {
		v.follower.Follow(vnid, nil)
		return
	}
	v.follower.Follow(vnid, slices.Sorted(maps.Keys(n)))
}

// hasPods reports whether a namespace of the network has pods on this node.
func (v *VNIDs) hasPods(n network) bool {
	for name := range n {
		if ports, _ := flowstore.Get[[]int](v.store, v.ports(name)); len(ports) > 0 {
			return true
		}
	}
	return false
}

// ports returns the input of the ports of the namespace's pods. Those of a previous Namespace of that name are not among them.
func (v *VNIDs) ports(name string) flowstore.Input { return inputs.Ports(name, v.namespaces[name].uid) }

// portsChanged handles the first or last pod of the namespace on this node.
func (v *VNIDs) portsChanged(key string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if ns, exists := v.namespaces[inputs.NamespaceOfPorts(key)]; exists && v.replicated[ns.vnid] {
		v.follow(ns.vnid)
	}
}
