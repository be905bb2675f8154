package store

import (
	"cmp"
	"maps"
	"slices"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// table merges the owners' states, key by key, and remembers what the switch has. Only the writer touches it.
type table map[ovs.Key]*entry

// An entry is one flow key with those who want it.
type entry struct {
	owners   map[pipeline.Owner]contribution
	onSwitch form      // the zero form when the switch does not have the flow
	flow     *ovs.Flow // of that form
}

// form is a flow as compiled from all its owners, but for the key.
type form struct {
	actions     string
	idleTimeout int
	cookie      uint64
}

func (t table) entry(key ovs.Key) *entry {
	e := t[key]
	if e == nil {
		e = &entry{owners: make(map[pipeline.Owner]contribution, 1)}
		t[key] = e
	}
	return e
}

// add adds the owner's contribution.
func (t table) add(owner pipeline.Owner, key ovs.Key, c contribution) {
	t.entry(key).owners[owner] = c
}

// remove removes the owner's contribution.
func (t table) remove(owner pipeline.Owner, key ovs.Key) {
	if e := t[key]; e != nil {
		delete(e.owners, owner)
		t.collect(key)
	}
}

// collect forgets an entry that nobody wants and the switch does not have.
func (t table) collect(key ovs.Key) {
	if e := t[key]; e != nil && len(e.owners) == 0 && e.onSwitch == (form{}) {
		delete(t, key)
	}
}

// rivals returns the owners of the key that want something incompatible with the body, in order.
func (t table) rivals(key ovs.Key, owner pipeline.Owner, b body) []pipeline.Owner {
	e := t[key]
	if e == nil {
		return nil
	}
	var rivals []pipeline.Owner
	for other, c := range e.owners {
		if other != owner && !c.body.compatible(b) {
			rivals = append(rivals, other)
		}
	}
	slices.SortFunc(rivals, compareOwners)
	return rivals
}

func compareOwners(a, b pipeline.Owner) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Key, b.Key))
}

// compile returns the flow that the owners together want, nil when there are none.
func (e *entry) compile() (*ovs.Flow, form) {
	owners := slices.SortedFunc(maps.Keys(e.owners), compareOwners)
	if len(owners) == 0 {
		return nil, form{}
	}
	first := e.owners[owners[0]]
	flow := *first.flow // the owner's stays as it is
	flow.Cookie = owners[0].Cookie()
	if len(owners) > 1 {
		flow.Cookie = pipeline.SharedCookie()
	}
	want := form{actions: first.body.actions, idleTimeout: first.body.idleTimeout, cookie: flow.Cookie}
	if first.body.conjunction {
		flow.Actions, want.actions = e.uniteConjunctions()
	}
	return &flow, want
}

// uniteConjunctions returns the conjunction actions of all owners, each once, and their text.
func (e *entry) uniteConjunctions() ([]ovs.Action, string) {
	all := map[string]ovs.Action{}
	for _, c := range e.owners {
		maps.Copy(all, c.conjunctions)
	}
	return inOrder(all)
}

// flows returns all flows that the owners want.
func (t table) flows() []*ovs.Flow {
	flows := make([]*ovs.Flow, 0, len(t))
	for _, e := range t {
		if flow, _ := e.compile(); flow != nil {
			flows = append(flows, flow)
		}
	}
	return flows
}

// commit takes note that the switch has the flow that the key's owners want, or lacks it when there are none.
func (t table) commit(key ovs.Key) {
	if e := t[key]; e != nil {
		e.flow, e.onSwitch = e.compile()
		t.collect(key)
	}
}
