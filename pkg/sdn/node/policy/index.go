package policy

import (
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// index finds by a label what has it, or wants it: so that neither a pod nor a selector is held against all others.
type index[T comparable] map[label]*bag[T]

// bag holds each of its things once. They are gone through in the order in which they came, as long as none goes: that is how they lie
// in memory, which for many pods is several times as fast as the order of a map.
type bag[T comparable] struct {
	list  []T
	place map[T]int // in the list
}

func (b *bag[T]) add(v T) {
	if _, is := b.place[v]; !is {
		b.place[v] = len(b.list)
		b.list = append(b.list, v)
	}
}

func (b *bag[T]) remove(v T) {
	place, is := b.place[v]
	if !is {
		return
	}
	last := len(b.list) - 1
	b.list[place] = b.list[last]
	b.place[b.list[place]] = place
	clear(b.list[last:])
	b.list = b.list[:last]
	delete(b.place, v)
}

// label is one label of a pod or a namespace. The zero label stands for "any", and everybody has it.
type label struct{ key, value string }

func (x index[T]) add(l label, v T) {
	if x[l] == nil {
		x[l] = &bag[T]{place: map[T]int{}}
	}
	x[l].add(v)
}

func (x index[T]) remove(l label, v T) {
	if b := x[l]; b != nil {
		if b.remove(v); len(b.list) == 0 {
			delete(x, l)
		}
	}
}

func (x index[T]) all(l label) []T {
	if b := x[l]; b != nil {
		return b.list
	}
	return nil
}

// labelsOf are all labels under which something is found.
func labelsOf(set labels.Set) []label {
	all := []label{{}}
	for k, v := range set {
		all = append(all, label{k, v})
	}
	return all
}

// wanted are labels of which something must have one, or the selector does not select it; exact says that it does select all that have
// one.
func wanted(s labels.Selector) (one []label, exact bool) {
	requirements, _ := s.Requirements()
	for _, r := range requirements {
		switch r.Operator() {
		case selection.In, selection.Equals, selection.DoubleEquals:
			for v := range r.Values() {
				one = append(one, label{r.Key(), v})
			}
			return one, len(requirements) == 1
		}
	}
	return []label{{}}, s.Empty()
}

// candidates are the pods of the namespace that the group may select, some of them twice.
func (ns *namespace) candidates(g *group) []*pod {
	if len(g.wants) == 1 {
		return ns.byLabel.all(g.wants[0])
	}
	var all []*pod
	for _, l := range g.wants {
		all = append(all, ns.byLabel.all(l)...)
	}
	return all
}

// concerned are the groups that have the pod, or may want it.
func (p *pod) concerned() map[*group]struct{} {
	all := map[*group]struct{}{}
	for _, m := range p.sets.list {
		all[m.set.group] = struct{}{}
	}
	for _, l := range labelsOf(p.Labels) {
		for _, g := range p.namespace.byWant.all(l) {
			all[g] = struct{}{}
		}
	}
	return all
}
