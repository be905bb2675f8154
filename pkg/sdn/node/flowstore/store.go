// Package flowstore holds the desired flows, groups and meters of all cluster objects, and writes the difference to the bridge: one writer, which sends what
// changed at the same time in one atomic bundle.
package flowstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// Store is the desired state of the bridge, by owner. Its methods are safe for concurrent use; only Run, Require and Commit.Wait block.
//
// Owners contribute to flow keys. Identical contributions to one key are one flow, which is removed with its last owner; conjunction actions on one key
// are merged; anything else is a conflict. The state of an owner is applied in one bundle, completely or not at all.
type Store struct {
	bridge  ovs.Interface
	backoff wait.Backoff // between failed replacements

	auditInterval time.Duration
	observer      Observer
	onDrift       func(ovs.Difference) // nil: nothing
	retryBackoff  wait.Backoff         // between attempts to install rejected states

	inputs  inputs
	flusher *flusher

	mu       sync.Mutex               // taken with inputs.mu held, never before it
	current  map[pipeline.Owner]state // on the switch, as of the last successful write
	queue    []*change                // at most one for each owner, in the order of arrival
	queued   map[pipeline.Owner]*change
	writing  map[pipeline.Owner]bool // owners whose change is being written
	writes   uint64                  // incremented at the start and at the end of each write: odd while one is in progress
	resyncs  uint64                  // number of requested replacements; one that begins after the last request serves all
	synced   uint64                  // value of resyncs at the start of the last successful replacement
	required uint64                  // value of resyncs at the next or last request that was not an audit
	drift    ovs.Difference          // total of all audits
	revoked  revocations             // of the updates whose changes are in the queue
	refused  map[pipeline.Owner]refusedState
	failure  error      // of the last write
	counters Statistics // only the counters
	pending  pending

	changed chan struct{} // the queue or revoked is not empty
	resync  chan struct{} // a replacement was requested

	running sync.Mutex
	table   table  // only the writer uses this and the following fields
	began   uint64 // value of resyncs at the start of the current write
}

// New returns an empty store for the bridge. Nothing is written before Run.
func New(bridge ovs.Interface) *Store {
	return &Store{
		bridge:        bridge,
		auditInterval: auditInterval,
		observer:      noObserver{},
		retryBackoff:  wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.1, Steps: 8, Cap: auditInterval},
		backoff:       wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 8, Cap: 2 * time.Second},
		inputs:        newInputs(),
		flusher:       newFlusher(bridge),
		current:       map[pipeline.Owner]state{},
		queued:        map[pipeline.Owner]*change{},
		refused:       map[pipeline.Owner]refusedState{},
		changed:       make(chan struct{}, 1),
		resync:        make(chan struct{}, 1),
		table:         newTable(),
		resyncs:       1,
		required:      1, // the flows on the switch are unknown until Run has replaced them
		revoked:       revocations{restarted: true},
	}
}

// A Commit is the result of a change, which may not be written yet.
type Commit struct {
	owner    pipeline.Owner
	done     chan struct{}
	queued   time.Time // zero: it was completed at once
	observer Observer  // of a queued change
	err      error     // valid once done is closed
}

// WaitAll waits for all commits, and joins their errors.
func WaitAll(ctx context.Context, commits []*Commit) error {
	var errs []error
	for _, c := range commits {
		errs = append(errs, c.Wait(ctx))
	}
	return errors.Join(errs...)
}

func (c *Commit) observe(o Observer) { c.queued, c.observer = time.Now(), o }

func (c *Commit) complete(err error) {
	if c.observer != nil {
		c.observer.Committed(time.Since(c.queued), err)
	}
	c.err = err
	close(c.done)
}

// Wait waits until the change is installed or rejected. The error of a rejection names the owner and the flow (*ovs.FlowError, *ConflictError); the owner
// retains its previous flows, and the store tries the change again until a later one replaces it. Wait continues while Open vSwitch is unavailable. If a later
// change of the owner replaces this one in the queue, both have the result of the later one.
func (c *Commit) Wait(ctx context.Context) error {
	select {
	case <-c.done:
		return c.err
	default:
	}
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		return fmt.Errorf("wait for the flows of %s to be installed: %w", c.owner, ctx.Err())
	}
}

func (s *Store) enqueue(commit *Commit, wanted state) {
	owner := commit.owner
	if c := s.queued[owner]; c != nil {
		c.new = wanted
		commit.observe(s.observer)
		c.commits = append(c.commits, commit)
		return
	}
	if s.synced == s.resyncs && !s.writing[owner] && wanted.equal(s.current[owner]) {
		delete(s.refused, owner) // the change replaces the rejected one
		commit.complete(nil)
		return
	}
	commit.observe(s.observer)
	c := &change{owner: owner, new: wanted, commits: []*Commit{commit}}
	s.queue = append(s.queue, c)
	s.queued[owner] = c
	mark(&s.pending.queued)
	signal(s.changed)
}

// Resync requests a replacement of all flows, after a restart of Open vSwitch or changes by other programs. It ends the backoff after a failed one.
func (s *Store) Resync() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resyncs++
	s.required = s.resyncs
	mark(&s.pending.replaced)
	signal(s.resync)
}

// FlowsLost reports that Open vSwitch deleted flows by itself: what the next replacement repairs is not drift. The caller requests one with Resync, which it
// may delay.
func (s *Store) FlowsLost() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.required = s.resyncs + 1
	mark(&s.pending.replaced)
}

// signal sends to a channel of capacity 1, unless a value is pending.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run is the writer. It first replaces all flows on the bridge by the desired ones, and then writes changes; changes that arrive during a write are sent
// together in the next bundle. It returns nil when ctx ends, and may be called again afterwards.
func (s *Store) Run(ctx context.Context) error {
	if !s.running.TryLock() {
		return errors.New("flow store: Run is already active")
	}
	defer s.running.Unlock()
	flushing, stopFlushing := context.WithCancel(ctx)
	var parts sync.WaitGroup
	defer parts.Wait()
	defer stopFlushing()
	parts.Go(func() { s.flusher.run(flushing) })
	s.Resync()
	audit := time.NewTicker(s.auditInterval)
	defer audit.Stop()
	retry := newRetry(s.retryBackoff)
	defer retry.stop()
	backoff := s.backoff
	for ctx.Err() == nil {
		if err := s.write(ctx); err != nil && ctx.Err() == nil {
			delay := backoff.Step()
			klog.FromContext(ctx).Error(err, "Failed to write flows; comparing all flows next", "retryAfter", delay)
			s.pause(ctx, delay)
			continue
		}
		backoff = s.backoff
		retry.schedule(s.hasRefused())
		select {
		case <-s.changed:
		case <-s.resync:
		case <-audit.C:
			s.Audit()
		case <-retry.timer.C:
			retry.scheduled = false
			s.retryRefused()
		case <-ctx.Done():
		}
	}
	return nil
}

// pause waits before the next replacement. Only Resync ends it early: hundreds of changes may arrive.
func (s *Store) pause(ctx context.Context, delay time.Duration) {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.resync:
	case <-ctx.Done():
	}
}
