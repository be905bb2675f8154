package flowstore

import (
	"slices"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// table merges the owners' states by key, and records what is installed. Only the writer uses it.
type table struct {
	entries   map[key]*entry
	numbers   *groupNumbers
	installed *installed
}

func newTable() table {
	return table{entries: map[key]*entry{}, numbers: newGroupNumbers(), installed: &installed{}}
}

// An entry is one key with its owners.
type entry struct {
	owners    owners
	union     *union // of all owners' conjunctions; nil: there are none
	number    uint32 // of a group
	installed form   // zero: not installed
}

// form is a flow, group or meter as compiled from all its owners, without the key.
type form struct {
	text        string
	idleTimeout uint16
	cookie      uint64
}

func (t table) entry(k key) *entry {
	e := t.entries[k]
	if e == nil {
		e = &entry{}
		if k.kind == kindGroup {
			e.number = t.numbers.allocate(k)
		}
		t.entries[k] = e
	}
	return e
}

// add adds the owner's contribution.
func (t table) add(owner pipeline.Owner, k key, c contribution) {
	e := t.entry(k)
	e.withdraw(owner)
	e.owners.set(owner, c)
	if added := c.conjunctions(); added != nil {
		if e.union == nil {
			e.union = &union{}
		}
		e.union.add(added)
	}
}

// remove removes the owner's contribution.
func (t table) remove(owner pipeline.Owner, k key) {
	e := t.entries[k]
	if e == nil {
		return
	}
	e.withdraw(owner)
	e.owners.remove(owner)
	t.collect(k)
}

// withdraw removes the owner's conjunctions from the union.
func (e *entry) withdraw(owner pipeline.Owner) {
	if e.union == nil {
		return
	}
	old, _ := e.owners.get(owner)
	e.union.remove(old.conjunctions())
}

// collect deletes an entry that has no owners and is not installed.
func (t table) collect(k key) {
	if e := t.entries[k]; e != nil && len(e.owners.all()) == 0 && e.installed == (form{}) {
		delete(t.entries, k)
		if k.kind == kindGroup {
			t.numbers.release(e.number)
		}
	}
}

// rivals returns the owners of the key that contribute an incompatible body, in order. Contributions to a key are compatible with each other, so if one is
// compatible with the body, all are.
func (t table) rivals(k key, owner pipeline.Owner, b body) []pipeline.Owner {
	e := t.entries[k]
	if e == nil {
		return nil
	}
	var rivals []pipeline.Owner
	for _, other := range e.owners.all() {
		if other.owner == owner {
			continue
		}
		if other.contribution.body.compatible(b) {
			return nil
		}
		rivals = append(rivals, other.owner)
	}
	slices.SortFunc(rivals, compareOwners)
	return rivals
}

// compile returns the form of all contributions to the key, and one of them, which stands for all; the zero form if there are no owners.
func (e *entry) compile(k key) (owned, form) {
	all := e.owners.all()
	if len(all) == 0 {
		return owned{}, form{}
	}
	one := all[0]
	want := form{text: one.contribution.body.text, idleTimeout: one.contribution.body.idleTimeout}
	if k.kind == kindFlow {
		want.cookie = one.owner.Cookie()
		if len(all) > 1 {
			want.cookie = pipeline.SharedCookie()
		}
	}
	if one.contribution.body.conjunction {
		want.text = e.union.text()
	}
	return one, want
}

// makeFlow returns the flow of the results of compile.
func (t table) makeFlow(k key, one owned, f form) *ovs.Flow {
	text := textFlow(k, f)
	flow := text.Flow()
	if one.contribution.hasReferences() {
		flow.Actions = t.resolve(one.owner, one.contribution.details.actions)
	}
	return flow
}

// textFlow returns the flow of the results of compile, without references to groups.
func textFlow(k key, f form) ovs.TextFlow {
	return ovs.TextFlow{Key: k.flow(), Actions: f.text, IdleTimeout: int(f.idleTimeout), Cookie: f.cookie}
}

// resolve replaces the owner's references, which compile has validated, by numbers.
func (t table) resolve(owner pipeline.Owner, actions []ovs.Action) []ovs.Action {
	resolved, _ := replaceReferences(actions, func(r pipeline.Reference) (ovs.Action, error) {
		return ovs.ToGroup(t.entry(groupKey(owner, r.Group)).number), nil
	})
	return resolved
}

func (t table) makeGroup(e *entry, one owned) ovs.Group {
	d := one.contribution.details
	if d == nil {
		return ovs.Group{ID: e.number, Text: one.contribution.body.text}
	}
	g := ovs.Group{ID: e.number, Buckets: make([]ovs.Bucket, len(d.buckets))}
	for i, b := range d.buckets {
		g.Buckets[i] = ovs.Bucket{Weight: b.Weight, Actions: t.resolve(one.owner, b.Actions)}
	}
	return g
}

// state returns the desired state of all owners.
func (t table) state() ovs.State {
	st := ovs.State{Texts: make([]ovs.TextFlow, 0, len(t.entries)), Learned: pipeline.LearnedFlows()}
	for k, e := range t.entries {
		one, want := e.compile(k)
		if want == (form{}) {
			continue
		}
		switch k.kind {
		case kindFlow:
			if one.contribution.hasReferences() {
				st.Flows = append(st.Flows, t.makeFlow(k, one, want))
			} else {
				st.Texts = append(st.Texts, textFlow(k, want))
			}
		case kindGroup:
			st.Groups = append(st.Groups, t.makeGroup(e, one))
		case kindMeter:
			st.Meters = append(st.Meters, one.contribution.details.meter)
		}
	}
	return st
}

// change adds the difference of the key between the table and the switch to tx.
func (t table) change(tx *ovs.Transaction, k key) {
	e := t.entries[k]
	if e == nil {
		return // added and removed before it was installed
	}
	one, want := e.compile(k)
	if want == e.installed {
		return
	}
	removed := want == (form{})
	switch k.kind {
	case kindFlow:
		if removed {
			tx.DeleteAt(k.flow())
		} else {
			tx.AddAt(k.flow(), t.makeFlow(k, one, want))
		}
	case kindGroup:
		if removed {
			tx.DeleteGroup(e.number)
		} else {
			tx.SetGroup(t.makeGroup(e, one))
		}
	case kindMeter:
		if removed {
			tx.DeleteMeter(k.meter)
		} else {
			tx.SetMeter(one.contribution.details.meter)
		}
	}
}

// commit records that the key is installed as compiled, or removed if it has no owners.
func (t table) commit(k key) {
	if e := t.entries[k]; e != nil {
		_, want := e.compile(k)
		t.installed.record(k, e.installed != form{}, want != form{})
		e.installed = want
		t.collect(k)
	}
}

// rejected returns the key of the flow, group or meter that the switch rejected, or false if the error is of another type. The key may have no owners.
func (t table) rejected(err error) (key, bool) {
	return rejectedKey(err, t.numbers)
}

// owners returns the key's owners, in order.
func (t table) owners(k key) []pipeline.Owner {
	e := t.entries[k]
	if e == nil {
		return nil
	}
	return e.owners.sorted()
}
