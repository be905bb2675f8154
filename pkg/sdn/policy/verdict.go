package policy

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Packet has the fields of a packet that rules match, seen from one of its ends. It opens a connection.
type Packet struct {
	Peer     netip.Addr      // source of ingress, destination of egress
	Protocol corev1.Protocol // "" for protocols that no rule with ports matches, such as ICMP
	Port     uint16          // of the destination
	FromPod  bool            // the source address is in the pod network
}

// Allows reports whether the active rules of a pod of this node allow a packet that it sends (Egress) or receives (Ingress). It costs O(n) for the
// pod's n rules. The peer is found by its address. Flows also match namespaces by their VNID, so a pod that is not known yet counts as one of any
// namespace that they allow. Packets that flows allow for other reasons are left to the caller.
func (e *Engine) Allows(d Direction, target PodKey, p Packet) bool {
	e.rebalance()
	pod := e.pods[target]
	if pod == nil || !pod.local {
		return true
	}
	if !pod.known {
		return false
	}
	admin, below := verdict{Pass, 0}, verdict{Pass, 0}
	for _, m := range pod.sets.list {
		if !m.set.group.local {
			continue
		}
		if m.set.isolated(d) {
			below.consider(verdict{Deny, Isolation})
		}
		for c := range m.set.users {
			if !c.active || c.rule.direction != d || !c.hasPort(p) || !c.hasPeer(e, p) {
				continue
			}
			if c.rule.level.IsAdmin() {
				admin.consider(verdict{c.rule.action, c.rule.level})
			} else {
				below.consider(verdict{c.rule.action, c.rule.level})
			}
		}
	}
	if admin.action != Pass {
		return admin.action == Allow
	}
	return below.action != Deny
}

// verdict is the action and level of the highest rule of some tiers, so far.
type verdict struct {
	action Action
	level  Level
}

func (v *verdict) consider(other verdict) {
	if other.level >= v.level {
		*v = other
	}
}

func (c *conj) hasPort(p Packet) bool {
	return c.rule.anyPort || slices.ContainsFunc(c.ports, func(m PortMatch) bool {
		return m.Protocol == p.Protocol && p.Port&m.Mask == m.Port
	})
}

func (c *conj) hasPeer(e *Engine, p Packet) bool {
	if c.rule.anyPeer || slices.ContainsFunc(c.rule.blocks, func(b netip.Prefix) bool { return b.Contains(p.Peer) }) {
		return true
	}
	if node, is := e.nodes.byAddr[p.Peer]; is && c.rule.direction == Ingress {
		return c.hasNode(node) // no pod has the address of a node
	}
	a := e.byAddr[p.Peer]
	if a == nil || len(a.pods) == 0 {
		return p.FromPod && c.rule.direction == Ingress && c.rule.action != Deny && c.hasTenant(e)
	}
	for _, pod := range a.pods {
		for _, m := range pod.sets.list {
			if _, is := c.peers[m.set]; is {
				return true
			}
		}
	}
	return false
}

// hasTenant reports whether a peer is a whole namespace, which the flows match by its VNID.
func (c *conj) hasTenant(e *Engine) bool {
	for s := range c.peers {
		if !s.group.whole() {
			continue
		}
		for ns := range s.group.namespaces {
			if e.ownVNID(ns) {
				return true
			}
		}
	}
	return false
}
