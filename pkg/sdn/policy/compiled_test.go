package policy

import (
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/test/testcluster"
)

// compiled evaluates packets by the engine's clauses, as a switch does.
type compiled struct {
	engine   *Engine
	parts    map[Clause][]Part
	outcomes map[uint32]Action
	levels   map[uint32]Level
	local    map[PodKey]bool

	isolated map[PodKey][2]bool // in the flows of pods; other pods are isolated as the engine reports
}

func newCompiled() *compiled {
	return &compiled{engine: New(testcluster.HostNetwork()...), parts: map[Clause][]Part{}, outcomes: map[uint32]Action{}, levels: map[uint32]Level{}, local: map[PodKey]bool{}}
}

// drain compiles the clauses that the engine reports as changed, and no others.
func (c *compiled) drain() { c.compile(c.engine.Drain()) }

func (c *compiled) compile(clauses []Clause) {
	for _, p := range clauses {
		c.compileClause(p)()
	}
}

// compileClause compiles the clause, and returns the function that replaces its previous flows.
func (c *compiled) compileClause(p Clause) func() {
	if p.Kind == Outcome {
		_, level, action, ok := c.engine.Outcome(p)
		return func() {
			if ok {
				c.outcomes[p.ID], c.levels[p.ID] = action, level
			} else {
				delete(c.outcomes, p.ID)
				delete(c.levels, p.ID)
			}
		}
	}
	parts := cloneParts(c.engine.Compile(p))
	return func() {
		if len(parts) > 0 {
			c.parts[p] = parts
		} else {
			delete(c.parts, p)
		}
	}
}

// cloneParts copies the parts, which the engine overwrites at the next call of Compile.
func cloneParts(parts []Part) []Part {
	parts = slices.Clone(parts)
	for i := range parts {
		parts[i].Conj = slices.Clone(parts[i].Conj)
	}
	return parts
}

// matches are the conjunctions that a packet matches.
type matches map[Conj]bool

func (c *compiled) match(m matches, d Direction, p Clause) {
	for _, part := range c.parts[p] {
		if part.Direction == d {
			for _, conj := range part.Conj {
				m[conj] = true
			}
		}
	}
}

// between returns the matches of the two ends of a connection. target is a pod of the node.
func (c *compiled) between(d Direction, target PodKey, peer netip.Addr, vnid uint32) matches {
	m := matches{}
	c.match(m, d, Clause{Kind: Target, Pod: target})
	c.matchPrefixes(m, d, Peer, peer)
	c.match(m, d, Clause{Kind: Anything})
	if d == Ingress {
		c.match(m, d, Clause{Kind: Tenant, VNID: vnid})
	}
	return m
}

// matchNode adds the matches of a peer that is a node, by its other address.
func (c *compiled) matchNode(m matches, other netip.Addr) {
	c.match(m, Ingress, Clause{Kind: Nodes})
	c.matchPrefixes(m, Ingress, NodeBlock, other)
}

func (c *compiled) matchPrefixes(m matches, d Direction, kind Kind, addr netip.Addr) {
	for bits := range addr.BitLen() + 1 {
		p, _ := addr.Prefix(bits)
		c.match(m, d, Clause{Kind: kind, Prefix: p})
	}
}

// verdict adds the matches of the port, and reports whether the packet is allowed.
func (c *compiled) verdict(d Direction, target PodKey, ends matches, protocol corev1.Protocol, port uint16) bool {
	m := maps.Clone(ends)
	if protocol != "" {
		for bits := range 17 {
			mask := uint16(0xffff) << (16 - bits)
			c.match(m, d, Clause{Kind: Port, PortMatch: PortMatch{protocol, port & mask, mask}})
		}
	}
	return c.decide(d, target, m)
}

// decide evaluates the rules from the highest level down. Action Pass skips the other rules of the tier.
func (c *compiled) decide(d Direction, target PodKey, m matches) bool {
	byLevel := map[Level]Action{}
	count := map[uint32]uint8{}
	for conj := range m {
		if count[conj.ID]++; count[conj.ID] == conj.N {
			byLevel[c.levels[conj.ID]] = c.outcomes[conj.ID]
		}
	}
	isolated, sent := c.isolated[target]
	if !sent {
		isolated[Ingress], isolated[Egress] = c.engine.Isolated(target)
	}
	if isolated[d] {
		byLevel[Isolation] = Deny
	}
	below := Highest + 1
	for _, level := range slices.Backward(slices.Sorted(maps.Keys(byLevel))) {
		switch {
		case level >= below:
		case byLevel[level] == Pass && level.IsAdmin():
			below = lowestAdmin
		case byLevel[level] == Pass:
			return true
		default:
			return byLevel[level] == Allow
		}
	}
	return true
}
