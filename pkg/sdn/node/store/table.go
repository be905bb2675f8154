package store

import (
	"hash/fnv"
	"slices"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// table merges the owners' states, key by key, and remembers what the switch has. Only the writer touches it.
type table struct {
	entries map[key]*entry
	numbers map[uint32]key // of groups
}

func newTable() table {
	return table{entries: map[key]*entry{}, numbers: map[uint32]key{}}
}

// An entry is one key with those who want it.
type entry struct {
	owners   owners
	union    union        // of all owners' conjunctions
	number   uint32       // of a group
	onSwitch form         // the zero form when the switch does not have it
	sent     contribution // to that form
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
		e = &entry{}
		if k.kind == kindGroup {
			e.number = t.allot(k)
		}
		t.entries[k] = e
	}
	return e
}

// maxGroup is the largest number that a group can have, less than OFPG_MAX.
const maxGroup = 0xffff0000

// allot gives the key a free number: its hash, or the next one. After a restart of the agent it is the same again, so that nothing has to be
// written, unless two hashes met and their keys came in another order; then both are rewritten, with the flows to them, in the one bundle.
func (t table) allot(k key) uint32 {
	h := fnv.New32a()
	h.Write([]byte(k.name)) // never fails (hash.Hash)
	for n := h.Sum32()%maxGroup + 1; ; n = n%maxGroup + 1 {
		if _, taken := t.numbers[n]; !taken {
			t.numbers[n] = k
			return n
		}
	}
}

// add adds the owner's contribution.
func (t table) add(owner pipeline.Owner, k key, c contribution) {
	e := t.entry(k)
	old, _ := e.owners.get(owner)
	e.union.remove(old.conjunctions)
	e.owners.set(owner, c)
	e.union.add(c.conjunctions)
}

// remove removes the owner's contribution.
func (t table) remove(owner pipeline.Owner, k key) {
	e := t.entries[k]
	if e == nil {
		return
	}
	old, _ := e.owners.get(owner)
	e.union.remove(old.conjunctions)
	e.owners.remove(owner)
	t.collect(k)
}

// collect forgets an entry that nobody wants and the switch does not have.
func (t table) collect(k key) {
	if e := t.entries[k]; e != nil && len(e.owners.list) == 0 && e.onSwitch == (form{}) {
		delete(t.entries, k)
		if k.kind == kindGroup {
			delete(t.numbers, e.number)
		}
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
	for _, other := range e.owners.list {
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

// compile returns what the owners together want, and what one of them contributes, who is as good as the others; the zero form when there
// are none.
func (e *entry) compile() (owned, form) {
	if len(e.owners.list) == 0 {
		return owned{}, form{}
	}
	one := e.owners.list[0]
	want := form{text: one.contribution.body.text, idleTimeout: one.contribution.body.idleTimeout}
	if one.contribution.flow != nil {
		want.cookie = one.owner.Cookie()
		if len(e.owners.list) > 1 {
			want.cookie = pipeline.SharedCookie()
		}
	}
	if one.contribution.body.conjunction {
		want.text = e.union.text()
	}
	return one, want
}

// makeFlow returns the flow of what compile gave.
func (t table) makeFlow(e *entry, one owned, f form) *ovs.Flow {
	flow := *one.contribution.flow // the owner's stays as it is
	flow.Cookie = f.cookie
	if one.contribution.body.conjunction {
		flow.Actions = e.union.actions()
	} else {
		flow.Actions = t.resolve(one.owner, flow.Actions)
	}
	return &flow
}

// resolve replaces the owner's references, which compile has found to be there, by numbers.
func (t table) resolve(owner pipeline.Owner, actions []ovs.Action) []ovs.Action {
	resolved, _ := replaceReferences(actions, func(r pipeline.Reference) (ovs.Action, error) {
		return ovs.ToGroup(t.entry(groupKey(owner, r.Group)).number), nil
	})
	return resolved
}

func (t table) makeGroup(e *entry, one owned) ovs.Group {
	buckets := one.contribution.object.buckets
	g := ovs.Group{ID: e.number, Buckets: make([]ovs.Bucket, len(buckets))}
	for i, b := range buckets {
		g.Buckets[i] = ovs.Bucket{Weight: b.Weight, Actions: t.resolve(one.owner, b.Actions)}
	}
	return g
}

// state returns everything that the owners want.
func (t table) state() ovs.State {
	st := ovs.State{Flows: make([]*ovs.Flow, 0, len(t.entries))}
	for k, e := range t.entries {
		one, want := e.compile()
		if want == (form{}) {
			continue
		}
		switch k.kind {
		case kindFlow:
			st.Flows = append(st.Flows, t.makeFlow(e, one, want))
		case kindGroup:
			st.Groups = append(st.Groups, t.makeGroup(e, one))
		case kindMeter:
			st.Meters = append(st.Meters, one.contribution.object.meter)
		case kindLearned:
			st.Learned = append(st.Learned, one.contribution.object.learned)
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
	one, want := e.compile()
	if want == e.onSwitch {
		return
	}
	gone := want == (form{})
	switch k.kind {
	case kindFlow:
		if gone {
			tx.Delete(e.sent.flow)
		} else {
			tx.Add(t.makeFlow(e, one, want))
		}
	case kindGroup:
		if gone {
			tx.DeleteGroup(e.number)
		} else {
			tx.SetGroup(t.makeGroup(e, one))
		}
	case kindMeter:
		if gone {
			tx.DeleteMeter(e.sent.object.meter.ID)
		} else {
			tx.SetMeter(one.contribution.object.meter)
		}
	case kindLearned:
		if gone {
			tx.Purge(e.sent.object.learned)
		}
	case kindConnections:
		if e.onSwitch != (form{}) {
			tx.Forget(e.sent.object.connections)
		}
	}
}

// commit takes note that the switch has what the key's owners want, or lacks it when there are none.
func (t table) commit(k key) {
	if e := t.entries[k]; e != nil {
		one, want := e.compile()
		e.sent, e.onSwitch = one.contribution, want
		t.collect(k)
	}
}

// refused returns the key of what the switch refused, and false when the error is of another kind. It may be a key that nobody has.
func (t table) refused(err error) (key, bool) {
	return refusedKey(err, t.numbers)
}

// owners returns the key's owners, in order.
func (t table) owners(k key) []pipeline.Owner {
	e := t.entries[k]
	if e == nil {
		return nil
	}
	return e.owners.sorted()
}
