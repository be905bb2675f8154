package policies

import (
	"context"
	"fmt"
	"time"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/policy"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/store"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// largeChange is a change of so many pieces that it is compiled in parts, between which pods of other namespaces start. All of it reaches the switch in one
// bundle. The engine hides the rules that it is about in the meantime.
type largeChange struct {
	pieces  map[policy.Piece]struct{}       // to be compiled, also again
	changes map[pipeline.Owner]store.Change // compiled; only finish uses them
	pods    map[policy.PodKey]struct{}      // that came in the meantime
	urgent  bool                            // all other changes wait for it

	done    chan struct{}
	commits []*store.Commit // once done is closed
}

// wait waits until the switch has the change.
func (l *largeChange) wait(ctx context.Context) error {
	select {
	case <-l.done:
		return wait(l.commits)(ctx)
	case <-ctx.Done():
		return fmt.Errorf("wait for network policies to be compiled: %w", ctx.Err())
	}
}

// take removes and returns at most n pieces.
func (l *largeChange) take(n int) (pieces []policy.Piece) {
	for piece := range l.pieces {
		if len(pieces) == n {
			break
		}
		delete(l.pieces, piece)
		pieces = append(pieces, piece)
	}
	return pieces
}

// postpone makes changed pieces a part of the large change, and makes one if they are many. It returns nil if they have to be sent now. What changes in
// the meantime is compiled for both, on the switch now and again with the large change, unless it is about the same rules.
func (p *Policies) postpone(pieces []policy.Piece) *largeChange {
	engine := p.compiler.engine
	large := len(pieces) > sendPieces && p.written || p.large != nil && (p.large.urgent || engine.Joins())
	if large && !engine.Hide() {
		large = p.large != nil
		if large {
			p.large.urgent = true
		}
	}
	if large && p.large == nil {
		p.large = &largeChange{
			pieces: map[policy.Piece]struct{}{}, changes: map[pipeline.Owner]store.Change{}, pods: map[policy.PodKey]struct{}{}, done: make(chan struct{}),
		}
		p.updates.Poke()
	}
	if p.large != nil {
		for _, piece := range pieces {
			p.large.pieces[piece] = struct{}{}
		}
	}
	if !large {
		return nil
	}
	return p.large
}

// isPostponed reports whether a large change is about the pod.
func (p *Policies) isPostponed(key policy.PodKey) bool {
	if p.large == nil {
		return false
	}
	_, came := p.large.pods[key]
	return came || p.compiler.engine.Hides(key.Namespace)
}

// maxParts bounds the parts of a large change: what is left after as many is compiled at once, or changes without end would postpone it for ever. It is
// twice what budgets allow.
const maxParts = 200

// finish compiles the large change, if there is one, and returns when the switch has it. Only update calls it.
func (p *Policies) finish(ctx context.Context) error {
	for parts := 0; ctx.Err() == nil; parts++ {
		p.mu.Lock()
		l, start := p.large, time.Now()
		if l == nil {
			p.mu.Unlock()
			return nil
		}
		if len(l.pieces) <= sendPieces || l.urgent || parts == maxParts {
			p.complete(l)
			p.compileTime.add(ctx, time.Since(start))
			p.mu.Unlock()
			p.report(ctx, l.wait(ctx))
			return ctx.Err()
		}
		var changes []store.Change
		p.compiler.engine.Preview(func() {
			for _, piece := range l.take(sendPieces) {
				changes = append(changes, p.change(piece))
			}
		})
		p.compileTime.add(ctx, time.Since(start))
		p.mu.Unlock()
		for _, c := range changes {
			l.changes[c.Owner] = c.Prepare()
		}
		if p.between != nil {
			p.between()
		}
	}
	return ctx.Err()
}

// complete compiles the rest of the large change, and gives all to the switch.
func (p *Policies) complete(l *largeChange) {
	p.large = nil
	p.compiler.engine.Reveal()
	for piece := range l.pieces {
		c := p.change(piece)
		l.changes[c.Owner] = c
	}
	changes := make([]store.Change, 0, len(l.changes))
	for _, c := range l.changes {
		changes = append(changes, c)
	}
	var owners []pipeline.Owner
	for key, pods := range p.compiler.local {
		if p.note(key) {
			for owner := range pods {
				owners = append(owners, owner)
			}
		}
	}
	l.commits = p.sw.Recompile(changes, owners...)
	lost := p.compiler.engine.Lost()
	lost.Permission = true // perhaps reported with a smaller change, when the switch still allowed it
	p.cuts.Heed(lost, l.commits...)
	close(l.done)
}
