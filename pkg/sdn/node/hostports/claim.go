package hostports

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
)

// Bounds of the rules that each new connection to the node is compared with.
const (
	maxMappings     = 64   // of an attachment
	maxNodeMappings = 1024 // of a node
)

// claim is a record, from the start of ADD to the end of DEL.
type claim struct {
	attachment Attachment
	changing   chan struct{} // held while rules of the record are written or deleted

	// Guarded by Ports.mu.
	record record
	adding bool // ADD is in progress
}

func newClaim(r record) *claim {
	return &claim{attachment: r.Attachment, record: r, changing: make(chan struct{}, 1)}
}

// lock waits until no other goroutine changes the claim's rules. It returns false if the claim was released.
func (p *Ports) lock(ctx context.Context, c *claim) (unlock func(), ok bool, err error) {
	select {
	case c.changing <- struct{}{}:
	case <-ctx.Done():
		return nil, false, fmt.Errorf("wait for host ports of sandbox %s: %w", c.attachment.Sandbox, ctx.Err())
	}
	unlock = func() { <-c.changing }
	if p.get(c.attachment) != c {
		unlock()
		return nil, false, nil
	}
	return unlock, true, nil
}

// claims returns the claims, ordered by attachment.
func (p *Ports) claims() []*claim {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []*claim
	for _, a := range slices.SortedFunc(maps.Keys(p.known), Attachment.compare) {
		all = append(all, p.known[a])
	}
	return all
}

// get returns the claim of an attachment, or nil.
func (p *Ports) get(a Attachment) *claim {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.known[a]
}

func (p *Ports) recordOf(c *claim) record {
	p.mu.Lock()
	defer p.mu.Unlock()
	return c.record
}

func (p *Ports) setResult(c *claim, result *current.Result) record {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.record.Result = result
	return c.record
}

func (p *Ports) isAdding(c *claim) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return c.adding
}

// added ends ADD.
func (p *Ports) added(c *claim) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.adding = false
}

func (p *Ports) drop(c *claim) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known[c.attachment] == c {
		delete(p.known, c.attachment)
	}
}

// claim reserves the host ports of the record. If other sandboxes have some of them, it returns these.
func (p *Ports) claim(r record) (c *claim, holders []*claim, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.known[r.Attachment] != nil {
		return nil, nil, types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("sandbox %s already has host ports; call DEL before ADD", r.Sandbox), "")
	}
	mappings := len(r.Mappings)
	for _, other := range p.known {
		mappings += len(other.record.Mappings)
		if overlapping(other.record.Mappings, r.Mappings) != nil {
			holders = append(holders, other)
		}
	}
	switch {
	case len(holders) > 0:
		return nil, holders, nil
	case mappings > p.nodeLimit:
		return nil, nil, types.NewError(types.ErrTryAgainLater, fmt.Sprintf("the node's pods have %d host ports, the maximum is %d", mappings-len(r.Mappings), p.nodeLimit), "")
	}
	c = newClaim(r)
	c.adding = true
	p.known[r.Attachment] = c
	return c, nil, nil
}

// overlapping returns the first of the mappings b that overlaps one of a, or nil.
func overlapping(a, b []Mapping) *Mapping {
	for i := range b {
		if slices.ContainsFunc(a, b[i].Overlaps) {
			return &b[i]
		}
	}
	return nil
}
