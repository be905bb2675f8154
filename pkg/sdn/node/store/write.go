package store

import (
	"context"
	"slices"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// write brings the switch up to date with what is queued now. After an error the changes are queued again and
// a full replacement is due.
func (s *Store) write(ctx context.Context) error {
	changes, full := s.take()
	var rest []*change
	var err error
	switch {
	case full && s.auditing():
		rest, err = s.audit(ctx, changes)
	case full:
		rest, _, err = s.replace(ctx, changes)
	case len(changes) > 0:
		rest, err = s.apply(ctx, changes)
	}
	s.putBack(rest)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.asked++ // what the switch has is unknown now
	}
	return err
}

// take empties the queue.
func (s *Store) take() (changes []*change, full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changes, s.queue = s.queue, nil
	clear(s.queued)
	s.busy = make(map[pipeline.Owner]bool, len(changes))
	for _, c := range changes {
		s.busy[c.owner] = true
		c.old = s.current[c.owner]
	}
	s.began = s.asked
	return changes, s.asked != s.synced
}

// putBack queues changes again that could not be tried, before those that came meanwhile. One that was overtaken leaves only
// those who wait for it.
func (s *Store) putBack(changes []*change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = nil
	var again []*change
	for _, c := range changes {
		if newer := s.queued[c.owner]; newer != nil {
			newer.commits = slices.Concat(c.commits, newer.commits)
			continue
		}
		s.queued[c.owner] = c
		again = append(again, c)
	}
	s.queue = slices.Concat(again, s.queue)
}

// finish takes note of changes that are on the switch. If they are because all of it was replaced, that is known before
// anyone who waits for them goes on.
func (s *Store) finish(changes []*change, replaced bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if replaced {
		s.synced = s.began
	}
	for _, c := range changes {
		if len(c.new) == 0 {
			delete(s.current, c.owner)
		} else {
			s.current[c.owner] = c.new
		}
		if !c.eviction { // its owner's own change may be still to come
			delete(s.busy, c.owner)
		}
		c.complete(nil)
	}
}

// apply sends the changes in one bundle. Those that the switch refuses, and those in conflict, fail and are left out. After an error it
// returns the changes that are still to be done.
func (s *Store) apply(ctx context.Context, changes []*change) (rest []*change, err error) {
	r := newRound(s.table, changes)
	for {
		tx := s.bridge.NewTransaction()
		r.transaction(tx)
		err := s.bridge.Run(ctx, tx)
		if err == nil {
			s.finish(r.commit(), false)
			return nil, nil
		}
		key, refused := s.table.refused(err)
		if !refused {
			return r.revert(), err
		}
		blamed := r.blame(key)
		if alive := r.alive(); len(alive) == 1 {
			blamed = alive
		}
		if len(blamed) == 0 {
			return s.applyOneByOne(ctx, r.revert())
		}
		for _, c := range blamed {
			r.fail(c, err)
		}
	}
}

// applyOneByOne finds the bad changes of a group when the refused flow does not tell.
func (s *Store) applyOneByOne(ctx context.Context, changes []*change) (rest []*change, err error) {
	for i := range changes {
		if rest, err = s.apply(ctx, changes[i:i+1]); err != nil {
			return append(rest, changes[i+1:]...), err
		}
	}
	return nil, nil
}

// replace makes the whole bridge equal to the table with the changes. What is refused fails the changes that want it. Where
// there are none, it was on the switch before: its owners lose their state, so that the others' can be there. Nobody waits for that,
// so it is logged.
func (s *Store) replace(ctx context.Context, changes []*change) (rest []*change, found ovs.Difference, err error) {
	r := newRound(s.table, changes)
	for {
		found, err := s.replaceAll(ctx, r)
		if err == nil {
			for key := range s.table.entries {
				s.table.commit(key)
			}
			s.finish(r.commit(), true)
			return nil, found, nil
		}
		key, refused := s.table.refused(err)
		if !refused {
			return r.revert(), found, err
		}
		blamed := r.blame(key)
		for _, c := range blamed {
			r.fail(c, err)
		}
		if len(blamed) > 0 || s.evict(ctx, r, key, err) {
			continue
		}
		rest := r.revert()
		if len(rest) == 0 {
			return nil, found, err
		}
		// One of the changes may be the culprit: first without them.
		if _, found, err := s.replace(ctx, nil); err != nil {
			return rest, found, err
		}
		rest, err = s.applyOneByOne(ctx, rest)
		return rest, found, err
	}
}

func (s *Store) replaceAll(ctx context.Context, r *round) (ovs.Difference, error) {
	found, err := s.bridge.Replace(ctx, s.table.state())
	if err != nil {
		return found, err
	}
	tx := s.bridge.NewTransaction()
	r.forget(tx)
	return found, s.bridge.Run(ctx, tx)
}

// evict takes the owners of what was accepted once, and is refused now, off the table.
func (s *Store) evict(ctx context.Context, r *round, k key, refused error) bool {
	owners := s.table.owners(k)
	for _, owner := range owners {
		s.mu.Lock()
		old := s.current[owner]
		s.mu.Unlock()
		klog.FromContext(ctx).Error(refused, "What was on the switch is refused now; nothing of its owner will be there", "owner", owner)
		r.evict(owner, old)
	}
	return len(owners) > 0
}
