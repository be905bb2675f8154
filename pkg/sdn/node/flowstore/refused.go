package flowstore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// refusedState is the desired state of an owner that the switch rejected, or that was in conflict. The owner retains its previous state, or has none if it was
// evicted. The store tries it again after a backoff and with each audit, until the switch accepts it or another valid change of the owner replaces it. After
// an invalid change, which does not compile, the owner gets its last valid state, as if the switch had accepted that at once.
type refusedState struct {
	state state
	err   error
}

// RefusedError is the error of owners whose desired state the switch rejected.
type RefusedError struct {
	Owner pipeline.Owner // the first of them
	Err   error          // of the switch, with the flow, group or meter
	More  int            // number of other owners
}

func (e *RefusedError) Error() string {
	others := ""
	if e.More > 0 {
		others = fmt.Sprintf(" (and those of %d other owners)", e.More)
	}
	return fmt.Sprintf("flows of %s are not installed%s: %v; the agent tries again: check ovs-vswitchd's log, and find the program that changes the bridge", e.Owner, others, e.Err)
}

func (e *RefusedError) Unwrap() error { return e.Err }

// Healthy returns the reason for which a part of the desired state is not on the switch: the error of the last write, or a *RefusedError. A conflict between
// owners is no reason, and neither is a change that does not compile: objects of a tenant could cause it on all nodes. The caller checks by itself whether Open
// vSwitch answers.
func (s *Store) Healthy() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure != nil && !ovs.IsUnavailable(s.failure) {
		return fmt.Errorf("write flows: %w", s.failure)
	}
	owners := slices.DeleteFunc(slices.SortedFunc(maps.Keys(s.refused), compareOwners), func(o pipeline.Owner) bool { return !ovs.IsRefusal(s.refused[o].err) })
	if len(owners) == 0 {
		return nil
	}
	return &RefusedError{Owner: owners[0], Err: s.refused[owners[0]].err, More: len(owners) - 1}
}

// recordRefused records the results of changes.
func (s *Store) recordRefused(ctx context.Context, changes []*change) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range changes {
		_, refused := s.refused[c.owner]
		switch {
		case c.failed:
			if !refused {
				s.countFailed(c.err)
			}
			s.refused[c.owner] = refusedState{state: c.new, err: c.err}
		case refused:
			delete(s.refused, c.owner)
			if len(c.new) == 0 {
				continue // removed: its update flushes what it revokes
			}
			klog.FromContext(ctx).Info("Installed flows that were rejected before", "owner", c.owner)
			// The update that first requested the flows has been flushed without them.
			s.flusher.request(revocations{permission: true})
		}
	}
}

func (s *Store) hasRefused() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.refused) > 0
}

// retryRefused queues the rejected states.
func (s *Store) retryRefused() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tryRefused()
}

// tryRefused queues the rejected states, except of owners with a later change. The caller holds the lock.
func (s *Store) tryRefused() {
	for _, owner := range slices.SortedFunc(maps.Keys(s.refused), compareOwners) {
		if s.queued[owner] == nil && !s.writing[owner] {
			s.enqueue(newCommit(owner), s.refused[owner].state)
		}
	}
}

// retry is the timer of attempts to install rejected states.
type retry struct {
	first     wait.Backoff
	backoff   wait.Backoff
	timer     *time.Timer
	scheduled bool
}

func newRetry(backoff wait.Backoff) *retry {
	r := &retry{first: backoff, backoff: backoff, timer: time.NewTimer(time.Hour)}
	r.timer.Stop()
	return r
}

// schedule schedules the next attempt if one is due. After a success of all, the backoff begins again.
func (r *retry) schedule(due bool) {
	switch {
	case !due:
		r.stop()
		r.backoff = r.first
	case !r.scheduled:
		r.scheduled = true
		r.timer.Reset(r.backoff.Step())
	}
}

func (r *retry) stop() {
	r.timer.Stop()
	r.scheduled = false
}
