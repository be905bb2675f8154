package flowstore

import (
	"fmt"
	"maps"
	"slices"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// A change replaces an owner's state.
type change struct {
	owner    pipeline.Owner
	old, new state
	commits  []*Commit
	failed   bool  // removed from the round; the owner retains the old state
	eviction bool  // made by the store, without a commit
	err      error // of a failed change or an eviction
}

// retains reports whether the owner has the same object as its flow before and after the change (Change.PrepareAfter).
func (c *change) retains(key key) bool {
	before, after := c.old[key], c.new[key]
	return before.object() != nil && before.object() == after.object() && before.body == after.body
}

// complete completes the commits with the result of the change.
func (c *change) complete() {
	var err error
	if c.failed {
		err = fmt.Errorf("%s: %w", c.owner, c.err)
	}
	for _, commit := range c.commits {
		commit.complete(err)
	}
	c.commits = nil
}

// A round merges changes into the table. It ends with commit or revert.
type round struct {
	table   table
	changes []*change
	live    map[pipeline.Owner]*change // that have not failed
	touched map[key]bool               // nil: not recorded
}

// newFullRound is newRound for a replacement of all flows, which needs no record of the keys that the changes touch: at the start these are all keys.
func newFullRound(t table, changes []*change) *round {
	return (&round{table: t, changes: changes}).merge()
}

// newRound merges the changes, at most one for each owner. It removes what differs in all old states before it adds the first new one, so that a flow can change
// its owner, and two owners can swap flows, in one round. A change in conflict fails.
func newRound(t table, changes []*change) *round {
	return (&round{table: t, changes: changes, touched: map[key]bool{}}).merge()
}

func (r *round) merge() *round {
	r.live = make(map[pipeline.Owner]*change, len(r.changes))
	for _, c := range r.changes {
		r.live[c.owner] = c
		for key := range c.old {
			if !c.retains(key) {
				r.remove(c.owner, key)
			}
		}
	}
	for _, c := range r.changes {
		if !c.failed { // the failure of an earlier change may have failed it
			r.admit(c)
		}
	}
	return r
}

func (r *round) withdraw(owner pipeline.Owner, st state) {
	for key := range st {
		r.remove(owner, key)
	}
}

func (r *round) touch(key key) {
	if r.touched != nil {
		r.touched[key] = true
	}
}

func (r *round) remove(owner pipeline.Owner, key key) {
	r.touch(key)
	r.table.remove(owner, key)
}

// admit adds the new state.
func (r *round) admit(c *change) {
	for key, con := range c.new {
		if c.retains(key) {
			continue
		}
		if rivals := r.table.rivals(key, c.owner, con.body); len(rivals) > 0 {
			r.fail(c, r.conflict(key, con, rivals[0]))
			return
		}
		r.touch(key)
		r.table.add(c.owner, key, con)
	}
}

func (r *round) conflict(key key, con contribution, rival pipeline.Owner) error {
	theirs, _ := r.table.entries[key].owners.get(rival)
	return &ConflictError{Key: key.flow(), Actions: con.body.text, Rival: rival, RivalActions: theirs.body.text}
}

// fail removes a change from the round and restores the old state of its owner. Changes in conflict with the old state fail too. The recursion ends because
// old states do not conflict with each other.
func (r *round) fail(c *change, err error) {
	delete(r.live, c.owner)
	c.failed, c.err = true, err
	r.withdraw(c.owner, c.new)
	for key, con := range c.old {
		for _, rival := range r.table.rivals(key, c.owner, con.body) {
			other, live := r.live[rival]
			if !live {
				continue // failed with an earlier rival
			}
			theirs := other.new[key]
			r.fail(other, &ConflictError{Key: key.flow(), Actions: theirs.body.text, Rival: c.owner, RivalActions: con.body.text})
		}
		r.table.add(c.owner, key, con)
	}
}

// evict removes an owner's state, which was installed.
func (r *round) evict(owner pipeline.Owner, old state, err error) {
	c := &change{owner: owner, old: old, eviction: true, err: err}
	r.changes = append(r.changes, c)
	r.live[owner] = c
	r.withdraw(owner, old)
}

// transaction adds the difference between the table and the switch to tx, in the order of keys.
func (r *round) transaction(tx *ovs.Transaction) {
	for _, key := range slices.SortedFunc(maps.Keys(r.touched), compareKeys) {
		r.table.change(tx, key)
	}
}

// contributors returns the changes with the key in their new state, in order.
func (r *round) contributors(key key) []*change {
	var found []*change
	for _, c := range r.pending() {
		if _, contributes := c.new[key]; contributes {
			found = append(found, c)
		}
	}
	return found
}

// commit records that the switch equals the table, and returns the applied changes.
func (r *round) commit() []*change {
	for key := range r.touched {
		r.table.commit(key)
	}
	return r.pending()
}

// revert restores all old states and returns the changes that were not applied, without evictions.
func (r *round) revert() []*change {
	pending := r.pending()
	for _, c := range pending {
		r.withdraw(c.owner, c.new)
	}
	for _, c := range pending {
		for key, con := range c.old {
			r.table.add(c.owner, key, con)
		}
	}
	return slices.DeleteFunc(pending, func(c *change) bool { return c.eviction })
}

// pending returns the changes that have not failed, in order.
func (r *round) pending() []*change {
	return slices.DeleteFunc(slices.Clone(r.changes), func(c *change) bool { return c.failed })
}
