package flowstore

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// Update is a set of changes that are applied in one bundle, so that no packet is handled by only some of them. Changes that the switch rejects, and those in
// conflict, are omitted.
type Update struct {
	Changes []Change

	// Inputs are published and withdrawn before Changes are compiled. All other owners that read them are compiled again.
	Publish  []Published
	Withdraw []Input
	Retire   []Input // withdrawn with their last reader; until then readers retain the value, and Require does not accept it

	Revoked Revocation // flushed from conntrack after the changes, and never waited for
}

// Published is the value of an input. It must not be modified afterwards.
type Published struct {
	Input Input
	Value any
}

// A Change is the new desired state of an owner: a constant, or a function of inputs. The zero state removes the owner.
type Change struct {
	Owner pipeline.Owner
	State pipeline.State // flows must not be modified afterwards; their cookies are ignored

	// Compile returns the state instead of State, from the values of Reads. It is called by Update, and again after each change of one of them; it must be
	// fast, and must not call the Store. While one of Reads has no value, the owner has no flows.
	Reads   []Input
	Compile func(*Values) pipeline.State

	prepared state // nil: not yet
}

// Prepare does the expensive part of Update in advance, for a constant state.
func (c Change) Prepare() Change {
	if c.Compile != nil {
		return c
	}
	return c.withPrepared(compile(c.Owner, c.State))
}

// PrepareAfter is Prepare for an owner with many flows, of which an earlier result of PrepareAfter, or the zero Change, had most: it does not compile those again
// that are the same objects. The store retains these objects.
func (c Change) PrepareAfter(previous Change) Change {
	if c.Compile != nil {
		return c
	}
	return c.withPrepared(compileAfter(c.Owner, c.State, previous.prepared))
}

func (c Change) withPrepared(st state, err error) Change {
	if err == nil { // else Update reports it
		c.prepared = st
	}
	return c
}

// Set makes st the owner's state.
func (s *Store) Set(owner pipeline.Owner, st pipeline.State) *Commit {
	return s.SetAll(Change{Owner: owner, State: st})[0]
}

// Delete removes the owner.
func (s *Store) Delete(owner pipeline.Owner) *Commit { return s.Set(owner, pipeline.State{}) }

// SetAll is Update without inputs.
func (s *Store) SetAll(changes ...Change) []*Commit { return s.Update(Update{Changes: changes}) }

// Update queues all changes together, without waiting for the switch. The first commits are those of u.Changes, in their order; those of other owners that
// were compiled again follow. The commit of an owner that reads an input without a value fails with a *MissingInputError.
func (s *Store) Update(u Update) []*Commit {
	s.inputs.announceMissing(u)
	commits, changed := s.update(u)
	s.inputs.notify(changed)
	return commits
}

func (s *Store) update(u Update) ([]*Commit, []Input) {
	work := make([]compilation, len(u.Changes))
	for i, c := range u.Changes {
		work[i] = c.constant() // without the lock, since there may be thousands
	}
	in := &s.inputs
	in.mu.Lock()
	defer in.mu.Unlock()
	changed, readers := in.apply(u)
	for i, c := range u.Changes {
		delete(readers, c.Owner)
		in.unregister(c.Owner, c.Reads)
		if c.Compile != nil {
			r := &reader{reads: c.Reads, compile: c.Compile}
			in.register(c.Owner, r)
			work[i] = in.compile(c.Owner, r)
		}
	}
	others := make([]compilation, 0, len(readers))
	for owner, r := range readers {
		others = append(others, in.compile(owner, r))
	}
	slices.SortFunc(others, func(a, b compilation) int { return compareOwners(a.commit.owner, b.commit.owner) })
	work = append(work, others...)

	commits := make([]*Commit, len(work))
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, c := range work {
		commits[i] = c.commit
		switch {
		case c.err == nil:
			s.enqueue(c.commit, c.wanted)
			continue
		case errors.As(c.err, new(*MissingInputError)):
			s.enqueue(newCommit(c.commit.owner), state{}) // unknown is not empty: without its inputs the owner has no flows
		}
		c.commit.complete(fmt.Errorf("%s: %w", c.commit.owner, c.err))
	}
	if u.Revoked.Permission || len(u.Revoked.Addrs) > 0 {
		s.revoked.add(u.Revoked)
		signal(s.changed)
	}
	return commits, changed
}

