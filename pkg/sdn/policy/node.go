package policy

import (
	"net/netip"
	"slices"
)

// Nodes are sources of ingress in two ways. A rule of a NetworkPolicy that selects a whole host-network namespace allows all nodes: one clause,
// Nodes, whatever the number of nodes. A block allows nodes with either of their addresses in it: one more clause, NodeBlock, for each block. So
// an event of a node compiles nothing here. ClusterNetworkPolicies select nodes by their labels, for egress, and match all their addresses.

// hostNetworks stores nodes as sources of connections.
type hostNetworks struct {
	namespaces map[string]struct{} // names of host-network namespaces, existing or not
	byAddr     map[netip.Addr]nodeAddr
	addrs      map[string][]netip.Addr // by node
}

// nodeAddr is an address from which a node opens connections to pods.
type nodeAddr struct {
	node  string
	other netip.Addr // the node's own IP for an address inside the pod network; the first inside address for its own IP
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

// SetNode adds or changes a node, with its labels and addresses, as a peer of ClusterNetworkPolicies.
func (e *Engine) SetNode(name string, set map[string]string, addrs ...netip.Addr) {
	e.SetPod(Pod{PodKey: nodeKey(name), Labels: set, Addrs: addrs})
}

// DeleteNode is the reverse of SetNode.
func (e *Engine) DeleteNode(name string) { e.DeletePod(nodeKey(name)) }

// nodeKey returns the node's key among the pods. No pod has an empty namespace, and no selector selects it.
func nodeKey(name string) PodKey { return PodKey{Name: name} }

// SetNodeNetwork sets the addresses from which a node opens connections to pods: its own IP, and those inside the pod network, in the order of
// its subnets. Without inside addresses the node has none.
func (e *Engine) SetNodeNetwork(name string, own netip.Addr, inside ...netip.Addr) {
	now := map[netip.Addr]netip.Addr{}
	for _, addr := range inside {
		now[addr], now[own] = own, inside[0]
	}
	had := e.nodes.addrs[name]
	for _, addr := range had {
		if was := e.nodes.byAddr[addr]; was.node == name && was.other != now[addr] {
			delete(e.nodes.byAddr, addr)
			e.revokedAddrs[addr] = struct{}{} // a rule may have allowed it by the other address
		}
	}
	addrs := had[:0:0]
	for addr, other := range now {
		if was, is := e.nodes.byAddr[addr]; is && was.other != other {
			e.revokedAddrs[addr] = struct{}{} // it was another node's, or had another other address
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

// admitsNodes reports whether the group selects all nodes: its namespaceSelector selects whole namespaces, and one of these is a host-network
// namespace.
func (g *group) admitsNodes() bool { return g.hosts > 0 }

// lookAt adds change to the count of host-network namespaces that the group selects, if the namespace is one.
func (g *group) countHostNetwork(ns *namespace, change int) {
	if ns.isHost && g.inNamespaces != nil && g.whole() && !g.local {
		g.hosts += change
	}
}

// mayAdmitNodes reports whether namespaceSelectors of the rule can select nodes. The API of ClusterNetworkPolicy excludes host-networked pods.
func (r *rule) mayAdmitNodes() bool { return r.direction == Ingress && r.level == NetworkPolicy }

// admitsNodes reports whether all nodes are peers of the rule.
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

// reconsiderNodes evaluates the rules of a group again after its admitsNodes has changed.
func (e *Engine) reconsiderNodes(g *group) {
	for c := range g.podSet(0).users {
		if c.rule.mayAdmitNodes() {
			e.revokes = e.revokes || c.active && !g.admitsNodes()
			e.evaluate(c)
		}
	}
	e.touch(Clause{Kind: Nodes})
}

// addNodes adds the rules that allow nodes.
func (x *conjActions) addNodes(e *Engine) {
	for name := range e.nodes.namespaces {
		ns := e.namespaces[name]
		if ns == nil {
			continue
		}
		for g := range ns.groups {
			if !g.admitsNodes() {
				continue
			}
			for c := range g.podSet(0).users {
				if c.active && c.rule.mayAdmitNodes() {
					x.add(c, partPeers)
				}
			}
		}
	}
}

// addNodeBlock adds the rules that allow nodes with an address in the block.
func (x *conjActions) addNodeBlock(users map[*conj]struct{}) {
	for c := range users {
		if c.rule.direction == Ingress {
			x.add(c, partPeers)
		}
	}
}

// hasNode reports whether the rule allows a node as the source, by its selectors or by its other address.
func (c *conj) hasNode(a nodeAddr) bool {
	return c.admitsNodes() || slices.ContainsFunc(c.rule.blocks, func(b netip.Prefix) bool { return b.Contains(a.other) })
}
