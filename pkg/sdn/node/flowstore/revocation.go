package flowstore

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// Revocation describes which connections are no longer valid after an update. The store flushes them when the datapath uses the flows of this update and of
// all earlier ones, or the switch has rejected them.
type Revocation struct {
	Permission bool         // something that was allowed may be denied: all connections are evaluated
	Addrs      []netip.Addr // of deleted pods: their connections are flushed with the next evaluation, or after addrInterval
}

// An Evaluator is called before the connections are listed, and returns the function that reports whether a connection is no longer valid; nil: all are
// valid. restarted is set for the first evaluation of an agent, before which anything may have been revoked. The store calls both functions without locks.
type Evaluator func(restarted bool) (invalid func(ovs.Connection) bool)

// EvaluateConnections adds an evaluator of the connections in the zones. A connection is flushed if one of the evaluators of its zone reports it. It is
// called before Run; without an evaluator the store flushes nothing.
func (s *Store) EvaluateConnections(zones ovs.Zones, e Evaluator) {
	s.flusher.mu.Lock()
	defer s.flusher.mu.Unlock()
	s.flusher.evaluators = append(s.flusher.evaluators, zonesEvaluator{zones, e})
}

// zonesEvaluator is the evaluator of the connections in the zones.
type zonesEvaluator struct {
	zones     ovs.Zones
	evaluator Evaluator
}

// allZones returns the zones of the evaluators, and those between them.
func allZones(evaluators []zonesEvaluator) ovs.Zones {
	all := evaluators[0].zones
	for _, e := range evaluators[1:] {
		all = ovs.Zones{First: min(all.First, e.zones.First), Last: max(all.Last, e.zones.Last)}
	}
	return all
}

// invalidOf returns the function that reports whether an evaluator of a connection's zone reports it; nil: none reports any.
func invalidOf(evaluators []zonesEvaluator, restarted bool) func(ovs.Connection) bool {
	type part struct {
		zones   ovs.Zones
		invalid func(ovs.Connection) bool
	}
	var parts []part
	for _, e := range evaluators {
		if invalid := e.evaluator(restarted); invalid != nil {
			parts = append(parts, part{e.zones, invalid})
		}
	}
	if len(parts) == 0 {
		return nil
	}
	return func(c ovs.Connection) bool {
		return slices.ContainsFunc(parts, func(p part) bool { return p.zones.Contains(c.Zone) && p.invalid(c) })
	}
}

// Flushed returns the number of evaluations that have ended, and of connections that were flushed.
func (s *Store) Flushed() (evaluations, connections int) {
	s.flusher.mu.Lock()
	defer s.flusher.mu.Unlock()
	return s.flusher.evaluations, s.flusher.connections
}

// revocations are those of several updates.
type revocations struct {
	restarted  bool // a previous agent may have failed to flush connections
	permission bool
	addrs      map[netip.Addr]struct{}
}

func (r *revocations) add(more Revocation) {
	r.permission = r.permission || more.Permission
	if r.addrs == nil && len(more.Addrs) > 0 {
		r.addrs = make(map[netip.Addr]struct{}, len(more.Addrs))
	}
	for _, a := range more.Addrs {
		r.addrs[a] = struct{}{}
	}
}

// merge adds others, which stay independent: the store and its flusher may both retain them.
func (r *revocations) merge(more revocations) {
	r.restarted = r.restarted || more.restarted
	r.permission = r.permission || more.permission
	if r.addrs == nil {
		r.addrs = maps.Clone(more.addrs)
		return
	}
	maps.Copy(r.addrs, more.addrs)
}

func (r *revocations) empty() bool { return !r.restarted && !r.permission && len(r.addrs) == 0 }
