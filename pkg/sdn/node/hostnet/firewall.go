package hostnet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-iptables/iptables"
	"k8s.io/klog/v2"
)

// program is what Firewall uses of go-iptables.
type program interface {
	List(table, chain string) ([]string, error)
	NewChain(table, chain string) error
	ClearAndDeleteChain(table, chain string) error
	Insert(table, chain string, pos int, rule ...string) error
	Delete(table, chain string, rule ...string) error
	DeleteById(table, chain string, id int) error
}

// Firewall holds the host's iptables to the rules.
//
// Rules are in chains of our own, and only those chains and the jumps to them are touched. Chains are listed one by one, since
// listing a table costs a second where kube-proxy has 20,000 services, and a chain 5 ms anywhere.
type Firewall struct {
	iptables program
	rules    Ruleset
	// unused has what there may be of ours in the backend that the host does not use; nil once Sync has removed it.
	unused *Firewall
	fault  fault
	vteps  *VTEPs

	podConnections func() (int, error) // nil: no limit

	syncing sync.Mutex // of Sync

	mu      sync.Mutex
	skipped map[string]error // causes of missing optional chains, by chain name
}

// lockWait is how long one run of iptables waits for another program to release the lock, in seconds.
const lockWait = 5

// NewFirewall finds iptables on the PATH, with the backend that the host uses, and fails if it is not there.
func NewFirewall(c FirewallConfig) (*Firewall, error) {
	found, err := findIPTables()
	if err != nil {
		return nil, err
	}
	f := &Firewall{iptables: found.used, rules: Rules(c), vteps: newVTEPs(), podConnections: c.PodConnections}
	// To ask for a table would make it.
	if has := f.rules.in(found.has); len(has) > 0 {
		f.unused = &Firewall{iptables: found.other, rules: has}
	}
	return f, nil
}

// Sync makes our chains equal to the rules and returns what it had to change, for logging. A chain is changed rule by
// rule, new ones first, and never emptied on the way: no packet passes without a rule that it had before and has after.
//
// A missing jump is put first in the built-in chain, behind kube-proxy's if they lead: what kube-proxy rejects or drops, we must
// not accept before. A jump that is there stays where it is: who puts a rule before it later means to override it.
func (f *Firewall) Sync(ctx context.Context) (changes []string, err error) {
	f.syncing.Lock()
	defer f.syncing.Unlock()
	for _, c := range f.rules {
		done, err := f.syncChain(ctx, c)
		changes = append(changes, done...)
		switch {
		case ctx.Err() != nil:
			return changes, ctx.Err()
		case err != nil && c.Optional != nil:
			f.skip(ctx, c, err)
		case err != nil:
			return changes, fmt.Errorf("set up iptables chain %s of table %s: %w", c.Name, c.Table, err)
		case c.Optional != nil:
			f.done(c)
		}
	}
	if f.unused != nil { // last, so that no packet passes without a rule
		if err := f.unused.Remove(ctx); err != nil {
			return changes, fmt.Errorf("the iptables backend that this host does not use: %w", err)
		}
		f.unused = nil
	}
	return changes, nil
}

// syncChain makes one chain and the jump to it. There is no jump to a chain that is not full, and no rule for a set that is not.
func (f *Firewall) syncChain(ctx context.Context, c Chain) (changes []string, err error) {
	steps := []func(Chain) ([]string, error){f.fill, f.jump}
	switch {
	case c.Optional == nil:
	case c.Optional.Feature == FeatureVTEPs:
		fill := func(Chain) ([]string, error) { return f.vteps.sync() }
		if !f.vteps.isComplete() { // the chain of the previous agent stays, and the set retains its entries
			steps = nil
		}
		steps = slices.Insert(steps, 0, fill)
	case c.Optional.Feature == FeaturePodLimit && f.podConnections != nil:
		limit, err := f.podConnections()
		if err != nil {
			return nil, err
		}
		c.Rules = podLimitRules(limit)
	}
	for _, step := range steps {
		if err := ctx.Err(); err != nil {
			return changes, err
		}
		done, err := step(c)
		changes = append(changes, done...)
		if err != nil {
			return changes, err
		}
	}
	return changes, nil
}

// VTEPs returns the addresses that VXLAN is accepted from after Restrict.
func (f *Firewall) VTEPs() *VTEPs { return f.vteps }

// Restrict has VXLAN accepted from the VTEPs only. It is to be called when all peers are among them and have their flows.
func (f *Firewall) Restrict(ctx context.Context) (changes []string, err error) {
	f.vteps.setComplete()
	return f.Sync(ctx)
}

