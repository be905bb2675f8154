package policy

import (
	"maps"

	"k8s.io/apimachinery/pkg/labels"
)

// namespace is a namespace, with the groups that select its pods.
type namespace struct {
	name       string
	labels     labels.Set
	known      bool // SetNamespace has been called
	isHost     bool // the namespace represents the host networks of all nodes
	vnid       uint32
	pods       map[*pod]struct{}
	byLabel    index[*pod]
	groups     map[*group]struct{}
	byPodLabel index[*group]
}

// SetNamespace adds the namespace, or changes its labels.
func (e *Engine) SetNamespace(name string, set map[string]string) {
	ns := e.namespace(name)
	if ns.known && maps.Equal(ns.labels, set) {
		return
	}
	e.label(ns, set, true)
}

// DeleteNamespace deletes the labels of the namespace. Its pods are deleted separately.
func (e *Engine) DeleteNamespace(name string) {
	ns := e.namespace(name)
	e.label(ns, nil, false)
	e.deleteUnused(ns)
}

// label sets the labels of a namespace, and whether they are known.
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
	e.rebuildLocalChanged()
}

// SetVNID sets the VNID of the pods of the namespace; 0 for none of its own.
func (e *Engine) SetVNID(name string, vnid uint32) {
	ns := e.namespace(name)
	defer e.deleteUnused(ns)
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
			e.touch(Clause{Kind: Tenant, VNID: v})
		}
	}
}

// owner returns the only namespace with the VNID, or nil if there are none or several.
func (e *Engine) owner(vnid uint32) *namespace {
	if len(e.holders[vnid]) == 1 {
		for ns := range e.holders[vnid] {
			return ns
		}
	}
	return nil
}

// ownVNID reports whether the namespace is the only one with its VNID.
func (e *Engine) ownVNID(ns *namespace) bool { return e.owner(ns.vnid) == ns }

// touchTenant marks the addresses of a namespace as changed, which rules now match by its VNID, or no longer.
func (e *Engine) touchTenant(ns *namespace) {
	for g := range ns.groups {
		if !g.whole() || g.local || !g.podSet(0).used() {
			continue
		}
		e.recent.addPeers(g.podSet(0))
		for p := range ns.pods {
			e.touchPod(g.podSet(0), p)
		}
	}
}

// namespace returns the namespace, and creates it if it does not exist.
func (e *Engine) namespace(name string) *namespace {
	ns := e.namespaces[name]
	if ns == nil {
		ns = &namespace{
			name: name, isHost: e.nodes.isNamespace(name), pods: map[*pod]struct{}{}, byLabel: index[*pod]{},
			groups: map[*group]struct{}{}, byPodLabel: index[*group]{},
		}
		e.namespaces[name] = ns
	}
	return ns
}

// deleteUnused deletes a namespace that has no state.
func (e *Engine) deleteUnused(ns *namespace) {
	if !ns.known && ns.vnid == 0 && len(ns.pods) == 0 && len(ns.groups) == 0 {
		delete(e.namespaces, ns.name)
	}
}
