// Package policy turns pods, namespaces and policies into rules for the pods of this node. It does no I/O: its input are objects, its
// output are the clauses that changed.
//
// A rule allows (or denies) the product of its targets, its peers and its ports. It is not compiled to that product but to a conjunctive
// match: each target, address and port is a clause, which lists its rules, and a packet matches a rule if it matches one clause of each
// dimension. So the number of flows grows with the sum, and rules share clauses.
//
//	pods ──► groups ──► pod sets ──► conjunctions ◄── rules ◄── policies
//	         a selector  its pods     a rule, for one
//	                                  number of a named port
package policy

import (
	"net/netip"
)

// Engine stores the objects and the rules that they result in. It is not safe for concurrent use.
//
// The cost of an event: for a pod, the selectors that apply to its namespace, and the rules that it becomes or ceases to be a part of; for a
// namespace, the namespace selectors that require one of its labels, and its pods if one of these starts or stops selecting it; for a policy, its own rules.
type Engine struct {
	namespaces   map[string]*namespace
	pods         map[PodKey]*pod
	policies     map[policyKey]*policy
	groups       map[groupKey]*group
	byLabel      index[*namespace] // with known labels
	selecting    index[*group]     // groups that select namespaces
	byAddr       map[netip.Addr]*address
	nodes        hostNetworks
	holders      map[uint32]map[*namespace]struct{} // of each VNID
	byID         map[uint32]*conj
	blocks       map[netip.Prefix]map[*conj]struct{}
	ports        map[PortMatch]map[*conj]struct{}
	anything     map[*conj]struct{} // rules with any peer and any port
	changed      map[Clause]struct{}
	addresses    []*address // changed; most changed clauses are addresses
	revokes      bool       // see Revocation.Permission
	revokedAddrs map[netip.Addr]struct{}
	buckets      [2]priorityBuckets // by direction
	budgets
	recent  recent   // since Drain
	drained recent   // before that
	staging *staging // nil: no rule is staged
	scratch scratch
}

// New returns an engine without objects. hostNetwork are the names of namespaces that represent the host networks of all nodes; they need not exist.
func New(hostNetwork ...string) *Engine {
	return &Engine{
		namespaces:   map[string]*namespace{},
		pods:         map[PodKey]*pod{},
		policies:     map[policyKey]*policy{},
		groups:       map[groupKey]*group{},
		byLabel:      index[*namespace]{},
		selecting:    index[*group]{},
		byAddr:       map[netip.Addr]*address{},
		nodes:        newHostNetworks(hostNetwork),
		holders:      map[uint32]map[*namespace]struct{}{},
		byID:         map[uint32]*conj{},
		blocks:       map[netip.Prefix]map[*conj]struct{}{},
		ports:        map[PortMatch]map[*conj]struct{}{},
		anything:     map[*conj]struct{}{},
		changed:      map[Clause]struct{}{},
		revokedAddrs: map[netip.Addr]struct{}{},
		budgets:      newBudgets(),
		recent:       newRecent(),
	}
}

// Drain returns the clauses that may have changed since the previous call, each once, in no order.
func (e *Engine) Drain() []Clause {
	e.settle()
	e.drained, e.recent = e.recent, newRecent()
	clauses := make([]Clause, 0, len(e.changed)+len(e.addresses))
	for p := range e.changed {
		clauses = append(clauses, p)
	}
	for _, a := range e.addresses {
		clauses = append(clauses, Clause{Kind: Peer, Prefix: netip.PrefixFrom(a.Addr, a.BitLen())})
		a.changed = false
		if len(a.pods) == 0 {
			delete(e.byAddr, a.Addr)
		}
	}
	clear(e.changed)
	clear(e.addresses)
	e.addresses = e.addresses[:0]
	return clauses
}

// Changed returns the number of clauses that have changed since Drain, without those that budgets and levels will change.
func (e *Engine) Changed() int { return len(e.changed) + len(e.addresses) }

func (e *Engine) touch(p Clause) { e.changed[p] = struct{}{} }

func (e *Engine) touchAddress(a *address) {
	if !a.changed {
		a.changed = true
		e.addresses = append(e.addresses, a)
	}
}

// touchBlock marks the clauses of a block as changed. A block of one address is compiled with that address; a block of all addresses matches
// all nodes without a clause of its own.
func (e *Engine) touchBlock(p netip.Prefix, d Direction) {
	if d == Ingress && p.Bits() > 0 {
		e.touch(Clause{Kind: NodeBlock, Prefix: p})
	}
	if p.IsSingleIP() {
		e.touchAddress(e.address(p.Addr()))
	} else {
		e.touch(Clause{Kind: Peer, Prefix: p})
	}
}

// address returns the address, and creates it if it does not exist. Drain deletes addresses that no pod has.
func (e *Engine) address(addr netip.Addr) *address {
	a := e.byAddr[addr]
	if a == nil {
		a = &address{Addr: addr}
		a.pods = a.onePod[:0]
		e.byAddr[addr] = a
	}
	return a
}
