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

// Kind is what a clause matches.
type Kind uint8

// Kinds of clauses.
const (
	Target    Kind = iota // Pod: a pod of this node
	Peer                  // Prefix: an address, or a block of them
	Tenant                // VNID: all pods of a namespace; ingress only
	Nodes                 // all nodes as sources, for their own packets; ingress only
	NodeBlock             // Prefix: nodes whose other address is in it, as sources; ingress only
	Port                  // PortMatch: destination ports
	Anything              // all packets
	Outcome               // ID: the action on a packet that matches all clauses of a rule
)

// Clause names what one set of flows matches: a value of one dimension of conjunctive matches, such as a pod, an address or a port. Rules share
// clauses: the flows have a conjunction action for each rule. Only the fields that Kind names are set, so equal values name the same flows.
// Source: ovs-fields(7), Conjunctive Match Fields.
type Clause struct {
	Kind   Kind
	Pod    PodKey
	Prefix netip.Prefix
	VNID   uint32
	PortMatch
	ID uint32
}

// Part has the conjunction actions of a clause for the rules of one direction and level: one flow.
type Part struct {
	Direction Direction
	Level     Level
	Conj      []Conj // sorted
}

// Conj is a conjunction action: the clause is number K, counted from 1, of the N of rule ID. Source: conjunction in ovs-actions(7).
type Conj struct {
	ID   uint32
	K, N uint8
}

// Compile returns the conjunction actions of the clause, sorted by direction and level. They are valid until the next call. The list is empty if no
// rule has the clause.
func (e *Engine) Compile(p Clause) []Part {
	x := e.scratch.conjActions[:0]
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
	e.scratch.conjActions = x
	return e.scratch.divide()
}

// Outcome returns the direction, level and action of the rule that a clause of kind Outcome names; false if the rule does not exist, or is staged.
func (e *Engine) Outcome(p Clause) (Direction, Level, Action, bool) {
	c := e.byID[p.ID]
	if c == nil || !c.active || c.staged() {
		return 0, 0, 0, false
	}
	return c.rule.direction, c.level(), c.rule.action, true
}

// Isolated reports whether NetworkPolicies isolate a pod of this node for ingress and for egress: only what their rules allow is allowed.
func (e *Engine) Isolated(key PodKey) (ingress, egress bool) {
	if pod := e.pods[key]; pod != nil && pod.local {
		if !pod.known { // its labels are unknown, and so are its policies
			return true, true
		}
		for _, m := range pod.sets.list {
			ingress = ingress || m.set.isolated(Ingress)
			egress = egress || m.set.isolated(Egress)
		}
	}
	return ingress, egress
}

// conjAction is a conjunction action with its direction and level.
type conjAction struct {
	direction Direction
	level     Level
	conj      Conj
}

// conjActions are the conjunction actions of a clause.
type conjActions []conjAction

func (x *conjActions) add(c *conj, part rulePart) {
	if c.staged() {
		return
	}
	*x = append(*x, conjAction{c.rule.direction, c.level(), Conj{ID: c.id, K: c.k(part), N: c.n()}})
}

func (x *conjActions) addUsers(users map[*conj]struct{}, part rulePart) {
	for c := range users {
		x.add(c, part)
	}
}

// addTargets adds the rules of which the pod is a target.
func (x *conjActions) addTargets(p *pod) {
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

// addHolders adds the rules of which pods with the address are peers.
func (x *conjActions) addHolders(e *Engine, addr netip.Addr) {
	if a := e.byAddr[addr]; a != nil {
		for _, pod := range a.pods {
			x.addPeers(a, pod, e.ownVNID(pod.namespace))
		}
	}
}

// addPeers adds the rules that match the pod as a peer by its address. Ingress rules that match its whole namespace by the VNID are left out.
func (x *conjActions) addPeers(a *address, p *pod, byVNID bool) {
	for _, m := range p.sets.list {
		if m.set.group.local || !m.set.used() {
			continue
		}
		whole := byVNID && m.set.group.whole()
		for c := range m.set.users {
			if c.active && (c.rule.direction == Egress || !whole) && !a.isStagedFor(c) {
				x.add(c, partPeers)
			}
		}
	}
}

// addTenant adds the ingress rules of which a whole namespace is a peer.
func (x *conjActions) addTenant(ns *namespace) {
	for g := range ns.groups {
		if g.local || !g.whole() {
			continue
		}
		for c := range g.podSet(0).users {
			if c.active && c.rule.direction == Ingress {
				x.add(c, partPeers)
			}
		}
	}
}

// order returns a sort key: direction, then level, then rule.
func (s conjAction) order() uint64 {
	return uint64(s.direction)<<56 | uint64(s.level)<<40 | uint64(s.conj.ID)<<8 | uint64(s.conj.K)
}

// scratch has the buffers for the clause that is being compiled. A new policy compiles tens of thousands, nearly all with one conjunction action.
type scratch struct {
	conjActions conjActions
	conjs       []Conj
	parts       []Part
}

// divide returns the conjunction actions by direction and level, sorted, without duplicates: a pod may be a peer of a rule twice.
func (x *scratch) divide() []Part {
	slices.SortFunc(x.conjActions, func(a, b conjAction) int { return cmp.Compare(a.order(), b.order()) })
	x.conjActions = slices.Compact(x.conjActions)
	x.conjs, x.parts = slices.Grow(x.conjs[:0], len(x.conjActions)), x.parts[:0]
	for i, s := range x.conjActions {
		x.conjs = append(x.conjs, s.conj)
		if last := len(x.parts) - 1; last >= 0 && x.parts[last].Direction == s.direction && x.parts[last].Level == s.level {
			x.parts[last].Conj = x.parts[last].Conj[:len(x.parts[last].Conj)+1]
		} else {
			x.parts = append(x.parts, Part{Direction: s.direction, Level: s.level, Conj: x.conjs[i : i+1]})
		}
	}
	return x.parts
}
