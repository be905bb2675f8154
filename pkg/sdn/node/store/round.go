package store

import (
	"fmt"
	"maps"
	"slices"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// A change is one owner's way from the state that it has to the state that it wants.
type change struct {
	owner    pipeline.Owner
	old, new state
	commits  []*Commit
	failed   bool // out of the round; the owner keeps the old state
	eviction bool // nobody asked for it
}

// fail tells those who wait.
func (c *change) fail(err error) {
	c.failed = true
	c.complete(fmt.Errorf("%s: %w", c.owner, err))
}

func (c *change) complete(err error) {
	for _, commit := range c.commits {
		commit.complete(err)
	}
	c.commits = nil
}

// A round merges a group of changes into the table. It ends with commit or revert.
type round struct {
	table   table
	changes []*change
	live    map[pipeline.Owner]*change // those that have not failed
	touched map[key]bool
}

// newRound merges the changes, at most one an owner. All old states make room before the first new one comes in, so that a flow
// can pass from owner to owner, or two owners swap, in one round. A change in conflict fails.
func newRound(t table, changes []*change) *round {
	r := &round{table: t, changes: changes, live: make(map[pipeline.Owner]*change, len(changes)), touched: map[key]bool{}}
	for _, c := range changes {
		r.live[c.owner] = c
		r.withdraw(c.owner, c.old)
	}
	for _, c := range changes {
		if !c.failed { // an earlier one's failure may have taken it along
			r.admit(c)
		}
	}
	return r
}

func (r *round) withdraw(owner pipeline.Owner, st state) {
	for key := range st {
		r.touched[key] = true
		r.table.remove(owner, key)
	}
}

// admit brings the new state in.
func (r *round) admit(c *change) {
	for key, con := range c.new {
		if rivals := r.table.rivals(key, c.owner, con.body); len(rivals) > 0 {
			r.fail(c, r.conflict(key, con, rivals[0]))
			return
		}
		r.touched[key] = true
		r.table.add(c.owner, key, con)
	}
}

func (r *round) conflict(key key, con contribution, rival pipeline.Owner) error {
	theirs, _ := r.table.entries[key].owners.get(rival)
	return &ConflictError{Key: key.flow, Actions: con.body.text, Rival: rival, RivalActions: theirs.body.text}
}

// fail takes a change out of the round: its owner gets the old state back. A change that relied on the room that the old state
// had left fails too; old states never conflict with each other, so that it ends there.
func (r *round) fail(c *change, err error) {
	delete(r.live, c.owner)
	c.fail(err)
	r.withdraw(c.owner, c.new)
	for key, con := range c.old {
		for _, rival := range r.table.rivals(key, c.owner, con.body) {
			other, live := r.live[rival]
			if !live {
				continue // the failure of the rival before it took it along
			}
			theirs := other.new[key]
			r.fail(other, &ConflictError{Key: key.flow, Actions: theirs.body.text, Rival: c.owner, RivalActions: con.body.text})
		}
		r.table.add(c.owner, key, con)
	}
}

// evict takes an owner's state off the table, though it was on the switch once.
func (r *round) evict(owner pipeline.Owner, old state) {
	c := &change{owner: owner, old: old, eviction: true}
	r.changes = append(r.changes, c)
	r.live[owner] = c
	r.withdraw(owner, old)
}

// transaction fills tx with what the switch lacks and what it has too much, in the order of keys.
func (r *round) transaction(tx *ovs.Transaction) {
	for _, key := range slices.SortedFunc(maps.Keys(r.touched), compareKeys) {
		r.table.change(tx, key)
	}
}

// forget fills tx with the connections that have no ground any more, which no comparison with the switch shows.
func (r *round) forget(tx *ovs.Transaction) {
	for key := range r.touched {
		if key.kind == kindConnections {
			r.table.change(tx, key)
		}
	}
}

// blame returns the changes that want the key, in their order.
func (r *round) blame(key key) []*change {
	var blamed []*change
	for _, c := range r.alive() {
		if _, wants := c.new[key]; wants {
			blamed = append(blamed, c)
		}
	}
	return blamed
}

// commit takes note that the switch has what the table says, and returns the changes that are done.
func (r *round) commit() []*change {
	for key := range r.touched {
		r.table.commit(key)
	}
	return r.alive()
}

// revert takes all changes back and returns those that somebody waits for.
func (r *round) revert() []*change {
	alive := r.alive()
	for _, c := range alive {
		r.withdraw(c.owner, c.new)
	}
	for _, c := range alive {
		for key, con := range c.old {
			r.table.add(c.owner, key, con)
		}
	}
	return slices.DeleteFunc(alive, func(c *change) bool { return c.eviction })
}

// alive returns the changes that have not failed, in their order.
func (r *round) alive() []*change {
	return slices.DeleteFunc(slices.Clone(r.changes), func(c *change) bool { return c.failed })
}
