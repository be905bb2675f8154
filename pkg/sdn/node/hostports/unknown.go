package hostports

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"
	"sigs.k8s.io/knftables"
)

// ruleIDPrefix starts the ids of rules of this package; those of other plugins are of runtimes' container ids.
const ruleIDPrefix = "ovsdn-"

// owner identifies the rules of one record.
type owner struct {
	backend Backend
	network string
	id      string
}

// RemoveUnknown implements Plugin. With nftables one transaction deletes all rules: an uninstallation has no time to run portmap for each pod.
func (p *Portmap) RemoveUnknown(ctx context.Context, known func() func(id string) bool) (removed []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, portmapTimeout)
	defer cancel()
	removed, err = p.removeUnknownNFTables(ctx, known)
	errs := []error{err}
	for _, b := range existingTables() {
		owners := p.owners(b)
		isKnown := known()
		for o := range owners {
			if isKnown(o.id) || ctx.Err() != nil {
				continue
			}
			if err := p.del(ctx, o); err != nil {
				errs = append(errs, fmt.Errorf("rules %s: %w", o.id, err))
				continue
			}
			removed = append(removed, o.id)
		}
	}
	if err := errors.Join(append(errs, ctx.Err())...); err != nil {
		return removed, fmt.Errorf("delete unknown host ports: %w", err)
	}
	return removed, nil
}

func (p *Portmap) removeUnknownNFTables(ctx context.Context, known func() func(id string) bool) (removed []string, err error) {
	nft, err := p.nftables()
	if err != nil {
		return nil, nil //nolint:nilerr // without nftables there are no rules
	}
	rules, err := nft.ListRules(ctx, "")
	if err != nil && !knftables.IsNotFound(err) {
		return nil, fmt.Errorf("list table ip %s: %w", nftTable, err)
	}
	tx, isKnown := nft.NewTransaction(), known()
	for _, r := range rules {
		if r.Comment == nil || !strings.HasPrefix(*r.Comment, ruleIDPrefix) || isKnown(*r.Comment) {
			continue
		}
		tx.Delete(r)
		if !slices.Contains(removed, *r.Comment) {
			removed = append(removed, *r.Comment)
		}
	}
	if len(removed) == 0 {
		return nil, nil
	}
	if err := nft.Run(ctx, tx); err != nil {
		return nil, fmt.Errorf("delete rules of table ip %s: %w", nftTable, err)
	}
	return removed, nil
}

// existingTables returns the backends of iptables whose table nat exists: the legacy one would create it when it lists it.
func existingTables() []Backend {
	if tables, err := os.ReadFile(legacyTablesFile); err == nil && slices.Contains(strings.Fields(string(tables)), natTable) {
		return []Backend{BackendIPTables, BackendLegacy}
	}
	return []Backend{BackendIPTables}
}

// owners returns the owners of rules of this package in a backend of iptables. It lists one chain, since the table may be large.
func (p *Portmap) owners(b Backend) map[owner]bool {
	ipt, err := p.iptables(b)
	if err != nil {
		return nil // without iptables there are no rules
	}
	lines, err := ipt.List(natTable, portsChain)
	if err != nil {
		return nil // the chain does not exist; the error for that depends on the version of iptables
	}
	owners := map[owner]bool{}
	for _, line := range lines {
		if o, ok := ownerOfJump(strings.Fields(line)); ok {
			o.backend = b
			owners[o] = true
		}
	}
	return owners
}

// ownerOfJump reads the comment of a jump to a pod's chain, which is one word of iptables: dnat name: "NETWORK" id: "ID".
func ownerOfJump(words []string) (o owner, ok bool) {
	value := func(key string) string {
		i := slices.Index(words, key)
		if i < 0 || i == len(words)-1 {
			return ""
		}
		return strings.Trim(words[i+1], `\"`)
	}
	o = owner{network: value("name:"), id: value("id:")}
	return o, o.network != "" && strings.HasPrefix(o.id, ruleIDPrefix)
}

// removeUnknown deletes rules without a record, which was damaged, or deleted while no agent ran: the next pod with the address would inherit them. Those of a
// sandbox that runs remain until it is detached. Without such rules they are listed at the start, and after an ADD that failed.
func (r *reconciler) removeUnknown(ctx context.Context) error {
	if r.allRecorded && !r.isSuspect() {
		return nil
	}
	unrecorded := false
	removed, err := r.Plugin.RemoveUnknown(ctx, func() func(string) bool {
		recorded, attached := map[string]bool{}, map[string]bool{}
		for _, c := range r.claims() {
			recorded[c.attachment.ruleID()] = true
		}
		for a := range r.Attached() {
			attached[a.ruleID()] = true
		}
		return func(id string) bool {
			unrecorded = unrecorded || attached[id] && !recorded[id]
			return recorded[id] || attached[id]
		}
	})
	if len(removed) > 0 {
		klog.FromContext(ctx).Info("Deleted host ports without a record", "rules", removed)
	}
	r.allRecorded = err == nil && !unrecorded
	return err
}

// suspectPeriod is longer than iptables and nft wait for the kernel or another program.
const suspectPeriod = time.Minute

// suspect reports a failed ADD: a program that portmap had started, and which outlived it, may write rules after they were deleted.
func (p *Ports) suspect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.suspectUntil = time.Now().Add(suspectPeriod)
}

func (p *Ports) isSuspect() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Now().Before(p.suspectUntil)
}
