package policy

import (
	"fmt"
	"hash/fnv"
	"net/netip"
)

// Action is what a rule does with the packets that meet it.
type Action uint8

// Actions.
const (
	Allow Action = iota
	Deny
	Pass // past the other rules of the tier

	actions = iota
)

// rule is a rule of a policy for one named port, or for all its ports that have numbers.
type rule struct {
	name      string // of the policy, and the place in it
	namespace string // of the policy; "" of one of the whole cluster
	direction Direction
	level     Level
	action    Action
	targets   *group
	peers     []*group
	blocks    []netip.Prefix
	anyPeer   bool
	ports     []PortMatch
	anyPort   bool
	named     bool            // a named port: a conjunction for each of its numbers, else one with number 0
	conjs     map[int32]*conj // by number
}

// conj is a rule for one number of its named port: what a switch knows as a conjunction.
type conj struct {
	id      uint32
	rule    *rule
	number  int32 // of the rule's named port; 0 without one
	shelf   Level // above the rule's level, while it is active
	ports   []PortMatch
	targets *set
	peers   map[*set]struct{}
	active  bool  // there are targets and peers: it is compiled
	veil    *veil // nil: the conjunction has never been hidden
}

// rulePart is one of the three parts of a rule.
type rulePart uint8

const (
	partTargets rulePart = iota
	partPeers
	partPorts
)

// n is how many parts limit the rule. A conjunction has at least two.
func (c *conj) n() uint8 {
	n := uint8(1)
	if !c.rule.anyPeer {
		n++
	}
	if !c.rule.anyPort {
		n++
	}
	return max(n, 2)
}

// k is the conjunction's part that a piece stands for.
func (c *conj) k(part rulePart) uint8 {
	switch {
	case part == partTargets:
		return 1
	case part == partPeers || c.rule.anyPeer:
		return 2
	}
	return 3
}

// unlimited says that only its targets limit the rule. Everything is its second part then: a switch wants as many flows as a
// conjunction has parts, so that one flow can't be two of them (find_conjunctive_match in OVS' classifier.c).
func (c *conj) unlimited() bool { return c.rule.anyPeer && c.rule.anyPort }

// attach puts a rule in force.
func (e *Engine) attach(r *rule) {
	r.conjs = map[int32]*conj{}
	if !r.named {
		e.number(r, r.targets.set(0))
		return
	}
	for _, g := range r.numbering() {
		g.rules[r] = struct{}{}
		for _, s := range g.sets {
			e.number(r, s)
		}
	}
}

// numbering are the groups whose pods say what number the rule's named port has: a port is that of the destination.
func (r *rule) numbering() []*group {
	if r.direction == Ingress {
		return []*group{r.targets}
	}
	return r.peers
}

// number sees to it that the rule has a conjunction for the number that a set stands for, and that this one knows the set.
func (e *Engine) number(r *rule, s *set) {
	c := r.conjs[s.number]
	if c == nil {
		c = e.newConj(r, s)
	}
	if _, linked := c.peers[s]; r.named && r.direction == Egress && !linked {
		c.link(s)
		if c.active {
			e.touchSet(s, r.direction)
			e.forbids = e.forbids || c.rule.action != Allow
		}
	}
	e.judge(c)
}

// newConj returns the rule's conjunction for the number of a set, whose pods are the destination: the peers of an egress rule, which come one
// by one, else the targets.
func (e *Engine) newConj(r *rule, s *set) *conj {
	c := &conj{rule: r, number: s.number, ports: r.ports, peers: map[*set]struct{}{}, targets: s}
	if r.named {
		c.ports = []PortMatch{{r.ports[0].Protocol, uint16(s.number), exactPort}} //nolint:gosec // a NamedPort's number
	}
	if r.named && r.direction == Egress {
		c.targets = r.targets.set(0)
	} else {
		for _, g := range r.peers {
			c.link(g.set(0))
		}
	}
	c.targets.users[c] = struct{}{}
	e.cover(c)
	c.id = e.newID(fmt.Sprintf("%s/%d", r.name, c.number), c)
	r.conjs[c.number] = c
	return c
}

