package policy

import (
	"net/netip"
	"slices"
)

// Nodes are sources of ingress in two ways. A rule of a NetworkPolicy that selects a host-network namespace as a whole allows all nodes: that is one
// piece, whatever the number of nodes. A block allows those that have an address in it, be it another than the packet's: one more piece for each
// block. So an event of a node compiles nothing here. ClusterNetworkPolicies select nodes by their labels, and by all their addresses, for egress.

// hostNetworks is what is known of nodes as sources of connections.
type hostNetworks struct {
	namespaces map[string]struct{} // names of those that stand for all nodes, if they exist
	byAddr     map[netip.Addr]nodeAddr
	addrs      map[string][]netip.Addr // by node
}

// nodeAddr is an address from which a node opens connections to pods.
type nodeAddr struct {
	node  string
	other netip.Addr // the node's own for one inside the pod network, and the first of those for its own
}

func newHostNetworks(namespaces []string) hostNetworks {
	h := hostNetworks{namespaces: map[string]struct{}{}, byAddr: map[netip.Addr]nodeAddr{}, addrs: map[string][]netip.Addr{}}
	for _, name := range namespaces {
		h.namespaces[name] = struct{}{}
	}
	return h
}

func (h hostNetworks) isNamespace(name string) bool {
	_, is := h.namespaces[name]
	return is
}

// SetNode makes the addresses of a node known, or changes them, for rules about nodes.
func (e *Engine) SetNode(name string, set map[string]string, addrs ...netip.Addr) {
	e.SetPod(Pod{PodKey: nodeKey(name), Labels: set, Addrs: addrs})
}

// DeleteNode is the reverse of SetNode.
func (e *Engine) DeleteNode(name string) { e.DeletePod(nodeKey(name)) }

// nodeKey is what a node is called among the pods: no pod is in a namespace without a name, and no selector selects that.
func nodeKey(name string) PodKey { return PodKey{Name: name} }

// SetNodeNetwork sets the addresses from which a node opens connections to pods: its own, and those inside the pod network, in the order of its
// subnets. Without any, the node has none.
func (e *Engine) SetNodeNetwork(name string, own netip.Addr, inside ...netip.Addr) {
	now := map[netip.Addr]netip.Addr{}
	for _, addr := range inside {
		now[addr], now[own] = own, inside[0]
	}
	had := e.nodes.addrs[name]
	for _, addr := range had {
		if was := e.nodes.byAddr[addr]; was.node == name && was.other != now[addr] {
			delete(e.nodes.byAddr, addr)
			e.lost[addr] = struct{}{} // what a rule allowed by the other address
		}
	}
	addrs := had[:0:0]
	for addr, other := range now {
		if was, is := e.nodes.byAddr[addr]; is && was.other != other {
			e.lost[addr] = struct{}{} // of another node, which has to give it up
		}
		e.nodes.byAddr[addr] = nodeAddr{name, other}
		addrs = append(addrs, addr)
	}
	if len(addrs) > 0 {
		e.nodes.addrs[name] = addrs
	} else {
		delete(e.nodes.addrs, name)
	}
}

// admitsNodes says whether the group is of whole namespaces that selectors of namespaces have selected: such a selector means the nodes too, if
// one of the namespaces is a host-network namespace.
func (g *group) admitsNodes() bool { return g.hosts > 0 }

// lookAt counts a namespace among the host-network namespaces that the group looks at, or no longer.
func (g *group) lookAt(ns *namespace, change int) {
	if ns.isHost && g.inNamespaces != nil && g.whole() && !g.local {
		g.hosts += change
	}
}

// mayAdmitNodes says whether selectors of the rule mean nodes too. The API of ClusterNetworkPolicy leaves out host-networked pods.
func (r *rule) mayAdmitNodes() bool { return r.direction == Ingress && r.level == NetworkPolicy }

// admitsNodes says whether all nodes are peers of the rule.
func (c *conj) admitsNodes() bool {
	if !c.rule.mayAdmitNodes() {
		return false
	}
	for s := range c.peers {
		if s.group.admitsNodes() {
			return true
		}
	}
	return false
}

// reconsiderNodes is for a group that has come to admit nodes, or to admit them no longer.
func (e *Engine) reconsiderNodes(g *group) {
	for c := range g.set(0).users {
		if c.rule.mayAdmitNodes() {
			e.forbids = e.forbids || c.active && !g.admitsNodes()
			e.judge(c)
		}
	}
	e.touch(Piece{Kind: Nodes})
}

// addNodes adds the rules that allow nodes.
func (x *shares) addNodes(e *Engine) {
	for name := range e.nodes.namespaces {
		ns := e.namespaces[name]
		if ns == nil {
			continue
		}
		for g := range ns.groups {
			if !g.admitsNodes() {
				continue
			}
			for c := range g.set(0).users {
				if c.active && c.rule.mayAdmitNodes() {
					x.add(c, partPeers)
				}
			}
		}
	}
}

// addNodeBlock adds the rules that allow nodes with an address in the block.
func (x *shares) addNodeBlock(users map[*conj]struct{}) {
	for c := range users {
		if c.rule.direction == Ingress {
			x.add(c, partPeers)
		}
	}
}

// hasNode says whether the rule allows a node that sends from an address.
func (c *conj) hasNode(a nodeAddr) bool {
	return c.admitsNodes() || slices.ContainsFunc(c.rule.blocks, func(b netip.Prefix) bool { return b.Contains(a.other) })
}
