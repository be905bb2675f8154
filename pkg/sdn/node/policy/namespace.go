package policy

import (
	"maps"

	"k8s.io/apimachinery/pkg/labels"
)

// namespace is a namespace, with the groups that look at its pods.
type namespace struct {
	name    string
	labels  labels.Set
	known   bool // SetNamespace has been called
	isHost  bool // the namespace represents the host networks of all nodes
	vnid    uint32
	pods    map[*pod]struct{}
	byLabel index[*pod]
	groups  map[*group]struct{}
	byWant  index[*group]
}

// SetNamespace makes the namespace known, or changes its labels.
func (e *Engine) SetNamespace(name string, set map[string]string) {
	ns := e.namespace(name)
	if ns.known && maps.Equal(ns.labels, set) {
		return
	}
	e.label(ns, set, true)
}

// DeleteNamespace forgets the labels. Its pods are forgotten one by one.
func (e *Engine) DeleteNamespace(name string) {
	ns := e.namespace(name)
	e.label(ns, nil, false)
	e.forget(ns)
}

// label gives a namespace its labels, known or not.
func (e *Engine) label(ns *namespace, set map[string]string, known bool) {
	if ns.known {
		for _, l := range labelsOf(ns.labels) {
			e.byLabel.remove(l, ns)
		}
	}
	ns.labels, ns.known = set, known
	if known {
		for _, l := range labelsOf(set) {
			e.byLabel.add(l, ns)
		}
	}
	e.reselect(ns)
	e.considerFlipped()
}

// SetVNID says which VNID the pods of the namespace have; 0 is none of its own.
func (e *Engine) SetVNID(name string, vnid uint32) {
	ns := e.namespace(name)
	defer e.forget(ns)
	old := ns.vnid
	if old == vnid {
		return
	}
	changed := []*namespace{e.owner(old), e.owner(vnid)}
	if delete(e.holders[old], ns); len(e.holders[old]) == 0 {
		delete(e.holders, old)
	}
	if ns.vnid = vnid; vnid != 0 {
		if e.holders[vnid] == nil {
			e.holders[vnid] = map[*namespace]struct{}{}
		}
		e.holders[vnid][ns] = struct{}{}
	}
	for _, owner := range append(changed, e.owner(old), e.owner(vnid)) {
		if owner != nil {
			e.touchTenant(owner)
		}
	}
	for _, v := range []uint32{old, vnid} {
		if v != 0 {
			e.touch(Piece{Kind: Tenant, VNID: v})
		}
	}
}

// owner is the namespace that has the VNID and shares it with none, or nil.
func (e *Engine) owner(vnid uint32) *namespace {
	if len(e.holders[vnid]) == 1 {
		for ns := range e.holders[vnid] {
			return ns
		}
	}
	return nil
}

// ownVNID says whether a VNID means this namespace and no other.
func (e *Engine) ownVNID(ns *namespace) bool { return e.owner(ns.vnid) == ns }

// touchTenant is for a namespace that is now, or was, matched by its VNID: its addresses are not, or are.
func (e *Engine) touchTenant(ns *namespace) {
	for g := range ns.groups {
		if !g.whole() || g.local || !g.set(0).used() {
			continue
		}
		e.recent.addPeers(g.set(0))
		for p := range ns.pods {
			e.touchPod(g.set(0), p)
		}
	}
}

// namespace returns the namespace, known or not.
func (e *Engine) namespace(name string) *namespace {
	ns := e.namespaces[name]
	if ns == nil {
		ns = &namespace{
			name: name, isHost: e.nodes.isNamespace(name), pods: map[*pod]struct{}{}, byLabel: index[*pod]{},
			groups: map[*group]struct{}{}, byWant: index[*group]{},
		}
		e.namespaces[name] = ns
	}
	return ns
}

// forget removes a namespace of which nothing is left.
func (e *Engine) forget(ns *namespace) {
	if !ns.known && ns.vnid == 0 && len(ns.pods) == 0 && len(ns.groups) == 0 {
		delete(e.namespaces, ns.name)
	}
}
