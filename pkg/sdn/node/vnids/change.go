package vnids

import (
	"fmt"
	"maps"
	"slices"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/store"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// A change is what one event does to the switch. VNIDs' lock is held from newChange to send.
type change struct {
	v       *VNIDs
	changes []store.Change
	touched map[config.VNID]bool
}

func (v *VNIDs) newChange() *change { return &change{v: v, touched: map[config.VNID]bool{}} }

func (c *change) set(owner pipeline.Owner, st pipeline.State) {
	c.changes = append(c.changes, store.Change{Owner: owner, State: st})
}

// network returns the VNID's network, which may become another one by the change.
func (c *change) network(vnid config.VNID) *network {
	c.touched[vnid] = true
	n := c.v.networks[vnid]
	if n == nil {
		n = &network{namespaces: map[string]bool{}, ports: map[pipeline.Owner]int{}}
		c.v.networks[vnid] = n
	}
	return n
}

// leave takes the namespace out of its network, enter brings it into that of its VNID.
func (c *change) leave(name string, ns *namespace) {
	if !ns.known {
		return
	}
	n := c.network(ns.vnid)
	delete(n.namespaces, name)
	for owner := range ns.dependents {
		delete(n.ports, owner)
	}
}

func (c *change) enter(name string, ns *namespace) {
	if ns.exists {
		c.network(ns.vnid).namespaces[name] = ns.multicast
	}
	for owner, d := range ns.dependents {
		c.plug(ns, owner, d)
	}
}

// plug makes a dependent's port one that hears its VNID's multicast.
func (c *change) plug(ns *namespace, owner pipeline.Owner, d Dependent) {
	if ns.known && d.OFPort > 0 {
		c.network(ns.vnid).ports[owner] = d.OFPort
	}
}

func (c *change) unplug(ns *namespace, owner pipeline.Owner) {
	if ns.known {
		delete(c.network(ns.vnid).ports, owner)
	}
}

// send gives the change to the store, with the multicast of all networks that it touched. The first commits are those of set.
func (c *change) send() []*store.Commit {
	for vnid := range c.touched {
		n := c.v.networks[vnid]
		on := n.hasMulticast()
		if on || n.replicated {
			c.set(multicastOwner(vnid), c.v.multicast(vnid, n))
		}
		n.replicated = on
		if len(n.namespaces) == 0 && len(n.ports) == 0 {
			delete(c.v.networks, vnid)
		}
	}
	if len(c.changes) == 0 {
		return nil
	}
	return c.v.store.SetAll(c.changes...)
}

// network is the namespaces and the pods here that have one VNID.
type network struct {
	namespaces map[string]bool        // whether the namespace has multicast
	ports      map[pipeline.Owner]int // of its pods here
	replicated bool                   // it has multicast on the switch
}

// hasMulticast tells whether the VNID's multicast is on, for pods here. As in OpenShift SDN all namespaces of the VNID must have
// asked for it: none can make another one listen.
func (n *network) hasMulticast() bool {
	if len(n.ports) == 0 || len(n.namespaces) == 0 {
		return false
	}
	for _, on := range n.namespaces {
		if !on {
			return false
		}
	}
	return true
}

func multicastOwner(vnid config.VNID) pipeline.Owner {
	return pipeline.Owner{Kind: pipeline.KindMulticast, Key: fmt.Sprintf("vnid/%s", vnid)}
}

func (v *VNIDs) multicast(vnid config.VNID, n *network) pipeline.State {
	if !n.hasMulticast() {
		return pipeline.State{}
	}
	return v.node.Multicast(pipeline.Multicast{VNID: vnid, OFPorts: slices.Sorted(maps.Values(n.ports))})
}
