package policy

import (
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// index finds objects that have a label, or selectors that require it, so that neither is compared with all others.
type index[T comparable] map[label]*bag[T]

// bag is a set that iterates in insertion order while nothing is removed. That is the order in memory: for many pods several times as fast
// as the order of a map.
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

// label is one label of a pod or a namespace. The zero label stands for "any": every object has it.
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

// labelsOf returns the labels by which an index finds an object: all that it has, and the zero label.
func labelsOf(set labels.Set) []label {
	all := []label{{}}
	for k, v := range set {
		all = append(all, label{k, v})
	}
	return all
}

// requiredLabels returns labels of which an object must have one to be selected. exact reports that one of them suffices.
func requiredLabels(s labels.Selector) (one []label, exact bool) {
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

// candidates returns the pods of the namespace that the group may select, possibly with duplicates.
func (ns *namespace) candidates(g *group) []*pod {
	if len(g.podLabels) == 1 {
		return ns.byLabel.all(g.podLabels[0])
	}
	var all []*pod
	for _, l := range g.podLabels {
		all = append(all, ns.byLabel.all(l)...)
	}
	return all
}

// affectedGroups returns the groups that select the pod, or may select it.
func (p *pod) affectedGroups() map[*group]struct{} {
	all := map[*group]struct{}{}
	for _, m := range p.sets.list {
		all[m.set.group] = struct{}{}
	}
	for _, l := range labelsOf(p.Labels) {
		for _, g := range p.namespace.byPodLabel.all(l) {
			all[g] = struct{}{}
		}
	}
	return all
}
