package vnids

import (
	"fmt"
	"maps"
	"net/netip"
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
			c.v.follow(vnid, n) // first: of a namespace that comes it is not known yet where its pods are
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
	m := pipeline.Multicast{VNID: vnid, OFPorts: slices.Sorted(maps.Values(n.ports))}
	nodes, known := v.elsewhere.Nodes(vnid)
	m.Nodes, m.AllNodes = nodes, !known
	return v.node.Multicast(m)
}

// follow tells whose pods to look for on other nodes.
func (v *VNIDs) follow(vnid config.VNID, n *network) {
	var names []string
	if n.hasMulticast() {
		names = slices.Sorted(maps.Keys(n.namespaces))
	}
	v.elsewhere.Follow(vnid, names)
}

// Refresh compiles the VNID's multicast anew: other nodes have its pods now.
func (v *VNIDs) Refresh(vnid config.VNID) []*store.Commit {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := v.networks[vnid]
	if n == nil || !n.replicated {
		return nil
	}
	return v.store.SetAll(store.Change{Owner: multicastOwner(vnid), State: v.multicast(vnid, n)})
}

// Elsewhere knows which other nodes have pods of a VNID. Its methods never block.
type Elsewhere interface {
	// Follow names the namespaces that a VNID with multicast has; none: nobody here listens any more.
	Follow(vnid config.VNID, namespaces []string)

	// Nodes returns the VTEPs of all others who listen to the VNID, each once, and whether they are known already.
	Nodes(vnid config.VNID) (vteps []netip.Addr, known bool)
}

// nowhere knows of nobody.
type nowhere struct{}

func (nowhere) Follow(config.VNID, []string)           {}
func (nowhere) Nodes(config.VNID) ([]netip.Addr, bool) { return nil, false }
