package flowstore

import (
	"context"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// write applies the queued changes. After an error it queues them again and requests a replacement. The connections that the changes revoke are flushed
// after it. It completes commits last, so that their callers find the store as the write leaves it.
func (s *Store) write(ctx context.Context) error {
	changes, revoked, full := s.take()
	var rest []*change
	var err error
	kind, start := WriteAll, time.Now()
	switch {
	case full && s.auditing():
		kind = WriteAudit
		rest, err = s.audit(ctx, changes)
	case full:
		rest, _, err = s.replace(ctx, changes)
	case len(changes) > 0:
		kind = WriteChanges
		rest, err = s.apply(ctx, changes)
	}
	if full || len(changes) > 0 {
		s.observer.Written(kind, time.Since(start), err)
	}
	ended := without(changes, rest)
	s.recordRefused(ctx, ended)
	s.putBack(rest)
	if len(rest) == 0 { // also if a comparison of all flows failed after the changes
		s.flusher.request(revoked)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure = err
	if err == nil && (full || len(changes) > 0) {
		s.recordWrite(kind, len(changes))
	}
	if err != nil {
		s.resyncs++ // an unknown part of the changes was applied
		s.required = s.resyncs
		s.revoked.merge(revoked)
	}
	s.pending.end(start, len(rest) > 0, s.required > s.synced, full && err == nil)
	for _, c := range ended {
		c.complete()
	}
	return err
}

// without returns the changes that are not among rest.
func without(changes, rest []*change) []*change {
	if len(rest) == 0 {
		return changes
	}
	excluded := make(map[*change]bool, len(rest))
	for _, c := range rest {
		excluded[c] = true
	}
	return slices.DeleteFunc(slices.Clone(changes), func(c *change) bool { return excluded[c] })
}

// take empties the queue. full reports whether a replacement is due.
func (s *Store) take() (changes []*change, revoked revocations, full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	s.pending.take()
	changes, s.queue = s.queue, nil
	clear(s.queued)
	s.writing = make(map[pipeline.Owner]bool, len(changes))
	for _, c := range changes {
		s.writing[c.owner] = true
		c.old = s.current[c.owner]
	}
	revoked, s.revoked = s.revoked, revocations{}
	s.began = s.resyncs
	return changes, revoked, s.resyncs != s.synced
}

// refreshOld updates the changes after a comparison, which may have evicted their owners.
func (s *Store) refreshOld(changes []*change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range changes {
		c.old = s.current[c.owner]
	}
}

// putBack queues changes that were not applied again, before those that arrived in the meantime. If there is a later change of the owner, that one completes
// the commits of both.
func (s *Store) putBack(changes []*change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writing = nil
	s.writes++
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

// finish records applied changes. Their owners are being written until recordRefused: before it, an audit would queue a rejected state that a change has replaced.
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
		if c.eviction {
			s.countFailed(c.err)
			s.refused[c.owner] = refusedState{state: c.old, err: c.err}
		}
	}
}

// apply sends the changes in one bundle. If the switch rejects one of them, another program may have deleted a group or a meter that it needs: then apply
// repairs the switch first. After an error it returns the changes that were not applied.
func (s *Store) apply(ctx context.Context, changes []*change) (rest []*change, err error) {
	r := newRound(s.table, changes)
	err = s.send(ctx, r)
	switch {
	case err == nil:
		s.finish(r.commit(), false)
		return nil, nil
	case !ovs.IsRefusal(err):
		return r.revert(), err
	}
	rest = r.revert()
	if err := s.repair(ctx); err != nil {
		return rest, err
	}
	return s.applyRepaired(ctx, rest)
}

func (s *Store) send(ctx context.Context, r *round) error {
	tx := s.bridge.NewTransaction()
	r.transaction(tx)
	return s.bridge.Run(ctx, tx)
}

// applyRepaired sends the changes in one bundle to a switch that equals the table. Changes that it rejects, and those in conflict, fail and are omitted.
// After an error it returns the changes that were not applied.
func (s *Store) applyRepaired(ctx context.Context, changes []*change) (rest []*change, err error) {
	if len(changes) == 0 {
		return nil, nil
	}
	s.refreshOld(changes)
	r := newRound(s.table, changes)
	for {
		err := s.send(ctx, r)
		if err == nil {
			s.finish(r.commit(), false)
			return nil, nil
		}
		key, rejected := s.table.rejected(err)
		if !rejected {
			return r.revert(), err
		}
		failing := r.contributors(key)
		if pending := r.pending(); len(pending) == 1 {
			failing = pending
		}
		if len(failing) == 0 {
			return s.applyOneByOne(ctx, r.revert())
		}
		for _, c := range failing {
			r.fail(c, err)
		}
	}
}

// applyOneByOne finds the changes that the switch rejects, if the error does not identify a flow.
func (s *Store) applyOneByOne(ctx context.Context, changes []*change) (rest []*change, err error) {
	for i := range changes {
		if rest, err = s.applyRepaired(ctx, changes[i:i+1]); err != nil {
			return append(rest, changes[i+1:]...), err
		}
	}
	return nil, nil
}

// replace makes the bridge equal to the table with the changes. Changes with a rejected flow fail. A rejected flow of no change was installed before: its
// owners are evicted, so that the flows of the others can be installed. No commit reports an eviction; Healthy does, and it is logged. The first rejection
// only repeats the comparison: another program may have deleted a group or a meter since.
func (s *Store) replace(ctx context.Context, changes []*change) (rest []*change, found ovs.Difference, err error) {
	r := newFullRound(s.table, changes)
	for first := true; ; first = false {
		found, err := s.bridge.Replace(ctx, s.table.state())
		if err == nil {
			for key := range s.table.entries {
				s.table.commit(key)
			}
			s.finish(r.commit(), true)
			return nil, found, nil
		}
		key, rejected := s.table.rejected(err)
		if !rejected {
			return r.revert(), found, err
		}
		if first {
			continue
		}
		failing := r.contributors(key)
		for _, c := range failing {
			r.fail(c, err)
		}
		if len(failing) > 0 || s.evict(ctx, r, key, err) {
			continue
		}
		rest := r.revert()
		if len(rest) == 0 {
			return nil, found, err
		}
		// The switch may have rejected one of the changes: replace without them first.
		if _, found, err := s.replace(ctx, nil); err != nil {
			return rest, found, err
		}
		rest, err = s.applyOneByOne(ctx, rest)
		return rest, found, err
	}
}

// evict removes the owners of a flow that was installed once, and is rejected now. It reports whether there are any.
func (s *Store) evict(ctx context.Context, r *round, k key, rejection error) bool {
	owners := s.table.owners(k)
	for _, owner := range owners {
		s.mu.Lock()
		old := s.current[owner]
		s.mu.Unlock()
		klog.FromContext(ctx).Error(rejection, "Switch rejected flows; removed all flows of owner", "owner", owner, "action", "check ovs-vswitchd's log")
		r.evict(owner, old, rejection)
	}
	return len(owners) > 0
}
