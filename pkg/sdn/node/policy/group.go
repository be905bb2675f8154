package policy

import (
	"crypto/sha256"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// groupKey tells groups apart: two rules whose keys are the same share the group.
type groupKey struct {
	local     bool   // targets: only pods of this node
	namespace string // of this namespace
	selector  string // or, if namespace is "", of those with such labels
	pods      string
	port      portName
	within    prefixesHash // only pods with an address in the prefixes of the scope
}

// prefixesHash identifies a list of prefixes; the zero hash is of no list.
type prefixesHash [sha256.Size]byte

func hashPrefixes(list []netip.Prefix) prefixesHash {
	var text []byte
	for _, p := range list {
		text = append(p.AppendTo(text), '\n')
	}
	return sha256.Sum256(text)
}

// portName is a port by its name.
type portName struct {
	protocol corev1.Protocol
	name     string
}

// group is what a selector selects. The pods of a group of a named port are told apart by that port's number.
type group struct {
	scope
	wants      []label                 // a pod must have one of them
	exact      bool                    // and is selected when it does
	wantsOf    []label                 // a namespace must have one of them, if the group selects namespaces
	namespaces map[*namespace]struct{} // that it looks at
	sets       map[int32]*set          // by number of the port, those that have pods; the one of 0 where there is no port
	rules      map[*rule]struct{}      // that have the group
	refs       int
	hosts      int // number of host-network namespaces, each of which makes all nodes peers
}

// whole says whether the group is of entire namespaces.
func (g *group) whole() bool {
	return g.onPods.Empty() && !g.numbered() && g.within == prefixesHash{}
}

// numbered says whether the group is of a named port.
func (g *group) numbered() bool { return g.port != portName{} }

// matches says whether the pod's labels are those that the group wants.
func (g *group) matches(p *pod) bool { return g.onPods.Matches(labels.Set(p.Labels)) }

// takes says whether a pod with the right labels is selected.
func (g *group) takes(p *pod) bool {
	if g.local {
		return p.known && !p.Absent && p.local && g.has(p)
	}
	return p.known && !p.Absent && !p.Ended && g.has(p)
}

// numbers are the numbers that the pod gives the group's port.
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
func (g *group) has(p *pod) bool {
	return g.within == prefixesHash{} || slices.ContainsFunc(p.at, func(a *address) bool { return contains(g.prefixes, a.Addr) })
}

// selects says whether the group looks at the namespace's pods at all.
func (g *group) selects(ns *namespace) bool {
	if g.inNamespaces == nil {
		return g.namespace == ns.name
	}
	return ns.known && g.inNamespaces.Matches(ns.labels)
}

// use returns the group of a selector, to be released.
func (e *Engine) use(s scope) *group {
	if s.inNamespaces != nil {
		s.selector = "select " + s.inNamespaces.String()
	}
	s.pods = s.onPods.String()
	g := e.groups[s.groupKey]
	if g == nil {
		g = &group{
			scope: s, namespaces: map[*namespace]struct{}{},
			sets: map[int32]*set{}, rules: map[*rule]struct{}{},
		}
		g.wants, g.exact = wanted(s.onPods)
		if g.inNamespaces != nil {
			g.wantsOf, _ = wanted(g.inNamespaces)
		}
		e.groups[s.groupKey] = g
		if !g.numbered() {
			g.set(0)
		}
		e.fill(g)
	}
	g.refs++
	return g
}

// fill sorts the pods that are there into a new group.
func (e *Engine) fill(g *group) {
	if g.inNamespaces == nil {
		e.enter(g, e.namespace(g.namespace))
		return
	}
	for _, l := range g.wantsOf {
		e.selecting.add(l, g)
		for _, ns := range e.byLabel.all(l) {
			if _, is := ns.groups[g]; !is && g.selects(ns) {
				e.enter(g, ns)
			}
		}
	}
}

func (e *Engine) enter(g *group, ns *namespace) {
	had := g.admitsNodes()
	ns.take(g)
	for _, p := range ns.candidates(g) {
		e.resort(g, p, g.exact || g.matches(p))
	}
	e.touchWhole(g, ns)
	e.recent.addAll(g)
	if had != g.admitsNodes() {
		e.reconsiderNodes(g)
	}
}

func (e *Engine) exit(g *group, ns *namespace) {
	had := g.admitsNodes()
	ns.drop(g)
	for _, p := range ns.candidates(g) {
		e.resort(g, p, false)
	}
	e.touchWhole(g, ns)
	e.recent.addAll(g)
	if had != g.admitsNodes() {
		e.reconsiderNodes(g)
	}
}

func (ns *namespace) take(g *group) {
	ns.groups[g], g.namespaces[ns] = struct{}{}, struct{}{}
	g.lookAt(ns, 1)
	for _, l := range g.wants {
		ns.byWant.add(l, g)
	}
}

func (ns *namespace) drop(g *group) {
	delete(ns.groups, g)
	delete(g.namespaces, ns)
	g.lookAt(ns, -1)
	for _, l := range g.wants {
		ns.byWant.remove(l, g)
	}
}

func (e *Engine) touchWhole(g *group, ns *namespace) {
	if g.whole() && e.ownVNID(ns) {
		e.touch(Piece{Kind: Tenant, VNID: ns.vnid})
	}
}

// release gives a group back.
func (e *Engine) release(g *group) {
	if g.refs--; g.refs > 0 {
		return
	}
	delete(e.groups, g.groupKey)
	for _, l := range g.wantsOf {
		e.selecting.remove(l, g)
	}
	for _, s := range g.sets {
		for _, p := range s.pods {
			p.sets.remove(s)
		}
	}
	for ns := range g.namespaces {
		ns.drop(g)
		e.forget(ns)
	}
}

// reselect asks the groups that select the namespace, or may, what they think of it now.
func (e *Engine) reselect(ns *namespace) {
	concerned := map[*group]struct{}{}
	for g := range ns.groups {
		if g.inNamespaces != nil {
			concerned[g] = struct{}{}
		}
	}
	for _, l := range labelsOf(ns.labels) {
		for _, g := range e.selecting.all(l) {
			concerned[g] = struct{}{}
		}
	}
	for g := range concerned {
		_, is := ns.groups[g]
		if should := g.selects(ns); should && !is {
			e.enter(g, ns)
		} else if !should && is {
			e.exit(g, ns)
		}
	}
}

// resort puts the pod into the sets of the group where it belongs: none unless the labels match.
func (e *Engine) resort(g *group, p *pod, match bool) {
	match = match && g.takes(p)
	if !g.numbered() {
		e.place(g.set(0), p, match)
		return
	}
	var numbers []int32
	if match {
		numbers = g.numbers(p)
	}
	for n, s := range g.sets {
		e.place(s, p, slices.Contains(numbers, n))
	}
	for _, n := range numbers {
		e.place(g.set(n), p, true)
	}
}
