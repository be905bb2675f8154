package policy

import (
	"maps"
	"net/netip"
	"slices"
)

// Loss is what connections that are kept may not outlive.
type Loss struct {
	Permission bool         // something may be forbidden now that was allowed
	Addrs      []netip.Addr // they had a pod, or a node, that is not there any more
}

// Lost returns what was lost since it was asked last. Who only comes to be allowed, or comes to this node, costs nobody anything.
func (e *Engine) Lost() Loss {
	lost := Loss{Permission: e.forbids, Addrs: slices.Collect(maps.Keys(e.lost))}
	e.forbids = false
	clear(e.lost)
	return lost
}

// lets says whether pods of the set may do something because they are in it. To pass a tier may mean to be allowed or to be denied.
func (s *set) lets() bool { return s.active[Allow] > 0 || s.active[Pass] > 0 }

// stops says whether pods of the set may not do something because they are in it.
func (s *set) stops() bool {
	return s.active[Deny] > 0 || s.active[Pass] > 0 || s.isolated(Ingress) || s.isolated(Egress)
}

// loses is for a pod that loses an address, by which rules have let it in.
func (e *Engine) loses(p *pod, addr netip.Addr) {
	e.lost[addr] = struct{}{}
	e.forbids = e.forbids || slices.ContainsFunc(p.sets.list, func(m membership) bool { return m.set.lets() })
}

// gains is for one that gets an address, by which rules may keep it out.
func (e *Engine) gains(p *pod) {
	e.forbids = e.forbids || slices.ContainsFunc(p.sets.list, func(m membership) bool { return m.set.stops() })
}
