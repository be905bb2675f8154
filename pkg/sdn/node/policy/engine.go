// Package policy turns pods, namespaces and policies into rules for the pods of this node. It knows neither a switch nor the
// API server: what goes in are objects, what comes out are the pieces of state that changed.
//
// A rule allows (or denies) the product of its targets, its peers and its ports. It is not compiled as that product but as
// a conjunction: every address, port and target is one piece, which lists the rules that it is part of, and a packet that
// belongs to all three parts of a rule meets it. So the state grows with the sum, and a piece that many rules share is there
// once.
//
//	pods ──► groups ──► sets ──► conjunctions ◄── rules ◄── policies
//	         a selector  its      a rule, for one
//	                     pods     named port's number
package policy

import (
	"net/netip"
)

// Engine holds the objects and what follows from them. It is not safe for concurrent use.
//
// What an event costs: of a pod, the selectors that look at its namespace, and the rules that it enters or leaves; of a
// namespace, the selectors of namespaces that want one of its labels, and its pods if one of these changes its mind; of a policy, its own rules.
type Engine struct {
	namespaces map[string]*namespace
	pods       map[PodKey]*pod
	policies   map[policyKey]*policy
	groups     map[groupKey]*group
	byLabel    index[*namespace] // those whose labels are known
	selecting  index[*group]     // groups that select namespaces
	byAddr     map[netip.Addr]*address
	nodes      hostNetworks
	holders    map[uint32]map[*namespace]struct{} // of each VNID
	byID       map[uint32]*conj
	blocks     map[netip.Prefix]map[*conj]struct{}
	ports      map[PortMatch]map[*conj]struct{}
	anything   map[*conj]struct{} // rules that only their targets limit
	changed    map[Piece]struct{}
	addresses  []*address // that have changed: by far the most
	forbids    bool       // something that was allowed, perhaps
	lost       map[netip.Addr]struct{}
	shelves    [2]shelves // by direction
	budgets
	recent  recent // since Drain
	drained recent // before it
	veil    *veil  // nil: no rule is hidden
	scratch scratch
}

// New returns an engine without objects. hostNetwork are the names of namespaces that represent the host networks of all nodes, if they exist.
func New(hostNetwork ...string) *Engine {
	return &Engine{
		namespaces: map[string]*namespace{},
		pods:       map[PodKey]*pod{},
		policies:   map[policyKey]*policy{},
		groups:     map[groupKey]*group{},
		byLabel:    index[*namespace]{},
		selecting:  index[*group]{},
		byAddr:     map[netip.Addr]*address{},
		nodes:      newHostNetworks(hostNetwork),
		holders:    map[uint32]map[*namespace]struct{}{},
		byID:       map[uint32]*conj{},
		blocks:     map[netip.Prefix]map[*conj]struct{}{},
		ports:      map[PortMatch]map[*conj]struct{}{},
		anything:   map[*conj]struct{}{},
		changed:    map[Piece]struct{}{},
		lost:       map[netip.Addr]struct{}{},
		budgets:    newBudgets(),
		recent:     newRecent(),
	}
}

// Drain returns the pieces that may have changed since it was asked last, each once, in no order.
func (e *Engine) Drain() []Piece {
	e.settle()
	e.drained, e.recent = e.recent, newRecent()
	pieces := make([]Piece, 0, len(e.changed)+len(e.addresses))
	for p := range e.changed {
		pieces = append(pieces, p)
	}
	for _, a := range e.addresses {
		pieces = append(pieces, Piece{Kind: Peer, Prefix: netip.PrefixFrom(a.Addr, a.BitLen())})
		a.changed = false
		if len(a.pods) == 0 {
			delete(e.byAddr, a.Addr)
		}
	}
	clear(e.changed)
	clear(e.addresses)
	e.addresses = e.addresses[:0]
	return pieces
}

// Changed returns how many pieces have changed since Drain, without those that follow from budgets and levels.
func (e *Engine) Changed() int { return len(e.changed) + len(e.addresses) }

func (e *Engine) touch(p Piece) { e.changed[p] = struct{}{} }

func (e *Engine) touchAddress(a *address) {
	if !a.changed {
		a.changed = true
		e.addresses = append(e.addresses, a)
	}
}

// touchBlock marks the pieces of a block as changed. A block of one address is compiled with that address; a block of all addresses matches
// all nodes without a piece of its own.
func (e *Engine) touchBlock(p netip.Prefix, d Direction) {
	if d == Ingress && p.Bits() > 0 {
		e.touch(Piece{Kind: NodeBlock, Prefix: p})
	}
	if p.IsSingleIP() {
		e.touchAddress(e.address(p.Addr()))
	} else {
		e.touch(Piece{Kind: Peer, Prefix: p})
	}
}

// address returns the address, made when it is missing. One that no pod has lasts until Drain.
func (e *Engine) address(addr netip.Addr) *address {
	a := e.byAddr[addr]
	if a == nil {
		a = &address{Addr: addr}
		a.pods = a.onePod[:0]
		e.byAddr[addr] = a
	}
	return a
}
