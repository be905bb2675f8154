package hostnet

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/knftables"
)

// nftHook returns the type, the hook and the priority of the built-in chain.
func nftHook(c Chain) (knftables.BaseChainType, knftables.BaseChainHook, knftables.BaseChainPriority) {
	hook := knftables.BaseChainHook(strings.ToLower(c.BuiltIn))
	switch c.Table {
	case tableRaw:
		return knftables.FilterType, hook, knftables.RawPriority
	case tableMangle:
		return knftables.FilterType, hook, knftables.ManglePriority
	case tableNAT:
		return knftables.NATType, hook, knftables.SNATPriority
	}
	return knftables.FilterType, hook, knftables.FilterPriority
}

// baseName returns the base chain that jumps to the chain.
func (c Chain) baseName() string { return c.Table + "-" + strings.ToLower(c.BuiltIn) }

func addBaseChain(tx *knftables.Transaction, c Chain) {
	kind, hook, priority := nftHook(c)
	tx.Add(&knftables.Chain{Name: c.baseName(), Type: &kind, Hook: &hook, Priority: &priority})
}

// maxSources is the size of sets with an element for each source.
const maxSources = 65536

// addTable adds the table with the sets that other parts of the agent fill, and that of podLimit.
func addTable(tx *knftables.Transaction) {
	tx.Add(&knftables.Table{})
	for _, name := range []string{vtepSet, egressSet} {
		tx.Add(addressSet(name))
	}
	connections := addressSet(connectionSet)
	connections.Flags, connections.Size = []knftables.SetFlag{knftables.DynamicFlag}, knftables.PtrTo[uint64](maxSources)
	tx.Add(connections)
}

// addItselfSet adds the set if a rule uses it, so that a kernel that rejects it has all other chains.
func addItselfSet(tx *knftables.Transaction, rules []*knftables.Rule) {
	if slices.ContainsFunc(rules, func(r *knftables.Rule) bool { return strings.Contains(r.Rule, "@"+itselfSet) }) {
		tx.Add(newItselfSet())
	}
}

func newItselfSet() *knftables.Set {
	return &knftables.Set{
		Name: itselfSet, Type: "ipv4_addr . ipv4_addr", Size: knftables.PtrTo[uint64](maxSources),
		Flags: []knftables.SetFlag{knftables.DynamicFlag, knftables.TimeoutFlag}, Timeout: knftables.PtrTo(time.Minute),
	}
}

// compiledChain is a chain with its rules in the syntax of nftables.
type compiledChain struct {
	Chain
	active []Rule
	rules  []*knftables.Rule
	// jump has a hash of the rules in its comment: after a restart of the agent, those that are as desired are not written, so that their counters remain.
	jump *knftables.Rule
	// retained reports that the chain remains as it is.
	retained bool
}

// compile translates rules of a chain.
func compile(c Chain, rules []Rule) (compiledChain, error) {
	compiled, hash := compiledChain{Chain: c, active: rules}, sha256.New()
	for _, r := range rules {
		text, err := r.nft()
		if err != nil {
			return compiled, fmt.Errorf("translate chain %s of table %s: %w", c.Name, c.Table, err)
		}
		compiled.rules = append(compiled.rules, &knftables.Rule{Chain: c.Name, Rule: text, Comment: knftables.PtrTo(r.comment())})
		fmt.Fprintln(hash, text)
	}
	compiled.jump = jumpTo(c, fmt.Sprintf("%s [%x]", c.Comment, hash.Sum(nil)[:4]))
	return compiled, nil
}

func jumpTo(c Chain, comment string) *knftables.Rule {
	return &knftables.Rule{Chain: c.baseName(), Rule: "jump " + c.Name, Comment: &comment}
}

// desired returns the chains to be written. Chains that can't be written at the moment remain as they are.
func (f *nftFirewall) desired(ctx context.Context, have map[string]*nftChain) (all []compiledChain, err error) {
	for _, c := range f.rules {
		compiled, err := f.desiredChain(ctx, c, have)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, errRetained):
		case err != nil && c.Optional != nil:
			f.skipNFT(ctx, c, err)
		case err != nil:
			return nil, err
		}
		if err == nil {
			all = append(all, compiled)
			continue
		}
		if retained, ok := retain(c, have); ok {
			all = append(all, retained)
		}
	}
	return all, nil
}

// errRetained reports that a chain must remain as it is, or missing.
var errRetained = errors.New("chain is not written yet")

// desiredChain returns a chain with the first of its rules and fallbacks that the kernel supports.
func (f *nftFirewall) desiredChain(ctx context.Context, c Chain, have map[string]*nftChain) (compiledChain, error) {
	c = f.configured(c)
	if c.Optional != nil && c.Optional.Feature == FeatureVTEPs && !f.vteps.isComplete() {
		return compiledChain{}, errRetained
	}
	if len(c.Starting) > 0 && !f.vteps.isComplete() && !matchesVTEPs(c, have[c.Name]) {
		c.Rules, c.Fallbacks = c.Starting[0], c.Starting[1:]
	}
	c, err := f.limited(c)
	if err != nil {
		return compiledChain{}, err
	}
	if !f.reduced[c.Name] {
		f.setInstalled(c)
		return compile(c, c.Rules)
	}
	variants := slices.Concat([][]Rule{c.Rules}, c.Fallbacks)
	i, err := f.supported(ctx, c)
	switch {
	case err != nil:
		return compiledChain{}, err
	case i == 0:
		delete(f.reduced, c.Name)
	}
	f.setInstalled(c)
	return compile(c, variants[i])
}

// matchesVTEPs reports whether a chain of the kernel has a rule that matches the set of VTEPs, by its comment.
func matchesVTEPs(c Chain, have *nftChain) bool {
	return have != nil && slices.ContainsFunc(c.Rules, func(r Rule) bool {
		return slices.Contains(r, vtepSet) && slices.ContainsFunc(have.rules, func(h nftRule) bool { return h.Comment == r.comment() })
	})
}

// retain returns a chain of the kernel as it is. ok is false if it does not exist.
func retain(c Chain, have map[string]*nftChain) (retained compiledChain, ok bool) {
	if have[c.Name] == nil {
		return retained, false
	}
	retained = compiledChain{Chain: c, retained: true, jump: jumpTo(c, c.Comment)}
	if base := have[c.baseName()]; base != nil {
		for _, r := range base.rules {
			if r.jump() == c.Name {
				retained.jump = jumpTo(c, r.Comment)
			}
		}
	}
	return retained, true
}

// jumps returns the rules of a base chain, in the order of the built-in chain of iptables, in which a jump is inserted before those that exist.
func jumps(all []compiledChain, base string) (rules []*knftables.Rule) {
	var last []*knftables.Rule
	for _, c := range all {
		switch {
		case c.baseName() != base:
		case c.Last:
			node := &knftables.Rule{Chain: base, Rule: "jump " + nodeChain, Comment: knftables.PtrTo("ovsdn: rules of the node")}
			last = append(last, node, c.jump)
		default:
			rules = slices.Insert(rules, 0, c.jump)
		}
	}
	return append(rules, last...)
}
