package policy

import (
	"maps"
	"net/netip"
	"slices"
)

// Revocation describes what established connections lose by changes of the engine.
type Revocation struct {
	Permission bool         // something that was allowed may be denied now
	Addrs      []netip.Addr // addresses that a pod or a node no longer has
}

// Revoked returns what was revoked since the previous call. New permissions, and pods that are added to this node, revoke nothing.
func (e *Engine) Revoked() Revocation {
	revoked := Revocation{Permission: e.revokes, Addrs: slices.Collect(maps.Keys(e.revokedAddrs))}
	e.revokes = false
	clear(e.revokedAddrs)
	return revoked
}

// allows reports whether membership in the set may allow something. To pass a tier may mean to be allowed or to be denied.
func (s *podSet) allows() bool { return s.active[Allow] > 0 || s.active[Pass] > 0 }

// denies reports whether membership in the set may deny something.
func (s *podSet) denies() bool {
	return s.active[Deny] > 0 || s.active[Pass] > 0 || s.isolated(Ingress) || s.isolated(Egress)
}

// removedAddr records that a pod no longer has an address, by which rules may have allowed it.
func (e *Engine) removedAddr(p *pod, addr netip.Addr) {
	e.revokedAddrs[addr] = struct{}{}
	e.revokes = e.revokes || slices.ContainsFunc(p.sets.list, func(m membership) bool { return m.set.allows() })
}

// addedAddr records that a pod has a new address, by which rules may deny it.
func (e *Engine) addedAddr(p *pod) {
	e.revokes = e.revokes || slices.ContainsFunc(p.sets.list, func(m membership) bool { return m.set.denies() })
}
