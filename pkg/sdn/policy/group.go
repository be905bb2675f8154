package policy

import (
	"crypto/sha256"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// groupKey identifies a group: rules with equal keys share one.
type groupKey struct {
	local     bool   // only pods of this node: targets
	namespace string // only pods of this namespace
	selector  string // or, if namespace is "", of the namespaces that it selects
	pods      string
	port      portName
	within    prefixesHash // only pods with an address in the prefixes of the scope
}

// prefixesHash identifies a list of prefixes; "" is no list.
type prefixesHash string

func hashPrefixes(list []netip.Prefix) prefixesHash {
	var text []byte
	for _, p := range list {
		text = append(p.AppendTo(text), '\n')
	}
	sum := sha256.Sum256(text)
	return prefixesHash(sum[:])
}

// portName identifies a named port.
type portName struct {
	protocol corev1.Protocol
	name     string
}

// group has the pods that a selector selects. A group of a named port distinguishes them by the number of that port.
type group struct {
	scope
	podLabels       []label                 // a pod must have one of these labels
	exact           bool                    // one of these labels suffices
	namespaceLabels []label                 // a namespace must have one of these labels, if the group selects namespaces
	namespaces      map[*namespace]struct{} // that it selects
	sets            map[int32]*podSet       // by number of the port, those that have pods; the one of 0 where there is no port
	rules           map[*rule]struct{}      // of a named port, that have the group
	refs            int
	hosts           int // number of host-network namespaces, each of which makes all nodes peers
}

// whole reports whether the group selects all pods of its namespaces.
func (g *group) whole() bool {
	return g.onPods.Empty() && !g.numbered() && g.within == ""
}

// numbered reports whether the group is of a named port.
func (g *group) numbered() bool { return g.port != portName{} }

// matches reports whether the selector matches the pod's labels.
func (g *group) matches(p *pod) bool { return g.onPods.Matches(labels.Set(p.Labels)) }

// accepts reports whether a pod with matching labels is selected.
func (g *group) accepts(p *pod) bool {
	if g.local {
		return p.known && !p.Absent && p.local && g.hasAddr(p)
	}
	return p.known && !p.Absent && !p.Ended && g.hasAddr(p)
}

// numbers returns the pod's numbers for the group's port name.
func (g *group) numbers(p *pod) []int32 {
	var numbers []int32
	for _, port := range p.Ports {
		if port.Name == g.port.name && port.Protocol == g.port.protocol {
			numbers = append(numbers, int32(port.Number))
		}
	}
	return numbers
}

// has reports whether the pod has an address within the group's prefixes.
func (g *group) hasAddr(p *pod) bool {
	return g.within == "" || slices.ContainsFunc(p.at, func(a *address) bool { return contains(g.prefixes, a.Addr) })
}

// selects reports whether the group may select pods of the namespace.
func (g *group) selects(ns *namespace) bool {
	if g.inNamespaces == nil {
		return g.namespace == ns.name
	}
	return ns.known && g.inNamespaces.Matches(ns.labels)
}

// acquireGroup returns the group of a scope, and creates it if it does not exist. The caller must release it.
func (e *Engine) acquireGroup(s scope) *group {
	if s.inNamespaces != nil {
		s.selector = "select " + s.inNamespaces.String()
	}
	if s.pods == "" {
		s.pods = s.onPods.String()
	}
	g := e.groups[s.groupKey]
	if g == nil {
		g = &group{
			scope: s, namespaces: map[*namespace]struct{}{},
			sets: map[int32]*podSet{}, rules: map[*rule]struct{}{},
		}
		g.podLabels, g.exact = requiredLabels(s.onPods)
		if g.inNamespaces != nil {
			g.namespaceLabels, _ = requiredLabels(g.inNamespaces)
		}
		e.groups[s.groupKey] = g
		if !g.numbered() {
			g.podSet(0)
		}
		e.fill(g)
	}
	g.refs++
	return g
}

// fill adds the existing pods to a new group.
func (e *Engine) fill(g *group) {
	if g.inNamespaces == nil {
		e.setNamespace(g, e.namespace(g.namespace), true)
		return
	}
	for _, l := range g.namespaceLabels {
		e.selecting.add(l, g)
		for _, ns := range e.byLabel.all(l) {
			if _, is := ns.groups[g]; !is && g.selects(ns) {
				e.setNamespace(g, ns, true)
			}
		}
	}
}

// setNamespace adds a namespace to those that the group selects, or removes it.
func (e *Engine) setNamespace(g *group, ns *namespace, selected bool) {
	had := g.admitsNodes()
	if selected {
		ns.addGroup(g)
	} else {
		ns.removeGroup(g)
	}
	for _, p := range ns.candidates(g) {
		e.reassign(g, p, selected && (g.exact || g.matches(p)))
	}
	e.touchWhole(g, ns)
	e.recent.addAll(g)
	if had != g.admitsNodes() {
		e.reconsiderNodes(g)
	}
}

func (ns *namespace) addGroup(g *group) {
	ns.groups[g], g.namespaces[ns] = struct{}{}, struct{}{}
	g.countHostNetwork(ns, 1)
	for _, l := range g.podLabels {
		ns.byPodLabel.add(l, g)
	}
}

func (ns *namespace) removeGroup(g *group) {
	delete(ns.groups, g)
	delete(g.namespaces, ns)
	g.countHostNetwork(ns, -1)
	for _, l := range g.podLabels {
		ns.byPodLabel.remove(l, g)
	}
}

func (e *Engine) touchWhole(g *group, ns *namespace) {
	if g.whole() && e.ownVNID(ns) {
		e.touch(Clause{Kind: Tenant, VNID: ns.vnid})
	}
}

// releaseGroup drops a reference to a group, and deletes the group with the last one.
func (e *Engine) releaseGroup(g *group) {
	if g.refs--; g.refs > 0 {
		return
	}
	delete(e.groups, g.groupKey)
	for _, l := range g.namespaceLabels {
		e.selecting.remove(l, g)
	}
	for _, s := range g.sets {
		for _, p := range s.pods {
			p.sets.remove(s)
		}
	}
	for ns := range g.namespaces {
		ns.removeGroup(g)
		e.deleteUnused(ns)
	}
}

// reselect evaluates again which groups select the namespace.
func (e *Engine) reselect(ns *namespace) {
	affected := map[*group]struct{}{}
	for g := range ns.groups {
		if g.inNamespaces != nil {
			affected[g] = struct{}{}
		}
	}
	for _, l := range labelsOf(ns.labels) {
		for _, g := range e.selecting.all(l) {
			affected[g] = struct{}{}
		}
	}
	for g := range affected {
		_, is := ns.groups[g]
		if selected := g.selects(ns); selected != is {
			e.setNamespace(g, ns, selected)
		}
	}
}

// reassign moves the pod into the right sets of the group: none unless match is true.
func (e *Engine) reassign(g *group, p *pod, match bool) {
	match = match && g.accepts(p)
	if !g.numbered() {
		e.setMember(g.podSet(0), p, match)
		return
	}
	var numbers []int32
	if match {
		numbers = g.numbers(p)
	}
	for n, s := range g.sets {
		e.setMember(s, p, slices.Contains(numbers, n))
	}
	for _, n := range numbers {
		e.setMember(g.podSet(n), p, true)
	}
}
