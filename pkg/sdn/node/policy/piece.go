package policy

import (
	"cmp"
	"net/netip"
	"slices"
)

// Direction is that of the connection, seen from the target.
type Direction uint8

// Directions.
const (
	Ingress Direction = iota
	Egress
)

// Kind says which part of rules a piece is.
type Kind uint8

// Kinds of pieces.
const (
	Target    Kind = iota // Pod: a pod of this node
	Peer                  // Prefix: an address, or a block of them
	Tenant                // VNID: all pods of a namespace; ingress only
	Nodes                 // all nodes as sources, for their own packets; ingress only
	NodeBlock             // Prefix: nodes whose other address is in it, as sources; ingress only
	Port                  // PortMatch: destination ports
	Anything              // all packets
	Outcome               // ID: the action on a packet that matches all parts of a rule
)

// Piece names a piece of compiled state. Two equal ones are the same. Only the fields that Kind names are set.
type Piece struct {
	Kind   Kind
	Pod    PodKey
	Prefix netip.Prefix
	VNID   uint32
	PortMatch
	ID uint32
}

// Part is a piece's share in the rules of one direction and level.
type Part struct {
	Direction Direction
	Level     Level
	Conj      []Conj // sorted
}

// Conj says that a piece is part K of the N of the rule ID, counted from 1. Source: conjunction in ovs-actions(7).
type Conj struct {
	ID   uint32
	K, N uint8
}

// Compile returns the piece's share in the rules, sorted by direction and level, which is valid until the next piece. It is empty when
// there is none (any more).
func (e *Engine) Compile(p Piece) []Part {
	x := e.scratch.shares[:0]
	switch p.Kind {
	case Target:
		if pod := e.pods[p.Pod]; pod != nil && pod.local {
			x.addTargets(pod)
		}
	case Peer:
		x.addUsers(e.blocks[p.Prefix], partPeers)
		if p.Prefix.IsSingleIP() {
			x.addHolders(e, p.Prefix.Addr())
		}
	case Tenant:
		if ns := e.owner(p.VNID); ns != nil {
			x.addTenant(ns)
		}
	case Nodes:
		x.addNodes(e)
	case NodeBlock:
		x.addNodeBlock(e.blocks[p.Prefix])
	case Port:
		x.addUsers(e.ports[p.PortMatch], partPorts)
	case Anything:
		x.addUsers(e.anything, partPeers)
	case Outcome:
	}
	e.scratch.shares = x
	return e.scratch.divide()
}

// Outcome returns the direction, level and action of the rule that a piece of that kind names; false when it has none.
func (e *Engine) Outcome(p Piece) (Direction, Level, Action, bool) {
	c := e.byID[p.ID]
	if c == nil || !c.active || c.hidden() {
		return 0, 0, 0, false
	}
	return c.rule.direction, c.level(), c.rule.action, true
}

// Isolated says whether a pod of this node may only be reached, or reach, as rules of network policies allow.
func (e *Engine) Isolated(key PodKey) (ingress, egress bool) {
	if pod := e.pods[key]; pod != nil && pod.local {
		if !pod.known { // what it was labelled is not known any more
			return true, true
		}
		for _, m := range pod.sets.list {
			ingress = ingress || m.set.isolated(Ingress)
			egress = egress || m.set.isolated(Egress)
		}
	}
	return ingress, egress
}

// share is a piece's share in one conjunction.
type share struct {
	direction Direction
	level     Level
	conj      Conj
}

// shares collects those of a piece.
type shares []share

func (x *shares) add(c *conj, part rulePart) {
	if c.hidden() {
		return
	}
	*x = append(*x, share{c.rule.direction, c.level(), Conj{ID: c.id, K: c.k(part), N: c.n()}})
}

func (x *shares) addUsers(users map[*conj]struct{}, part rulePart) {
	for c := range users {
		x.add(c, part)
	}
}

// addTargets adds the rules that have the pod as a target.
func (x *shares) addTargets(p *pod) {
	for _, m := range p.sets.list {
		if !m.set.group.local {
			continue
		}
		for c := range m.set.users {
			if c.active {
				x.add(c, partTargets)
			}
		}
	}
}

// addHolders adds those of the pods that have the address.
func (x *shares) addHolders(e *Engine, addr netip.Addr) {
	if a := e.byAddr[addr]; a != nil {
		for _, pod := range a.pods {
			x.addPeers(a, pod, e.ownVNID(pod.namespace))
		}
	}
}

// addPeers adds the rules that have the pod as a peer, for its address; for ingress without those that match all its namespace by the VNID.
func (x *shares) addPeers(a *address, p *pod, byVNID bool) {
	for _, m := range p.sets.list {
		if m.set.group.local || !m.set.used() {
			continue
		}
		whole := byVNID && m.set.group.whole()
		for c := range m.set.users {
			if c.active && (c.rule.direction == Egress || !whole) && !a.hides(c) {
				x.add(c, partPeers)
			}
		}
	}
}

// addTenant adds the rules that let a whole namespace in.
func (x *shares) addTenant(ns *namespace) {
	for g := range ns.groups {
		if g.local || !g.whole() {
			continue
		}
		for c := range g.set(0).users {
			if c.active && c.rule.direction == Ingress {
				x.add(c, partPeers)
			}
		}
	}
}

// order is by direction and level, then by rule.
func (s share) order() uint64 {
	return uint64(s.direction)<<56 | uint64(s.level)<<40 | uint64(s.conj.ID)<<8 | uint64(s.conj.K)
}

// scratch is of the piece that is being compiled. There are tens of thousands when a policy comes, nearly all with one share.
type scratch struct {
	shares shares
	conjs  []Conj
	parts  []Part
}

// divide returns the shares in order, by direction and level, each once: a pod may be a peer of a rule twice.
func (x *scratch) divide() []Part {
	slices.SortFunc(x.shares, func(a, b share) int { return cmp.Compare(a.order(), b.order()) })
	x.shares = slices.Compact(x.shares)
	x.conjs, x.parts = slices.Grow(x.conjs[:0], len(x.shares)), x.parts[:0]
	for i, s := range x.shares {
		x.conjs = append(x.conjs, s.conj)
		if last := len(x.parts) - 1; last >= 0 && x.parts[last].Direction == s.direction && x.parts[last].Level == s.level {
			x.parts[last].Conj = x.parts[last].Conj[:len(x.parts[last].Conj)+1]
		} else {
			x.parts = append(x.parts, Part{Direction: s.direction, Level: s.level, Conj: x.conjs[i : i+1]})
		}
	}
	return x.parts
}
