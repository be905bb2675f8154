package policy

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Packet is what rules see of one that opens a connection, from one of its ends.
type Packet struct {
	Peer     netip.Addr      // the other end
	Protocol corev1.Protocol // "" for one that no rule about ports can mean, such as ICMP
	Port     uint16          // of the destination
	FromPod  bool            // the opener's address is of the pod network
}

// Allows says what the rules in force about a pod of this node make of a packet that it sends (Egress) or gets (Ingress). It costs the
// pod's own rules. A peer is who has the address, as far as is known; the flows know namespaces by their VNID too, so a pod that nobody has
// told of yet may be of any that they let in. All else that flows let through is the caller's business.
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

// verdict is what the highest rule of some tiers says, so far.
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
		return c.hasNode(node) // no pod has the address
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

// hasTenant says whether a peer is an entire namespace, which the flows know by its VNID.
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
