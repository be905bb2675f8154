package store

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// table merges the owners' states, key by key, and remembers what the switch has. Only the writer touches it.
type table struct {
	entries map[key]*entry
	numbers map[number]key // of groups and meters
}

// number is what the switch knows a group or a meter by.
type number struct {
	kind kind
	n    uint32
}

func newTable() table {
	return table{entries: map[key]*entry{}, numbers: map[number]key{}}
}

// An entry is one key with those who want it.
type entry struct {
	owners   map[pipeline.Owner]contribution
	union    union     // of all owners' conjunctions
	number   uint32    // of a group or meter
	onSwitch form      // the zero form when the switch does not have it
	flow     *ovs.Flow // of that form
}

// form is a thing as compiled from all its owners, but for the key.
type form struct {
	text        string
	idleTimeout int
	cookie      uint64
}

func (t table) entry(k key) *entry {
	e := t.entries[k]
	if e == nil {
		e = &entry{owners: make(map[pipeline.Owner]contribution, 1)}
		if k.kind == kindGroup || k.kind == kindMeter {
			e.number = t.allot(k)
		}
		t.entries[k] = e
	}
	return e
}

// maxNumber is the largest number that both groups and meters can have (OFPM_MAX).
const maxNumber = 0xffff0000

// allot gives the key a free number: its hash, or the next one. After a restart of the agent it is the same again, so that nothing has to be
// written, unless two hashes met and their keys came in another order; then both are rewritten, with the flows to them, in the one bundle.
func (t table) allot(k key) uint32 {
	h := fnv.New32a()
	fmt.Fprintf(h, "%d %d %s\x00%s", k.kind, k.owner.Kind, k.owner.Key, k.name) // never fails (hash.Hash)
	for n := h.Sum32()%maxNumber + 1; ; n = n%maxNumber + 1 {
		at := number{k.kind, n}
		if _, taken := t.numbers[at]; !taken {
			t.numbers[at] = k
			return n
		}
	}
}

// add adds the owner's contribution.
func (t table) add(owner pipeline.Owner, k key, c contribution) {
	e := t.entry(k)
	if old, exists := e.owners[owner]; exists {
		e.union.remove(old.conjunctions)
	}
	e.owners[owner] = c
	e.union.add(c.conjunctions)
}

// remove removes the owner's contribution.
func (t table) remove(owner pipeline.Owner, k key) {
	e := t.entries[k]
	if e == nil {
		return
	}
	e.union.remove(e.owners[owner].conjunctions)
	delete(e.owners, owner)
	t.collect(k)
}

// collect forgets an entry that nobody wants and the switch does not have.
func (t table) collect(k key) {
	if e := t.entries[k]; e != nil && len(e.owners) == 0 && e.onSwitch == (form{}) {
		delete(t.entries, k)
		delete(t.numbers, number{k.kind, e.number})
	}
}

// rivals returns the owners of the key that want something incompatible with the body, in order. Those who want a key are compatible with
// each other, so that one of them speaks for all.
func (t table) rivals(k key, owner pipeline.Owner, b body) []pipeline.Owner {
	e := t.entries[k]
	if e == nil {
		return nil
	}
	var rivals []pipeline.Owner
	for other, c := range e.owners {
		if other == owner {
			continue
		}
		if c.body.compatible(b) {
			return nil
		}
		rivals = append(rivals, other)
	}
	slices.SortFunc(rivals, compareOwners)
	return rivals
}

// compile returns what the owners together want, and one of their contributions; the zero form when there are none.
func (e *entry) compile() (contribution, form) {
	for owner, c := range e.owners { // one is as good as the others
		want := form{text: c.body.text, idleTimeout: c.body.idleTimeout}
		if c.flow != nil {
			want.cookie = owner.Cookie()
			if len(e.owners) > 1 {
				want.cookie = pipeline.SharedCookie()
			}
		}
		if c.body.conjunction {
			want.text = e.union.text()
		}
		return c, want
	}
	return contribution{}, form{}
}

