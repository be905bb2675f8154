package hostnet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-iptables/iptables"
	"k8s.io/klog/v2"
)

// iptablesFirewall implements Firewall.
//
// The rules are in separate chains. It changes only these chains and the jumps to them.
type iptablesFirewall struct {
	firewallState

	iptables iptablesClient
	legacy   bool // the backend of iptables
	// stale has the rules that a previous agent may have added in the backend that the host does not use; nil once Sync has removed them.
	stale  *iptablesFirewall
	tables tableListings

	leftovers leftovers // in nftables

	unusable func(context.Context, error) error // evaluates the errors of Remove; nil: they are returned
}

// lockWait is the time for which one run of iptables waits for its lock, in seconds.
const lockWait = 5

// newIPTablesFirewall finds iptables in PATH, with the backend that the host uses.
func newIPTablesFirewall(ctx context.Context, c FirewallConfig) (*iptablesFirewall, error) {
	found, err := findIPTables(ctx)
	if err != nil {
		return nil, err
	}
	f := &iptablesFirewall{
		firewallState: firewallState{config: c, rules: Rules(c), vteps: newVTEPs(kernelSets{}), podConnections: c.PodConnections},
		iptables:      found.used, legacy: found.legacy,
	}
	if found.nft {
		f.leftovers.adopt = func(ctx context.Context) error { return adoptFromNFT(ctx, f.EgressIPs()) }
		f.leftovers.remove = removeStaleTable
	}
	// Only existing tables: iptables-legacy creates a table when it lists it.
	if has := f.rules.in(found.otherTables); len(has) > 0 {
		f.stale = &iptablesFirewall{iptables: found.other, firewallState: firewallState{rules: has}}
	}
	return f, nil
}

// Sync implements Firewall. It changes a chain rule by rule, and inserts before it
// deletes: at no time a rule that exists before and after the change is missing.
//
// A missing jump is inserted at the start of the built-in chain, but after kube-proxy's jumps at its start: the rules must
// not accept packets that kube-proxy rejects or drops. An existing jump is not moved: users can insert rules before it to override it.
func (f *iptablesFirewall) Sync(ctx context.Context) (changes []string, err error) {
	f.syncing.Lock()
	defer f.syncing.Unlock()
	f.tables.begin()
	defer f.tables.end()
	for _, c := range f.rules {
		done, err := f.syncChain(ctx, c)
		changes = append(changes, done...)
		switch {
		case ctx.Err() != nil:
			return changes, ctx.Err()
		case err != nil && c.Optional != nil:
			f.skip(ctx, c, err)
		case err != nil:
			return changes, f.requiredError(c, err)
		case c.Optional != nil:
			f.setInstalled(c)
		}
	}
	if f.stale != nil { // last: there are rules at any time
		if err := f.stale.Remove(ctx); err != nil {
			return changes, fmt.Errorf("remove rules from the iptables backend that the host does not use: %w", err)
		}
		f.stale = nil
	}
	f.leftovers.clean(ctx, f.vteps.isComplete())
	return changes, nil
}

// requiredError is the error of a chain without which the node does not work.
func (f *iptablesFirewall) requiredError(c Chain, err error) error {
	err = fmt.Errorf("set up iptables chain %s of table %s: %w", c.Name, c.Table, err)
	if !f.rejects(err) {
		return err
	}
	return fmt.Errorf("%w; if the kernel lacks modules of iptables, load those of docs/requirements.md, or set --firewall=%s", err, FirewallNFTables)
}

