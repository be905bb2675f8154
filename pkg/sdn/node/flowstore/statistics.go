package flowstore

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// Statistics describe the state of the store, and what has happened since New.
type Statistics struct {
	Flows, Groups, Meters int // installed
	Refused               int // owners whose desired state is not installed, see Healthy

	Drift      ovs.Difference // see Store.Drift
	Repairs    uint64         // audits that found changes by other programs
	Conflicts  uint64         // changes that failed because of another owner's flow
	Rejections uint64         // changes and owners whose flows the switch rejected

	LastWrite time.Time // of changes, or of all flows, that succeeded; zero: none
	LastAudit time.Time // comparison of all flows that succeeded; zero: none

	// PendingSince is the time since which the switch lacks a part of the desired state that it has not rejected, with all changes that have arrived since; zero: none.
	PendingSince time.Time
}

// Statistics returns the current statistics.
func (s *Store) Statistics() Statistics {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.counters
	st.Drift, st.Refused, st.PendingSince = s.drift, len(s.refused), s.pending.since()
	installed := s.table.installed
	st.Flows, st.Groups, st.Meters = int(installed[kindFlow].Load()), int(installed[kindGroup].Load()), int(installed[kindMeter].Load())
	return st
}

// installed counts installed elements by kind. The writer changes it, and Statistics reads it.
type installed [numKinds]atomic.Int64

// record counts a change of an element.
func (i *installed) record(k key, was, is bool) {
	switch {
	case is && !was:
		i[k.kind].Add(1)
	case was && !is:
		i[k.kind].Add(-1)
	}
}

// recordWrite records the time of a successful write. The caller holds the lock.
func (s *Store) recordWrite(w Write, changes int) {
	now := time.Now()
	if w != WriteChanges {
		s.counters.LastAudit = now
	}
	if w != WriteAudit || changes > 0 {
		s.counters.LastWrite = now
	}
}

// countFailed counts the first failure of an owner's change. The caller holds the lock.
func (s *Store) countFailed(err error) {
	if _, ok := errors.AsType[*ConflictError](err); ok {
		s.counters.Conflicts++
	} else {
		s.counters.Rejections++
	}
}

// Observer receives the durations of the store's work. Its methods must not block.
type Observer interface {
	// Committed reports a change that was queued: the time since then, and the error of a rejection.
	Committed(duration time.Duration, err error)
	// Written reports one write to the switch.
	Written(w Write, duration time.Duration, err error)
}

// Write is the kind of a write to the switch.
type Write string

// The kinds of writes.
const (
	WriteChanges Write = "changes" // one bundle with the changes of some owners
	WriteAll     Write = "all"     // a comparison of all flows with those of the switch, at the start and after failures
	WriteAudit   Write = "audit"   // the same, to find changes by other programs
)

// Observe sets the observer. It must be called before Run and Update.
func (s *Store) Observe(o Observer) { s.observer = o }

// noObserver is the Observer of a store without one.
type noObserver struct{}

func (noObserver) Committed(time.Duration, error)      {}
func (noObserver) Written(Write, time.Duration, error) {}