// fill makes the chain, with its rules.
func (f *Firewall) fill(c Chain) (changes []string, err error) {
	have, exists, err := f.list(c.Table, c.Name)
	if err != nil {
		return nil, err
	}
	if !exists {
		if err := f.iptables.NewChain(c.Table, c.Name); err != nil {
			return nil, fmt.Errorf("it can be neither listed nor made (`nft list chain ip %s %s` says if nft holds one that iptables cannot read): %w", c.Table, c.Name, err)
		}
		changes = append(changes, fmt.Sprintf("-t %s -N %s", c.Table, c.Name))
	}
	todo := edits(have, c.Rules)
	now := slices.Clone(have)
	for _, e := range todo {
		if e.insert != nil {
			if err := f.iptables.Insert(c.Table, c.Name, e.at, e.insert...); err != nil {
				return changes, err
			}
			changes = append(changes, fmt.Sprintf("-t %s -I %s %d %s", c.Table, c.Name, e.at, e.insert))
			now = slices.Insert(now, e.at-1, e.insert)
			continue
		}
		if err := f.iptables.DeleteById(c.Table, c.Name, e.at); err != nil {
			return changes, err
		}
		changes = append(changes, fmt.Sprintf("-t %s -D %s %s", c.Table, c.Name, now[e.at-1]))
		now = slices.Delete(now, e.at-1, e.at)
	}
	if len(todo) == 0 {
		return changes, nil
	}
	// Else the same edits would be made for ever.
	if have, _, err = f.list(c.Table, c.Name); err != nil {
		return changes, err
	}
	if !slices.EqualFunc(have, c.Rules, Rule.equal) {
		return changes, fmt.Errorf("it does not list what was written: does something else write to it? it has %q, not %q", have, c.Rules)
	}
	return changes, nil
}

// jump makes the built-in chain jump to the chain, and to none of an older version.
func (f *Firewall) jump(c Chain) (changes []string, err error) {
	have, _, err := f.list(c.Table, c.BuiltIn)
	if err != nil {
		return nil, err
	}
	if !containsRule(have, c.Jump()) {
		at := 1
		for at <= len(have) && (c.Last || strings.HasPrefix(have[at-1].target(), kubeChainPrefix)) {
			at++
		}
		if err := f.iptables.Insert(c.Table, c.BuiltIn, at, c.Jump()...); err != nil {
			return nil, err
		}
		changes = append(changes, fmt.Sprintf("-t %s -I %s %d %s", c.Table, c.BuiltIn, at, c.Jump()))
	}
	for _, r := range have {
		if !strings.HasPrefix(r.target(), chainPrefix) || r.equal(c.Jump()) ||
			r.target() != c.Name && f.rules.jumpTo(c.Table, c.BuiltIn, r.target()) {
			continue
		}
		if err := f.iptables.Delete(c.Table, c.BuiltIn, r...); err != nil {
			return changes, err
		}
		changes = append(changes, fmt.Sprintf("-t %s -D %s %s", c.Table, c.BuiltIn, r))
		if !f.rules.has(c.Table, r.target()) {
			if err := f.iptables.ClearAndDeleteChain(c.Table, r.target()); err != nil {
				return changes, err
			}
			changes = append(changes, fmt.Sprintf("-t %s -X %s", c.Table, r.target()))
		}
	}
	return changes, nil
}

// list returns a chain's rules, and whether the chain is there.
func (f *Firewall) list(table, chain string) (rules []Rule, exists bool, err error) {
	lines, err := f.iptables.List(table, chain)
	// Status 1 is a chain that is missing. One that iptables cannot read, because nft wrote it, has the same status; it
	// cannot be made anew, which then gives the reason.
	if failed := (*iptables.Error)(nil); errors.As(err, &failed) && failed.ExitStatus() == 1 {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	for _, line := range lines {
		r, ok, err := parseRule(line)
		if err != nil {
			return nil, false, err
		}
		if ok {
			rules = append(rules, r)
		}
	}
	return rules, true, nil
}

// Remove deletes our chains and the jumps to them, for an uninstall. It goes on past errors and joins them.
func (f *Firewall) Remove(ctx context.Context) error {
	var errs []error
	for _, c := range slices.Backward(f.rules) {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		if err := f.remove(c); err != nil {
			errs = append(errs, fmt.Errorf("remove iptables chain %s of table %s: %w", c.Name, c.Table, err))
		}
	}
	return errors.Join(errs...)
}

func (f *Firewall) remove(c Chain) error {
	have, _, err := f.list(c.Table, c.BuiltIn)
	if c.Optional != nil && isNoTable(err) {
		return nil
	}
	if err != nil {
		return err
	}
	gone := []string{c.Name}
	for _, r := range have {
		if !strings.HasPrefix(r.target(), chainPrefix) {
			continue
		}
		if err := f.iptables.Delete(c.Table, c.BuiltIn, r...); err != nil {
			return err
		}
		if !slices.Contains(gone, r.target()) {
			gone = append(gone, r.target())
		}
	}
	for _, chain := range gone {
		if err := f.iptables.ClearAndDeleteChain(c.Table, chain); err != nil {
			return err
		}
	}
	return nil
}

// Run keeps the rules in place until the context ends: it syncs now, every interval, and as soon as something
// changes a chain that concerns us. The latter needs iptables on nftables (iptables --version says so).
func (f *Firewall) Run(ctx context.Context, interval time.Duration) {
	keep(klog.NewContext(ctx, klog.FromContext(ctx).WithValues("part", "firewall")), interval, f.Sync, f.watch, &f.fault)
}

// Healthy returns what keeps Run from making the rules right, if that lasts. It may be called at any time.
func (f *Firewall) Healthy() error { return f.fault.get() }