// makeFlow returns the flow of the contribution and form that compile gave.
func (t table) makeFlow(e *entry, c contribution, f form) *ovs.Flow {
	flow := *c.flow // the owner's stays as it is
	flow.Cookie = f.cookie
	if c.body.conjunction {
		flow.Actions = e.union.actions()
	} else {
		for owner := range e.owners { // there is one if there are references
			flow.Actions = t.resolve(owner, flow.Actions)
			break
		}
	}
	return &flow
}

// resolve replaces the owner's references, which compile has found to be there, by numbers.
func (t table) resolve(owner pipeline.Owner, actions []ovs.Action) []ovs.Action {
	resolved, _ := replaceReferences(actions, func(r pipeline.Reference) (ovs.Action, error) {
		n := t.entry(key{kind: kindOf(r.Object), owner: owner, name: r.Name}).number
		if r.Object == pipeline.ObjectMeter {
			return ovs.ThroughMeter(n), nil
		}
		return ovs.ToGroup(n), nil
	})
	return resolved
}

func (t table) makeGroup(k key, e *entry, c contribution) ovs.Group {
	g := ovs.Group{ID: e.number, Buckets: make([]ovs.Bucket, len(c.buckets))}
	for i, b := range c.buckets {
		g.Buckets[i] = ovs.Bucket{Weight: b.Weight, Actions: t.resolve(k.owner, b.Actions)}
	}
	return g
}

// state returns everything that the owners want.
func (t table) state() ovs.State {
	st := ovs.State{Flows: make([]*ovs.Flow, 0, len(t.entries))}
	for k, e := range t.entries {
		c, want := e.compile()
		if want == (form{}) {
			continue
		}
		switch k.kind {
		case kindFlow:
			st.Flows = append(st.Flows, t.makeFlow(e, c, want))
		case kindGroup:
			st.Groups = append(st.Groups, t.makeGroup(k, e, c))
		case kindMeter:
			st.Meters = append(st.Meters, numberedMeter(c.meter, e.number))
		case kindLearned:
			st.Learned = append(st.Learned, k.learned)
		}
	}
	return st
}

// change adds to tx what the switch lacks or has too much of the key.
func (t table) change(tx *ovs.Transaction, k key) {
	e := t.entries[k]
	if e == nil {
		return // it came and went, and the switch never saw it
	}
	c, want := e.compile()
	if want == e.onSwitch {
		return
	}
	gone := want == (form{})
	switch k.kind {
	case kindFlow:
		if gone {
			tx.Delete(e.flow)
		} else {
			tx.Add(t.makeFlow(e, c, want))
		}
	case kindGroup:
		if gone {
			tx.DeleteGroup(e.number)
		} else {
			tx.SetGroup(t.makeGroup(k, e, c))
		}
	case kindMeter:
		if gone {
			tx.DeleteMeter(e.number)
		} else {
			tx.SetMeter(numberedMeter(c.meter, e.number))
		}
	case kindLearned:
		if gone {
			tx.Purge(k.learned)
		}
	case kindConnections:
		if e.onSwitch != (form{}) {
			tx.Forget(k.connections)
		}
	}
}

// commit takes note that the switch has what the key's owners want, or lacks it when there are none.
func (t table) commit(k key) {
	e := t.entries[k]
	if e == nil {
		return
	}
	var c contribution
	if c, e.onSwitch = e.compile(); c.flow != nil {
		e.flow = c.flow
	}
	t.collect(k)
}

// refused returns the key of what the switch refused, and false when the error is of another kind. It may be a key that nobody has.
func (t table) refused(err error) (key, bool) {
	return refusedKey(err, func(n number) key { return t.numbers[n] })
}

// owners returns the key's owners, in order.
func (t table) owners(k key) []pipeline.Owner {
	e := t.entries[k]
	if e == nil {
		return nil
	}
	return slices.SortedFunc(maps.Keys(e.owners), compareOwners)
}
