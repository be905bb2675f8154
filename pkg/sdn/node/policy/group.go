package policy

import (
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
	within    netip.Prefix
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
	namespaces map[*namespace]struct{} // that it looks at
	sets       map[int32]*set          // by number of the port; 0 without one
	rules      map[*rule]struct{}      // that have the group
	refs       int
}

// set are pods that are alike for the rules of a group.
type set struct {
	group    *group
	number   int32
	pods     map[*pod]struct{}
	users    map[*conj]struct{}
	isolates [2]int // policies that isolate these pods, by direction
}

// whole says whether the group is of entire namespaces.
func (g *group) whole() bool {
	return g.onPods.Empty() && g.port == portName{} && !g.within.IsValid()
}

// set returns the set of a number, made when it is missing. Rules hear of it when it has pods (filled).
func (g *group) set(number int32) *set {
	s := g.sets[number]
	if s == nil {
		s = &set{group: g, number: number, pods: map[*pod]struct{}{}, users: map[*conj]struct{}{}}
		g.sets[number] = s
	}
	return s
}

// used says whether a rule in force has the set.
func (s *set) used() bool {
	for c := range s.users {
		if c.active {
			return true
		}
	}
	return s.isolates[Ingress] > 0 || s.isolates[Egress] > 0
}

// numbers are the sets of the group that the pod belongs to: none when the group does not select it.
func (g *group) numbers(p *pod) []int32 {
	switch {
	case !p.known, p.Absent, g.local && !p.local, !g.onPods.Matches(labels.Set(p.Labels)), !g.has(p):
		return nil
	case g.port == portName{}:
		return []int32{0}
	}
	var numbers []int32
	for _, port := range p.Ports {
		if port.Name == g.port.name && port.Protocol == g.port.protocol {
			numbers = append(numbers, int32(port.Number))
		}
	}
	return numbers
}

// has says whether the pod has an address within the group's block.
func (g *group) has(p *pod) bool {
	return !g.within.IsValid() || slices.ContainsFunc(p.addrs(), g.within.Contains)
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
			scope: s, wants: wanted(s.onPods), namespaces: map[*namespace]struct{}{},
			sets: map[int32]*set{}, rules: map[*rule]struct{}{},
		}
		e.groups[s.groupKey] = g
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
	e.selecting[g] = struct{}{}
	for _, ns := range e.namespaces {
		if g.selects(ns) {
			e.enter(g, ns)
		}
	}
}

func (e *Engine) enter(g *group, ns *namespace) {
	ns.take(g)
	if g.whole() {
		g.set(0)
	}
	for p := range ns.candidates(g) {
		e.resort(g, p)
	}
	e.touchWhole(g, ns)
}

func (e *Engine) exit(g *group, ns *namespace) {
	ns.drop(g)
	for p := range ns.candidates(g) {
		e.resort(g, p)
	}
	e.touchWhole(g, ns)
}

func (ns *namespace) take(g *group) {
	ns.groups[g], g.namespaces[ns] = struct{}{}, struct{}{}
	for _, l := range g.wants {
		ns.byWant.add(l, g)
	}
}

func (ns *namespace) drop(g *group) {
	delete(ns.groups, g)
	delete(g.namespaces, ns)
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
	delete(e.selecting, g)
	for _, s := range g.sets {
		for p := range s.pods {
			delete(p.sets, s)
		}
	}
	for ns := range g.namespaces {
		ns.drop(g)
		e.forget(ns)
	}
}

// reselect asks the groups that select namespaces what they think of this one now.
func (e *Engine) reselect(ns *namespace) {
	for g := range e.selecting {
		_, is := ns.groups[g]
		if should := g.selects(ns); should && !is {
			e.enter(g, ns)
		} else if !should && is {
			e.exit(g, ns)
		}
	}
}

// resort puts the pod into the sets of the group where it belongs.
func (e *Engine) resort(g *group, p *pod) {
	var numbers []int32
	if _, ok := p.namespace.groups[g]; ok {
		numbers = g.numbers(p)
	}
	for n, s := range g.sets {
		if _, is := p.sets[s]; is && !slices.Contains(numbers, n) {
			e.leave(s, p)
		}
	}
	for _, n := range numbers {
		s := g.set(n)
		if _, is := p.sets[s]; !is {
			e.join(s, p)
		}
	}
}

func (e *Engine) join(s *set, p *pod) {
	p.sets[s] = struct{}{}
	s.pods[p] = struct{}{}
	if len(s.pods) == 1 {
		e.filled(s)
	}
	e.touchPod(s, p)
}

func (e *Engine) leave(s *set, p *pod) {
	e.touchPod(s, p)
	delete(p.sets, s)
	delete(s.pods, p)
	if len(s.pods) == 0 {
		e.filled(s)
	}
}

// filled is for a set that is no longer empty, or empty now.
func (e *Engine) filled(s *set) {
	for r := range s.group.rules {
		e.number(r, s)
	}
	for c := range s.users {
		e.judge(c)
	}
}

// touchPod marks what a set makes of a pod.
func (e *Engine) touchPod(s *set, p *pod) {
	switch {
	case !s.used():
	case s.group.local:
		e.touch(Piece{Kind: Target, Pod: p.PodKey})
	default:
		for _, a := range p.addrs() {
			e.touchAddr(a)
		}
	}
}
