package flowstore

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// Snapshot has the flows of all owners at one time: those of the last successful write, and those of refused owners. Its methods do not block the store.
type Snapshot struct {
	current map[pipeline.Owner]state
	refused map[pipeline.Owner]state
	numbers *groupNumbers
	writes  uint64
}

// Snapshot returns a snapshot. States do not change, so that it copies only the list of owners under the lock.
func (s *Store) Snapshot() *Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	refused := make(map[pipeline.Owner]state, len(s.refused))
	for owner, r := range s.refused {
		refused[owner] = r.state
	}
	return &Snapshot{current: maps.Clone(s.current), refused: refused, numbers: s.table.numbers, writes: s.writes}
}

// IsCurrent reports whether no write began or ended since the snapshot, and none was in progress then. The switch had its flows all the time, unless another
// program changed them.
func (s *Store) IsCurrent(of *Snapshot) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return of.writes == s.writes && of.writes%2 == 0
}

// DesiredFlow is a flow that the switch should have.
type DesiredFlow struct {
	Key         ovs.Key
	Actions     string // in the syntax of ovs-ofctl, which may print them differently
	IdleTimeout int    // seconds
	Cookie      uint64
	Owners      []pipeline.Owner // sorted
}

// Flows returns the flows with an owner that is chosen, with all their owners, in no order.
func (s *Snapshot) Flows(ctx context.Context, chosen func(pipeline.Owner) bool) ([]DesiredFlow, error) {
	merged := map[ovs.Key]*mergedFlow{}
	for owner, st := range s.current {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if chosen(owner) {
			merge(merged, owner, st)
		}
	}
	if err := s.mergeOthers(ctx, merged, chosen); err != nil {
		return nil, err
	}
	for owner, st := range s.refused {
		if chosen(owner) {
			mergeRefused(merged, owner, st, s.current)
		}
	}
	flows, err := s.flows(merged)
	if err != nil {
		return nil, err
	}
	return flows, ctx.Err()
}

func (s *Snapshot) flows(merged map[ovs.Key]*mergedFlow) ([]DesiredFlow, error) {
	flows := make([]DesiredFlow, 0, len(merged))
	for key, m := range merged {
		f, err := s.flow(key, m)
		if err != nil {
			return nil, err
		}
		flows = append(flows, f)
	}
	return flows, nil
}

// FlowsAt returns the flows with the keys, with all their owners, in no order. cookies has the cookie of each flow on the switch: owners of kinds that have
// none of them are not considered, unless an owner of no kind has one. For each owner it costs the number of the keys, or that of its flows if they are fewer.
func (s *Snapshot) FlowsAt(ctx context.Context, cookies map[ovs.Key]uint64) ([]DesiredFlow, error) {
	byKind := map[pipeline.Kind][]key{}
	var shared []key // of any owner
	for k, cookie := range cookies {
		if kind := pipeline.CookieKind(cookie); isOfAny(kind) {
			shared = append(shared, flowKey(k))
		} else {
			byKind[kind] = append(byKind[kind], flowKey(k))
		}
	}
	merged := map[ovs.Key]*mergedFlow{}
	for owner, st := range s.current {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		own := byKind[owner.Kind]
		if len(st) < len(shared)+len(own) {
			mergeAt(merged, owner, st, cookies)
			continue
		}
		for _, keys := range [][]key{shared, own} {
			for _, k := range keys {
				if c, ok := st[k]; ok {
					mergeOne(merged, owner, k.flow(), c)
				}
			}
		}
	}
	return s.flows(merged)
}

// isOfAny reports whether a flow with a cookie of the kind may be of any owner.
func isOfAny(kind pipeline.Kind) bool { return kind == pipeline.KindShared || kind == 0 }

// mergeAt adds the owner's contributions to the flows with the cookies.
func mergeAt(into map[ovs.Key]*mergedFlow, owner pipeline.Owner, st state, cookies map[ovs.Key]uint64) {
	for k, c := range st {
		cookie, wanted := cookies[k.flow()]
		if kind := pipeline.CookieKind(cookie); wanted && k.kind == kindFlow && (isOfAny(kind) || kind == owner.Kind) {
			mergeOne(into, owner, k.flow(), c)
		}
	}
}

// Has reports whether the owner has flows, or flows that are refused.
func (s *Snapshot) Has(owner pipeline.Owner) bool {
	return len(s.current[owner]) > 0 || len(s.refused[owner]) > 0
}

