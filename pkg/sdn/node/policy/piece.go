package policy

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
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
	Target  Kind = iota // Pod: a pod of this node
	Peer                // Prefix: an address, or a block of them
	Tenant              // VNID: all pods of a namespace; ingress only
	Port                // Protocol, Port, Mask: destination ports
	Outcome             // ID: what becomes of a packet that belongs to all parts of a rule
)

// Piece names a piece of compiled state. Two equal ones are the same. Only the fields that Kind names are set.
type Piece struct {
	Kind     Kind
	Pod      PodKey
	Prefix   netip.Prefix
	VNID     uint32
	Protocol corev1.Protocol
	Port     uint16
	Mask     uint16 // 0: all ports of the protocol
	ID       uint32
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

// Compile returns the piece's share in the rules, sorted by direction and level. It is empty when there is none (any more).
func (e *Engine) Compile(p Piece) []Part {
	b := parts{}
	switch p.Kind {
	case Target:
		if pod := e.pods[p.Pod]; pod != nil && pod.local {
			b.addSets(pod, true, nil)
		}
	case Peer:
		b.addUsers(e.fixed[p], partPeers)
		if p.Prefix.IsSingleIP() {
			for _, pod := range e.byAddr[p.Prefix.Addr()] {
				b.addSets(pod, false, e.ownVNID)
			}
		}
	case Tenant:
		for ns := range e.holders[p.VNID] {
			if e.ownVNID(ns) {
				b.addTenant(ns)
			}
		}
	case Port:
		b.addUsers(e.fixed[p], partPorts)
	case Outcome:
	}
	return b.sorted()
}

// Outcome returns the direction, level and action of the rule that a piece of that kind names; false when it has none.
func (e *Engine) Outcome(p Piece) (Direction, Level, Action, bool) {
	c := e.byID[p.ID]
	if c == nil || !c.active {
		return 0, 0, 0, false
	}
	return c.rule.direction, c.rule.level, c.rule.action, true
}

// Isolated says whether a pod of this node may only be reached, or reach, as rules of network policies allow.
func (e *Engine) Isolated(key PodKey) (ingress, egress bool) {
	if pod := e.pods[key]; pod != nil && pod.local {
		for s := range pod.sets {
			ingress = ingress || s.isolates[Ingress] > 0
			egress = egress || s.isolates[Egress] > 0
		}
	}
	return ingress, egress
}

type partKey struct {
	direction Direction
	level     Level
}

// parts collects the share of a piece.
type parts map[partKey]map[Conj]struct{}

func (b parts) add(c *conj, part rulePart) {
	for _, k := range c.numbers(part) {
		key := partKey{c.rule.direction, c.rule.level}
		if b[key] == nil {
			b[key] = map[Conj]struct{}{}
		}
		b[key][Conj{ID: c.id, K: k, N: c.n()}] = struct{}{}
	}
}

func (b parts) addUsers(users map[*conj]struct{}, part rulePart) {
	for c := range users {
		b.add(c, part)
	}
}

// addSets adds the pod's sets of targets, or of peers; for ingress without the namespaces that are covered by their VNID.
func (b parts) addSets(p *pod, targets bool, covered func(*namespace) bool) {
	for s := range p.sets {
		if s.group.local != targets {
			continue
		}
		part := partPeers
		if targets {
			part = partTargets
		}
		for c := range s.users {
			if !c.active || !targets && c.rule.direction == Ingress && s.group.whole() && covered(p.namespace) {
				continue
			}
			b.add(c, part)
		}
	}
}

// addTenant adds the rules that let a whole namespace in.
func (b parts) addTenant(ns *namespace) {
	for g := range ns.groups {
		if g.local || !g.whole() {
			continue
		}
		for c := range g.set(0).users {
			if c.active && c.rule.direction == Ingress {
				b.add(c, partPeers)
			}
		}
	}
}

func (b parts) sorted() []Part {
	out := make([]Part, 0, len(b))
	for key, conjs := range b {
		p := Part{Direction: key.direction, Level: key.level, Conj: make([]Conj, 0, len(conjs))}
		for c := range conjs {
			p.Conj = append(p.Conj, c)
		}
		slices.SortFunc(p.Conj, func(a, b Conj) int { return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.K, b.K)) })
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b Part) int {
		return cmp.Or(cmp.Compare(a.Direction, b.Direction), cmp.Compare(a.Level, b.Level))
	})
	return out
}
