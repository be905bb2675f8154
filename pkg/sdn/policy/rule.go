package policy

import (
	"hash/fnv"
	"net/netip"
	"strconv"
)

// Action is the action of a rule on the packets that match it.
type Action uint8

// Actions.
const (
	Allow Action = iota
	Deny
	Pass // skip the other rules of the tier

	actions = iota
)

// rule is a rule of a policy for one named port, or for all its numeric ports.
type rule struct {
	name      string // of the policy, and the place of the rule in it
	namespace string // of the policy; "" for a ClusterNetworkPolicy
	direction Direction
	level     Level
	action    Action
	targets   *group
	peers     []*group
	blocks    []netip.Prefix
	anyPeer   bool
	ports     []PortMatch
	anyPort   bool
	named     bool            // has a named port: one conjunction for each of its numbers, else one with number 0
	conjs     map[int32]*conj // by number
}

// conj is a rule for one number of its named port: a conjunctive match on the switch.
type conj struct {
	id      uint32
	rule    *rule
	number  int32 // of the rule's named port; 0 without one
	bucket  Level // offset to the rule's level, while the conjunction is active
	ports   []PortMatch
	targets *podSet
	peers   map[*podSet]struct{}
	active  bool     // there are targets and peers: it is compiled
	staging *staging // nil: the conjunction has never been staged
}

// rulePart is one of the three dimensions of a rule.
type rulePart uint8

const (
	partTargets rulePart = iota
	partPeers
	partPorts
)

// n returns the number of dimensions that limit the rule. A conjunctive match has at least two.
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

// k returns the number of the dimension in the conjunction.
func (c *conj) k(part rulePart) uint8 {
	switch {
	case part == partTargets:
		return 1
	case part == partPeers || c.rule.anyPeer:
		return 2
	}
	return 3
}

// unlimited reports that only targets limit the rule. Its second clause is Anything then: a conjunctive match takes one flow for each
// dimension, and no flow counts for two (find_conjunctive_match in OVS' classifier.c).
func (c *conj) unlimited() bool { return c.rule.anyPeer && c.rule.anyPort }

// attach activates a rule.
func (e *Engine) attach(r *rule) {
	r.conjs = map[int32]*conj{}
	if !r.named {
		e.number(r, r.targets.podSet(0))
		return
	}
	for _, g := range r.numbering() {
		g.rules[r] = struct{}{}
		for _, s := range g.sets {
			e.number(r, s)
		}
	}
}

// numbering returns the groups whose pods define the numbers of the rule's named port: those at the destination.
func (r *rule) numbering() []*group {
	if r.direction == Ingress {
		return []*group{r.targets}
	}
	return r.peers
}

// number adds a set to the rule's conjunction for the set's port number, and creates the conjunction if it does not exist.
func (e *Engine) number(r *rule, s *podSet) {
	c := r.conjs[s.number]
	if c == nil {
		c = e.newConj(r, s)
	}
	if _, linked := c.peers[s]; r.named && r.direction == Egress && !linked {
		c.link(s)
		if c.active {
			e.touchSet(s, r.direction)
			e.revokes = e.revokes || c.rule.action != Allow
		}
	}
	e.evaluate(c)
}

// newConj creates the rule's conjunction for the number of a set, whose pods are the destination: of an egress rule its peers, which number adds one
// by one, else its targets.
func (e *Engine) newConj(r *rule, s *podSet) *conj {
	c := &conj{rule: r, number: s.number, ports: r.ports, peers: map[*podSet]struct{}{}, targets: s}
	if r.named {
		c.ports = []PortMatch{{r.ports[0].Protocol, uint16(s.number), exactPort}} //nolint:gosec // a NamedPort's number
	}
	if r.named && r.direction == Egress {
		c.targets = r.targets.podSet(0)
	} else {
		for _, g := range r.peers {
			c.link(g.podSet(0))
		}
	}
	c.targets.users[c] = struct{}{}
	e.stageNew(c)
	c.id = e.newID(r.name+"/"+strconv.Itoa(int(c.number)), c)
	r.conjs[c.number] = c
	return c
}

func (c *conj) link(s *podSet) {
	c.peers[s] = struct{}{}
	s.users[c] = struct{}{}
	if c.active {
		s.active[c.rule.action]++
	}
}

// firstID is the lowest conjunction ID. IPFIX samples have lower numbers in place of an ID (pipeline.FirstRulePoint).
const firstID = 16

// newID returns a free conjunction ID. It is a hash of the name, so that an agent that restarts finds its own flows on the switch; if two names have
// the same hash, the later takes the next ID.
func (e *Engine) newID(name string, c *conj) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	id := h.Sum32()
	for id < firstID || e.byID[id] != nil || e.staging.reserves(id, c) {
		id++
	}
	e.byID[id] = c
	return id
}

// detach deactivates a rule. Its groups remain.
func (e *Engine) detach(r *rule) {
	for _, g := range append([]*group{r.targets}, r.peers...) {
		delete(g.rules, r)
	}
	for _, c := range r.conjs {
		e.retire(c)
	}
}

// retire deletes a conjunction. Its ID may be reused at once: all clauses that have it are compiled again, and sent to the switch
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

// evaluate activates or deactivates the conjunction: without a target on this node, or without a peer, it would match nothing.
func (e *Engine) evaluate(c *conj) {
	active := len(c.targets.pods) > 0 && (c.rule.anyPeer || len(c.rule.blocks) > 0 || c.admitsNodes())
	for s := range c.peers {
		active = active || len(c.targets.pods) > 0 && len(s.pods) > 0
	}
	if active != c.active {
		e.activate(c, active)
	}
}

// activate sets whether the conjunction is compiled.
func (e *Engine) activate(c *conj, active bool) {
	if c.active == active {
		return
	}
	c.active = active
	e.recent.add(c)
	e.revokes = e.revokes || c.rule.action == Pass || active == (c.rule.action == Deny)
	if c.rule.level == NetworkPolicy {
		e.buckets[c.rule.direction].markChanged(c)
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

// touchConj marks all clauses that have the conjunction.
func (e *Engine) touchConj(c *conj) {
	e.touch(Clause{Kind: Outcome, ID: c.id})
	e.touchSet(c.targets, c.rule.direction)
	for s := range c.peers {
		e.touchSet(s, c.rule.direction)
	}
	for _, b := range c.rule.blocks {
		e.touchBlock(b, c.rule.direction)
	}
	for _, p := range c.ports {
		e.touch(Clause{Kind: Port, PortMatch: p})
	}
	if c.unlimited() {
		e.touch(Clause{Kind: Anything})
	}
}

// level returns the level on which the conjunction is compiled.
func (c *conj) level() Level { return c.rule.level + c.bucket }

// count adjusts the number of active conjunctions of a set.
func (c *conj) count(s *podSet) {
	if c.active {
		s.active[c.rule.action]++
	} else {
		s.active[c.rule.action]--
	}
}

// enlist adds a conjunction to the users of a key, or removes it.
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