func (c *conj) link(s *set) {
	c.peers[s] = struct{}{}
	s.users[c] = struct{}{}
	if c.active {
		s.active[c.rule.action]++
	}
}

// newID finds the number by which the switch knows a conjunction. It follows from the name, so that an agent that starts
// anew finds on the switch what it would write; of two names with one hash, the later takes the next number.
func (e *Engine) newID(name string, c *conj) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	id := h.Sum32()
	for id == 0 || e.byID[id] != nil || e.veil.reserves(id, c) {
		id++
	}
	e.byID[id] = c
	return id
}

// detach puts a rule out of force. Its groups stay.
func (e *Engine) detach(r *rule) {
	for _, g := range append([]*group{r.targets}, r.peers...) {
		delete(g.rules, r)
	}
	for _, c := range r.conjs {
		e.retire(c)
	}
}

// retire takes a conjunction from its rule. Its ID may be given to another at once: all that has it is compiled anew, and goes to the switch
// in the same bundle.
func (e *Engine) retire(c *conj) {
	if c.active {
		e.recent.retired = append(e.recent.retired, c.id)
	}
	e.activate(c, false)
	delete(c.targets.users, c)
	for s := range c.peers {
		delete(s.users, c)
	}
	delete(c.rule.conjs, c.number)
	delete(e.byID, c.id)
}

// judge decides whether the conjunction is compiled: without a target here, or without a peer, it would match nothing.
func (e *Engine) judge(c *conj) {
	active := len(c.targets.pods) > 0 && (c.rule.anyPeer || len(c.rule.blocks) > 0 || c.admitsNodes())
	for s := range c.peers {
		active = active || len(c.targets.pods) > 0 && len(s.pods) > 0
	}
	if active != c.active {
		e.activate(c, active)
	}
}

// activate has the conjunction compiled, or no longer.
func (e *Engine) activate(c *conj, active bool) {
	if c.active == active {
		return
	}
	c.active = active
	e.recent.add(c)
	e.forbids = e.forbids || c.rule.action == Pass || active == (c.rule.action == Deny)
	if c.rule.level == NetworkPolicy {
		e.shelves[c.rule.direction].place(c)
	}
	c.count(c.targets)
	for s := range c.peers {
		c.count(s)
	}
	for _, b := range c.rule.blocks {
		enlist(e.blocks, b, c, active)
	}
	for _, p := range c.ports {
		enlist(e.ports, p, c, active)
	}
	if c.unlimited() {
		if active {
			e.anything[c] = struct{}{}
		} else {
			delete(e.anything, c)
		}
	}
	e.touchConj(c)
}

// touchConj marks all pieces that have the conjunction.
func (e *Engine) touchConj(c *conj) {
	e.touch(Piece{Kind: Outcome, ID: c.id})
	e.touchSet(c.targets, c.rule.direction)
	for s := range c.peers {
		e.touchSet(s, c.rule.direction)
	}
	for _, b := range c.rule.blocks {
		e.touchBlock(b, c.rule.direction)
	}
	for _, p := range c.ports {
		e.touch(Piece{Kind: Port, PortMatch: p})
	}
	if c.unlimited() {
		e.touch(Piece{Kind: Anything})
	}
}

// level is the one on which the conjunction is compiled.
func (c *conj) level() Level { return c.rule.level + c.shelf }

// count counts a conjunction among the active ones of a set, or no longer.
func (c *conj) count(s *set) {
	if c.active {
		s.active[c.rule.action]++
	} else {
		s.active[c.rule.action]--
	}
}

// enlist adds a conjunction to those that use something, or removes it.
func enlist[K comparable](users map[K]map[*conj]struct{}, key K, c *conj, active bool) {
	if users[key] == nil {
		users[key] = map[*conj]struct{}{}
	}
	if active {
		users[key][c] = struct{}{}
	} else if delete(users[key], c); len(users[key]) == 0 {
		delete(users, key)
	}
}