// Owners calls each for all owners, in no order.
func (s *Snapshot) Owners(each func(pipeline.Owner)) {
	for owner := range s.current {
		each(owner)
	}
	for owner := range s.refused {
		if _, twice := s.current[owner]; !twice {
			each(owner)
		}
	}
}

// mergedFlow is a flow with the contributions of its owners.
type mergedFlow struct {
	owners       []pipeline.Owner
	one          contribution
	oneOwner     pipeline.Owner
	conjunctions map[string]struct{}
}

func (m *mergedFlow) add(owner pipeline.Owner, c contribution) {
	if len(m.owners) == 0 {
		m.one, m.oneOwner = c, owner
	}
	m.owners = append(m.owners, owner)
	if !c.body.conjunction {
		return
	}
	if m.conjunctions == nil {
		m.conjunctions = make(map[string]struct{}, len(c.conjunctions()))
	}
	for _, text := range c.conjunctions() {
		m.conjunctions[text] = struct{}{}
	}
}

func merge(into map[ovs.Key]*mergedFlow, owner pipeline.Owner, st state) {
	for k, c := range st {
		if k.kind == kindFlow {
			mergeOne(into, owner, k.flow(), c)
		}
	}
}

func mergeOne(into map[ovs.Key]*mergedFlow, owner pipeline.Owner, k ovs.Key, c contribution) {
	m := into[k]
	if m == nil {
		m = &mergedFlow{}
		into[k] = m
	}
	m.add(owner, c)
}

// mergeOthers adds the contributions of owners that were not chosen to the flows of those that were.
func (s *Snapshot) mergeOthers(ctx context.Context, merged map[ovs.Key]*mergedFlow, chosen func(pipeline.Owner) bool) error {
	for owner, st := range s.current {
		if err := ctx.Err(); err != nil {
			return err
		}
		if chosen(owner) {
			continue
		}
		for k, c := range st {
			if m := merged[k.flow()]; m != nil && k.kind == kindFlow {
				m.add(owner, c)
			}
		}
	}
	return nil
}

// mergeRefused adds the refused flows of an owner that no owner has: they are missing on the switch.
func mergeRefused(merged map[ovs.Key]*mergedFlow, owner pipeline.Owner, st state, current map[pipeline.Owner]state) {
	others := state{}
	for k, c := range st {
		if _, installed := current[owner][k]; !installed && merged[k.flow()] == nil {
			others[k] = c
		}
	}
	merge(merged, owner, others)
}

func (s *Snapshot) flow(key ovs.Key, m *mergedFlow) (DesiredFlow, error) {
	body := m.one.body
	f := DesiredFlow{Key: key, Actions: body.text, IdleTimeout: int(body.idleTimeout), Cookie: m.oneOwner.Cookie(), Owners: m.owners}
	slices.SortFunc(f.Owners, compareOwners)
	if len(m.owners) > 1 {
		f.Cookie = pipeline.SharedCookie()
	}
	if body.conjunction {
		f.Actions = strings.Join(slices.Sorted(maps.Keys(m.conjunctions)), ",")
		return f, nil
	}
	if !m.one.hasReferences() {
		return f, nil
	}
	actions, _ := replaceReferences(m.one.details.actions, func(r pipeline.Reference) (ovs.Action, error) {
		if n := s.numbers.number(groupKey(m.oneOwner, r.Group)); n != 0 {
			return ovs.ToGroup(n), nil
		}
		return r, nil // removed since the snapshot, or never installed
	})
	var err error
	f.Actions, err = ovs.ActionsText(&ovs.Flow{Table: key.Table, Priority: key.Priority, Actions: actions})
	return f, err
}

// Refusal is the error of an owner whose flows are not installed.
type Refusal struct {
	Owner pipeline.Owner
	Err   error
}

// Refusals returns the refusals, sorted by owner, at most that many, and the number of others.
func (s *Store) Refusals(most int) (refusals []Refusal, more int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	owners := slices.SortedFunc(maps.Keys(s.refused), compareOwners)
	for _, owner := range owners[:min(most, len(owners))] {
		refusals = append(refusals, Refusal{Owner: owner, Err: s.refused[owner].err})
	}
	return refusals, len(owners) - len(refusals)
}