// compilation is the result of compiling an owner.
type compilation struct {
	commit *Commit
	wanted state // nil: the owner retains its state
	err    error
}

func newCommit(owner pipeline.Owner) *Commit { return &Commit{owner: owner, done: make(chan struct{})} }

// failed reports whether the switch or the compiler rejected the change.
func (c *Commit) failed() bool {
	select {
	case <-c.done:
		return c.err != nil
	default:
		return false
	}
}

// apply publishes and withdraws inputs. It returns those whose value, published or default, changed, and the owners to be compiled again: readers of these, and
// those of all published inputs whose previous change was rejected.
func (in *inputs) apply(u Update) (changed []Input, readers map[pipeline.Owner]*reader) {
	readers = map[pipeline.Owner]*reader{}
	for _, p := range u.Publish {
		before, known := in.value(p.Input)
		same := known && reflect.DeepEqual(before, p.Value)
		delete(in.retired, p.Input)
		in.published[p.Input] = p.Value
		for owner, r := range in.readers[p.Input] {
			if !same || r.last.failed() {
				readers[owner] = r
			}
		}
		if !same {
			changed = append(changed, p.Input)
		}
	}
	for _, input := range u.Withdraw {
		before, published := in.published[input]
		if !published {
			continue
		}
		in.withdraw(input)
		if now, known := in.value(input); known && reflect.DeepEqual(before, now) {
			continue
		}
		changed = append(changed, input)
		for owner, r := range in.readers[input] {
			readers[owner] = r
		}
	}
	for _, input := range u.Retire {
		if _, published := in.published[input]; published && len(in.readers[input]) > 0 {
			in.retired[input] = struct{}{}
		} else if published {
			in.withdraw(input)
			changed = append(changed, input)
		}
	}
	return changed, readers
}

// constant compiles a change that reads no inputs.
func (c Change) constant() compilation {
	result := compilation{commit: newCommit(c.Owner), wanted: c.prepared}
	if result.wanted == nil && c.Compile == nil {
		result.wanted, result.err = compile(c.Owner, c.State)
	}
	return result
}

// compile compiles the reader for the current inputs.
func (in *inputs) compile(owner pipeline.Owner, r *reader) compilation {
	result := compilation{commit: newCommit(owner)}
	r.last = result.commit
	values, err := in.values(r.reads)
	if err != nil {
		result.err = err
		return result
	}
	st := r.compile(values)
	if result.err = values.err; result.err == nil {
		result.wanted, result.err = compile(owner, st)
	}
	return result
}

// Compiled returns the state of an owner with a Compile function for the current inputs; nil if there is no such owner, or an input has no value.
func (s *Store) Compiled(owner pipeline.Owner) *pipeline.State {
	s.inputs.mu.RLock()
	defer s.inputs.mu.RUnlock()
	r := s.inputs.owners[owner]
	if r == nil {
		return nil
	}
	values, err := s.inputs.values(r.reads)
	if err != nil {
		return nil
	}
	st := r.compile(values)
	return &st
}

// Require makes sure that the inputs have values that are not retired. It calls Resolve of the sources of the others. The error is that of Resolve, or a
// *MissingInputError.
func (s *Store) Require(ctx context.Context, all ...Input) error {
	for _, input := range all {
		if s.inputs.current(input) {
			continue
		}
		resolve := s.inputs.source(input.Kind).Resolve
		if resolve == nil {
			return &MissingInputError{Inputs: []Input{input}}
		}
		if err := resolve(ctx, input.Key); err != nil {
			return err
		}
	}
	return nil
}
