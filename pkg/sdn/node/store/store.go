// Package store holds what every cluster object wants on the switch, and makes the bridge equal to it: one writer, and
// the smallest atomic bundle.
package store

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

// Store is the desired state of the bridge, by owner. Its methods may be called by anyone at any time and never block.
//
// Owners contribute to flow keys. Identical contributions to one key are one flow, which stays until the last owner goes;
// conjunction actions on one key unite; anything else is a conflict. Each owner's state reaches the switch whole, in one
// bundle, or not at all.
type Store struct {
	bridge  ovs.Interface
	backoff wait.Backoff // between full replacements that fail

	auditEvery time.Duration

	mu      sync.Mutex
	current map[pipeline.Owner]state // what the switch has, or had when it was last heard of
	queue   []*change                // at most one an owner, in the order of arrival
	queued  map[pipeline.Owner]*change
	busy    map[pipeline.Owner]bool // owners whose change is under way
	asked   uint64                  // full replacements asked for; only one that began after the last of them will do
	synced  uint64                  // the value of asked that the last successful one began with
	drift   ovs.Difference          // all that audits found

	changed chan struct{} // there is something in the queue
	resync  chan struct{} // a full replacement was asked for

	running sync.Mutex
	table   table  // the writer's own, as are the following
	began   uint64 // the value of asked that the write under way began with
	audited uint64 // the value of asked that the last audit is for
}

// New returns an empty store for the bridge. Nothing is written before Run.
func New(bridge ovs.Interface) *Store {
	return &Store{
		bridge:     bridge,
		auditEvery: auditEvery,
		backoff:    wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 8, Cap: 2 * time.Second},
		current:    map[pipeline.Owner]state{},
		queued:     map[pipeline.Owner]*change{},
		changed:    make(chan struct{}, 1),
		resync:     make(chan struct{}, 1),
		table:      newTable(),
		asked:      1, // what the switch has is unknown until Run has replaced it: until then nothing is there already
	}
}

// A Commit is a change on its way to the switch.
type Commit struct {
	owner pipeline.Owner
	done  chan struct{}
	err   error // valid once done is closed
}

func (c *Commit) complete(err error) {
	c.err = err
	close(c.done)
}

// Wait waits until the change is on the switch, or refused: then the error names the owner and the flow (*ovs.FlowError,
// *ConflictError), and the owner keeps the state that it had on the switch. While Open vSwitch is unavailable it waits on.
// A change that a later one of the same owner overtakes on its way shares that one's fate.
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
		return fmt.Errorf("wait for the flows of %s to reach the switch: %w", c.owner, ctx.Err())
	}
}

// Set makes st the owner's state, in place of its former one. The flows must not be changed afterwards; their
// cookies do not matter.
func (s *Store) Set(owner pipeline.Owner, st pipeline.State) *Commit {
	return s.SetAll(Change{Owner: owner, State: st})[0]
}

// A Change is a state for an owner.
type Change struct {
	Owner pipeline.Owner
	State pipeline.State

	prepared state // nil: not yet
}

// Prepare does what SetAll has to do for a valid change, so that SetAll takes little time.
func (c Change) Prepare() Change {
	if st, err := compile(c.Owner, c.State); err == nil {
		c.prepared = st
	}
	return c
}

// SetAll makes all changes at once: they reach the switch in one bundle, so that no packet meets one without the others. Only what the
// switch refuses, or what is in conflict, is left out. The commits are in the order of the changes.
func (s *Store) SetAll(changes ...Change) []*Commit {
	commits := make([]*Commit, len(changes))
	wanted := make([]state, len(changes))
	for i, c := range changes {
		commits[i] = &Commit{owner: c.Owner, done: make(chan struct{})}
		var err error
		if wanted[i] = c.prepared; wanted[i] != nil {
			continue
		}
		if wanted[i], err = compile(c.Owner, c.State); err != nil {
			commits[i].complete(fmt.Errorf("%s: %w", c.Owner, err))
			wanted[i] = nil
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, commit := range commits {
		if wanted[i] != nil {
			s.enqueue(commit, wanted[i])
		}
	}
	return commits
}

func (s *Store) enqueue(commit *Commit, wanted state) {
	owner := commit.owner
	if c := s.queued[owner]; c != nil {
		c.new = wanted
		c.commits = append(c.commits, commit)
		return
	}
	if s.synced == s.asked && !s.busy[owner] && wanted.equal(s.current[owner]) {
		commit.complete(nil)
		return
	}
	c := &change{owner: owner, new: wanted, commits: []*Commit{commit}}
	s.queue = append(s.queue, c)
	s.queued[owner] = c
	signal(s.changed)
}

// Delete takes everything of the owner off the switch.
func (s *Store) Delete(owner pipeline.Owner) *Commit {
	return s.Set(owner, pipeline.State{})
}

// Resync asks for a full replacement: Open vSwitch came back, or somebody else wrote to the bridge. It also ends the pause
// after one that failed.
func (s *Store) Resync() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	signal(s.resync)
}

// signal leaves a note for the writer, unless there is one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run is the writer. It first replaces all flows on the bridge with what is desired by then, then sends changes as they come, those
// that arrive together in one bundle. It returns nil when ctx ends, and may be called again then.
func (s *Store) Run(ctx context.Context) error {
	if !s.running.TryLock() {
		return errors.New("the store has a writer already")
	}
	defer s.running.Unlock()
	s.Resync()
	audit := time.NewTicker(s.auditEvery)
	defer audit.Stop()
	backoff := s.backoff
	for ctx.Err() == nil {
		if err := s.write(ctx); err != nil && ctx.Err() == nil {
			delay := backoff.Step()
			klog.FromContext(ctx).Error(err, "The switch could not be brought up to date; all its flows will be compared", "in", delay)
			s.pause(ctx, delay)
			continue
		}
		backoff = s.backoff
		select {
		case <-s.changed:
		case <-s.resync:
		case <-audit.C:
			s.askForAudit()
		case <-ctx.Done():
		}
	}
	return nil
}

// pause waits before the next full replacement. Only a call of Resync shortens it: changes come by the hundred.
func (s *Store) pause(ctx context.Context, delay time.Duration) {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.resync:
	case <-ctx.Done():
	}
}
