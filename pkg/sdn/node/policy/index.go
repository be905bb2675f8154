package policy

import (
	"maps"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// index finds by a label what has it, or wants it: so that neither a pod nor a selector is held against all others.
type index[T comparable] map[label]map[T]struct{}

// label is one label of a pod. The zero label stands for "any", and every pod has it.
type label struct{ key, value string }

func (x index[T]) add(l label, v T) {
	if x[l] == nil {
		x[l] = map[T]struct{}{}
	}
	x[l][v] = struct{}{}
}

func (x index[T]) remove(l label, v T) {
	if delete(x[l], v); len(x[l]) == 0 {
		delete(x, l)
	}
}

// labelsOf are all labels under which a pod is found.
func labelsOf(set labels.Set) []label {
	all := []label{{}}
	for k, v := range set {
		all = append(all, label{k, v})
	}
	return all
}

// wanted are labels of which a pod must have one, or the selector does not select it.
func wanted(s labels.Selector) []label {
	requirements, _ := s.Requirements()
	for _, r := range requirements {
		switch r.Operator() {
		case selection.In, selection.Equals, selection.DoubleEquals:
			var all []label
			for v := range r.Values() {
				all = append(all, label{r.Key(), v})
			}
			return all
		}
	}
	return []label{{}}
}

// candidates are the pods of the namespace that the group may select.
func (ns *namespace) candidates(g *group) map[*pod]struct{} {
	if len(g.wants) == 1 {
		return ns.byLabel[g.wants[0]]
	}
	all := map[*pod]struct{}{}
	for _, l := range g.wants {
		maps.Copy(all, ns.byLabel[l])
	}
	return all
}

// concerned are the groups that have the pod, or may want it.
func (p *pod) concerned() map[*group]struct{} {
	all := map[*group]struct{}{}
	for s := range p.sets {
		all[s.group] = struct{}{}
	}
	for _, l := range labelsOf(p.Labels) {
		maps.Copy(all, p.namespace.byWant[l])
	}
	return all
}
