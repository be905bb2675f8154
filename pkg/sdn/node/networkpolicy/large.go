package networkpolicy

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
)

// largeChange is a change of more than maxClauses clauses. It is compiled in parts, between which pods of other namespaces can start, and installed in one
// bundle. Until then its rules are staged: Engine.Compile leaves them out.
type largeChange struct {
	clauses map[policy.Clause]struct{}          // to be compiled, or compiled again
	changes map[pipeline.Owner]flowstore.Change // compiled; only compileLarge accesses them
	pods    map[policy.PodKey]struct{}          // attached or detached since it began
	urgent  bool                                // it must be completed before any other change

	done    chan struct{}
	commits []*flowstore.Commit // valid after done is closed
}

// wait waits until the change is installed.
func (l *largeChange) wait(ctx context.Context) error {
	select {
	case <-l.done:
		return wait(l.commits)(ctx)
	case <-ctx.Done():
		return fmt.Errorf("wait for network policies to be compiled: %w", ctx.Err())
	}
}

// take removes and returns at most n clauses.
func (l *largeChange) take(n int) (clauses []policy.Clause) {
	for clause := range l.clauses {
		if len(clauses) == n {
			break
		}
		delete(l.clauses, clause)
		clauses = append(clauses, clause)
	}
	return clauses
}

// postpone adds changed clauses to the large change, and begins one if there are more than maxClauses. It returns nil if they must be sent now. Such
// clauses are compiled again with the large change, which may have more rules for them.
func (p *Policies) postpone(clauses []policy.Clause) *largeChange {
	engine := p.compiler.engine
	large := len(clauses) > maxClauses && p.started || p.large != nil && (p.large.urgent || engine.JoinsStaged())
	if large && !engine.Stage() {
		large = p.large != nil
		if large {
			p.large.urgent = true
		}
	}
	if large && p.large == nil {
		p.large = &largeChange{
			clauses: map[policy.Clause]struct{}{}, changes: map[pipeline.Owner]flowstore.Change{}, pods: map[policy.PodKey]struct{}{}, done: make(chan struct{}),
		}
		p.updates.Trigger()
	}
	if p.large != nil {
		for _, clause := range clauses {
			p.large.clauses[clause] = struct{}{}
		}
	}
	if !large {
		return nil
	}
	return p.large
}

// isPostponed reports whether rules of the pod are a part of the large change.
func (p *Policies) isPostponed(key policy.PodKey) bool {
	if p.large == nil {
		return false
	}
	_, changed := p.large.pods[key]
	return changed || p.compiler.engine.IsStaged(key.Namespace)
}

// maxParts bounds the parts of a large change: the rest is compiled at once, so that continuous changes can't delay it forever. It is twice the number
// that budgets allow.
const maxParts = 200

// compileLarge compiles the large change, if there is one, and returns when it is installed. Only update calls it.
func (p *Policies) compileLarge(ctx context.Context) error {
	for parts := 0; ctx.Err() == nil; parts++ {
		p.mu.Lock()
		l, start := p.large, time.Now()
		if l == nil {
			p.mu.Unlock()
			return nil
		}
		if len(l.clauses) <= maxClauses || l.urgent || parts == maxParts {
			p.complete(l)
			p.compileTime.add(ctx, time.Since(start))
			p.mu.Unlock()
			reportRejected(ctx, l.wait(ctx))
			return ctx.Err()
		}
		var changes []flowstore.Change
		p.compiler.engine.WithStaged(func() {
			for _, clause := range l.take(maxClauses) {
				changes = append(changes, p.change(clause))
			}
		})
		p.compileTime.add(ctx, time.Since(start))
		p.mu.Unlock()
		for _, c := range changes {
			l.changes[c.Owner] = c.Prepare()
		}
		if p.afterPart != nil {
			p.afterPart()
		}
	}
	return ctx.Err()
}

// complete compiles the rest of the large change, and sends all of it to the store.
func (p *Policies) complete(l *largeChange) {
	p.large = nil
	p.compiler.engine.EndStaging()
	for clause := range l.clauses {
		c := p.change(clause)
		l.changes[c.Owner] = c
	}
	revoked := flowstore.Revocation(p.compiler.engine.Revoked())
	revoked.Permission = true // an earlier Revoked may have reported it, when the switch still had the flows
	u := flowstore.Update{Changes: slices.Collect(maps.Values(l.changes)), Revoked: revoked}
	for key := range p.compiler.local {
		p.publish(&u, key)
	}
	l.commits = p.store.Update(u)
	close(l.done)
}