// syncChain creates or corrects one chain, then the jump to it. A rule that matches a set is added after the entries of the set.
func (f *iptablesFirewall) syncChain(ctx context.Context, c Chain) (changes []string, err error) {
	if c, err = f.starting(f.configured(c)); err != nil {
		return nil, err
	}
	if c, err = f.ensureSet(ctx, c); err != nil {
		return nil, err
	}
	steps := []func(Chain) ([]string, error){func(c Chain) ([]string, error) { return f.syncRulesOrFallback(ctx, c) }, f.syncJump}
	switch {
	case c.Optional == nil:
	case c.Optional.Feature == FeatureVTEPs:
		syncSet := func(Chain) ([]string, error) { return f.vteps.sync(ctx) }
		if !f.vteps.isComplete() { // the chain and the set of the previous agent remain
			steps = nil
		}
		steps = slices.Insert(steps, 0, syncSet)
	default:
		if c, err = f.limited(c); err != nil {
			return nil, err
		}
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

// starting returns the chain with the rules that precede those that match the set of VTEPs: until all are in the set, these would not match some of them.
func (f *iptablesFirewall) starting(c Chain) (Chain, error) {
	if len(c.Starting) == 0 || f.vteps.isComplete() {
		return c, nil
	}
	have, _, err := f.list(c.Table, c.Name)
	if err != nil {
		return c, err
	}
	if !slices.ContainsFunc(have, func(r Rule) bool { return slices.Contains(r, vtepSet) }) {
		c.Rules, c.Fallbacks = c.Starting[0], c.Starting[1:]
	}
	return c, nil
}

// Restrict implements Firewall.
func (f *iptablesFirewall) Restrict(ctx context.Context) (changes []string, err error) {
	f.vteps.setComplete()
	return f.Sync(ctx)
}

// insertError reports that iptables rejected a rule.
type insertError struct {
	rule Rule
	err  error
}

func (e *insertError) Error() string { return e.err.Error() }

func (e *insertError) Unwrap() error { return e.err }

// rejects reports whether the error is about the rule itself. The fallbacks have other effects: they must not replace rules because another program holds the
// lock, or because the program was killed.
func (f *iptablesFirewall) rejects(err error) bool {
	failed := (*iptables.Error)(nil)
	return errors.As(err, &failed) && failed.ExitStatus() > 0 && (!f.legacy || !isResourceProblem(err))
}

// isResourceProblem reports an error of the legacy backend for its lock only, of nf_tables for any error of the kernel.
func isResourceProblem(err error) bool {
	const resourceProblem = 4 // RESOURCE_PROBLEM of xtables.h
	failed := (*iptables.Error)(nil)
	return errors.As(err, &failed) && failed.ExitStatus() == resourceProblem
}

// syncRulesOrFallback is syncRules with the chain's fallbacks. Each Sync tries the rules themselves first.
func (f *iptablesFirewall) syncRulesOrFallback(ctx context.Context, c Chain) (changes []string, err error) {
	changes, err = f.syncRules(ctx, c)
	if err == nil {
		f.setReduced(c, c.Rules, nil)
	}
	tried := err
	for _, rules := range c.Fallbacks {
		failed := (*insertError)(nil)
		if !errors.As(tried, &failed) {
			break
		}
		if containsRule(rules, failed.rule) {
			continue
		}
		fallback := c
		fallback.Rules = rules
		var done []string
		done, tried = f.syncRules(ctx, fallback)
		changes = append(changes, done...)
		if tried != nil {
			continue
		}
		f.setReduced(c, rules, err)
		if len(changes) > 0 {
			klog.FromContext(ctx).Info("Rejected firewall rule replaced by the fallback rules of its chain", "chain", c.Name, "table", c.Table, "err", err)
		}
		return changes, nil
	}
	return changes, err
}

// syncRules creates the chain if it does not exist, and corrects its rules.
func (f *iptablesFirewall) syncRules(ctx context.Context, c Chain) (changes []string, err error) {
	have, exists, err := f.current(c.Table, c.Name, func(rules []Rule) bool { return slices.EqualFunc(rules, c.Rules, Rule.equal) })
	if err != nil {
		return nil, err
	}
	if !exists {
		if err := f.iptables.NewChain(c.Table, c.Name); err != nil {
			return nil, fmt.Errorf("create chain; if it exists and iptables can't read it, see `nft list chain ip %s %s`: %w", c.Table, c.Name, err)
		}
		changes = append(changes, fmt.Sprintf("-t %s -N %s", c.Table, c.Name))
	}
	f.foreign.sawRules(c, have)
	todo := edits(have, c.Rules)
	current := slices.Clone(have)
	for _, e := range todo {
		if err := ctx.Err(); err != nil {
			return changes, err
		}
		if e.insert != nil {
			if err := f.iptables.Insert(c.Table, c.Name, e.at, e.insert...); err != nil {
				if f.rejects(err) {
					err = &insertError{e.insert, err}
				}
				return changes, err
			}
			changes = append(changes, fmt.Sprintf("-t %s -I %s %d %s", c.Table, c.Name, e.at, e.insert))
			current = slices.Insert(current, e.at-1, e.insert)
			continue
		}
		if err := f.iptables.DeleteById(c.Table, c.Name, e.at); err != nil {
			return changes, err
		}
		changes = append(changes, fmt.Sprintf("-t %s -D %s %s", c.Table, c.Name, current[e.at-1]))
		current = slices.Delete(current, e.at-1, e.at)
	}
	if len(todo) == 0 {
		f.foreign.wroteRules(c)
		return changes, nil
	}
	// Detect another program that changes the chain: Sync would repeat the same edits.
	if have, _, err = f.list(c.Table, c.Name); err != nil {
		return changes, err
	}
	if !slices.EqualFunc(have, c.Rules, Rule.equal) {
		f.foreign.add(c)
		return changes, fmt.Errorf("%w: got %q, want %q", errForeignWriter, have, c.Rules)
	}
	f.foreign.wroteRules(c)
	return changes, nil
}

// syncJump adds the jump from the built-in chain to the chain, and removes jumps to chains of other versions.
func (f *iptablesFirewall) syncJump(c Chain) (changes []string, err error) {
	isStale := func(r Rule) bool {
		return strings.HasPrefix(r.target(), chainPrefix) && !r.equal(c.Jump()) && (r.target() == c.Name || !f.rules.jumpTo(c.Table, c.BuiltIn, r.target()))
	}
	have, _, err := f.current(c.Table, c.BuiltIn, func(rules []Rule) bool { return containsRule(rules, c.Jump()) && !slices.ContainsFunc(rules, isStale) })
	if err != nil {
		return nil, err
	}
	exists := containsRule(have, c.Jump())
	f.foreign.sawJump(c, exists)
	if !exists {
		at := 1
		for at <= len(have) && (c.Last || strings.HasPrefix(have[at-1].target(), kubeChainPrefix)) {
			at++
		}
		if err := f.iptables.Insert(c.Table, c.BuiltIn, at, c.Jump()...); err != nil {
			return nil, err
		}
		changes = append(changes, fmt.Sprintf("-t %s -I %s %d %s", c.Table, c.BuiltIn, at, c.Jump()))
	}
	f.foreign.wroteJump(c)
	for _, r := range have {
		if !isStale(r) {
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

// Remove implements Firewall.
func (f *iptablesFirewall) Remove(ctx context.Context) error {
	var errs []error
	for _, c := range slices.Backward(f.rules) {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		if err := f.remove(c); err != nil {
			errs = append(errs, fmt.Errorf("remove iptables chain %s of table %s: %w", c.Name, c.Table, err))
		}
	}
	err := errors.Join(errs...)
	if err == nil || f.unusable == nil {
		return err
	}
	return f.unusable(ctx, err)
}

func (f *iptablesFirewall) remove(c Chain) error {
	have, _, err := f.list(c.Table, c.BuiltIn)
	if c.Optional != nil && isNoTable(err) {
		return nil
	}
	if err != nil {
		return err
	}
	chains := []string{c.Name}
	for _, r := range have {
		if !strings.HasPrefix(r.target(), chainPrefix) {
			continue
		}
		if err := f.iptables.Delete(c.Table, c.BuiltIn, r...); err != nil {
			return err
		}
		if !slices.Contains(chains, r.target()) {
			chains = append(chains, r.target())
		}
	}
	for _, chain := range chains {
		if err := f.iptables.ClearAndDeleteChain(c.Table, chain); err != nil {
			return err
		}
	}
	return nil
}

// Run implements Firewall. The kernel reports changes of the nf_tables backend only (see iptables --version).
func (f *iptablesFirewall) Run(ctx context.Context, interval time.Duration) {
	f.run(ctx, interval, f.Sync, f.watch)
}

// Backend implements Firewall.
func (f *iptablesFirewall) Backend() string {
	if f.legacy {
		return BackendLegacy
	}
	return BackendIPTables
}
