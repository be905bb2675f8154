package native

import (
	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

// wantedGroups are the groups of a comparison. Each is compiled when it is compared, and when it is sent.
type wantedGroups struct {
	groups []ovs.Group
	byID   map[uint32]int // index in groups
	states []wantedState  // by index in groups
	err    error          // the first of a group that can't be compiled
}

// newWantedGroups validates the groups. Two groups with the same ID are an error (*ovs.GroupError).
func newWantedGroups(groups []ovs.Group) (*wantedGroups, error) {
	w := &wantedGroups{groups: groups, byID: make(map[uint32]int, len(groups)), states: make([]wantedState, len(groups))}
	for i, g := range groups {
		text, err := ovs.GroupText(g)
		if err != nil {
			return nil, err
		}
		if _, twice := w.byID[g.ID]; twice {
			return nil, &ovs.GroupError{ID: g.ID, Group: text, Reason: ovs.ReasonTwice}
		}
		w.byID[g.ID] = i
	}
	return w, nil
}

// compare compares a group of the switch with the wanted one of the same ID. wanted is false if there is none.
func (w *wantedGroups) compare(is *openflow.Group) (found wantedState, wanted bool) {
	i, wanted := w.byID[is.ID]
	if !wanted || w.err != nil {
		return isMissing, wanted
	}
	want, err := ovs.CompileGroup(w.groups[i])
	if err != nil {
		w.err = err
		return isMissing, true
	}
	w.states[i] = isAltered
	if sameGroup(is, want) {
		w.states[i] = isSame
	}
	return w.states[i], true
}

// sameGroup reports whether the groups are equivalent. A group without canonical form was not written by this package.
func sameGroup(is, want *openflow.Group) bool {
	a, err := is.Canonical()
	if err != nil {
		return false
	}
	b, err := want.Canonical()
	return err == nil && a == b
}

// steps returns the settings of groups that are not on the switch, or differ there, and their numbers.
func (w *wantedGroups) steps() (steps []step, missing, altered int) {
	return stepsOf(w.states, func(i int) step { return step{group: &w.groups[i]} })
}

// stepsOf returns the steps of wanted elements that are not on the switch, or differ there, and their numbers.
func stepsOf(states []wantedState, of func(i int) step) (steps []step, missing, altered int) {
	for _, state := range states {
		switch state {
		case isMissing:
			missing++
		case isAltered:
			altered++
		}
	}
	steps = make([]step, 0, missing+altered)
	for i, state := range states {
		if state != isSame {
			steps = append(steps, of(i))
		}
	}
	return steps, missing, altered
}
