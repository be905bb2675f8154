package hostnet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"k8s.io/klog/v2"
	"sigs.k8s.io/knftables"
)

// nftWrite is one transaction that makes the table as desired.
type nftWrite struct {
	tx      *knftables.Transaction
	have    map[string]*nftChain
	changes []string
}

// write replaces the chains that differ from the desired ones, and deletes other chains of the agent. The kernel applies it at once, with the
// egress IPs: another program may have deleted all.
func (f *nftFirewall) write(ctx context.Context, have map[string]*nftChain, want []compiledChain) (changes []string, err error) {
	w := &nftWrite{tx: f.nft.NewTransaction(), have: have}
	addTable(w.tx)
	w.tx.Add(&knftables.Chain{Name: nodeChain})
	for _, c := range want {
		addBaseChain(w.tx, c.Chain)
		w.tx.Add(&knftables.Chain{Name: c.Name})
		addItselfSet(w.tx, c.rules)
	}
	known := map[string]bool{}
	for _, c := range want {
		known[c.Name], known[c.baseName()] = true, true
		if c.retained || !f.differs(have[c.Name], c.Name, c.rules) && hasComment(have[c.baseName()], *c.jump.Comment) {
			continue
		}
		w.replace(c.Name, c.rules)
		if c.Optional != nil && c.Optional.Feature == FeaturePodLimit { // an element has the limit with which it was added
			w.tx.Flush(&knftables.Set{Name: connectionSet})
		}
	}
	for _, base := range baseChains(want) {
		if rules := jumps(want, base); f.differs(have[base], base, rules) {
			w.replace(base, rules)
		}
	}
	w.deleteOthers(known)
	if have[nodeChain] == nil {
		w.changes = append(w.changes, "chain "+nodeChain+" created")
	}
	if len(w.changes) == 0 {
		f.setHandles(have)
		f.wrote(want)
		return nil, nil
	}
	if err := f.egress.runWith(ctx, f.nft, w.tx); err != nil {
		return nil, err
	}
	now, err := listOwnTable(ctx)
	if err != nil {
		return w.changes, err
	}
	f.setHandles(now)
	f.wrote(want)
	return w.changes, f.verify(now, want)
}

// verify returns an error if another program has changed the chains since the write, which the next Sync restores.
func (f *nftFirewall) verify(now map[string]*nftChain, want []compiledChain) error {
	var changed []string
	for _, c := range want {
		if !c.retained && f.differs(now[c.Name], c.Name, c.rules) || !hasComment(now[c.baseName()], *c.jump.Comment) {
			changed = append(changed, c.Name)
			f.foundForeign(c.Chain)
		}
	}
	if len(changed) > 0 {
		return fmt.Errorf("%w: %s", errForeignWriter, strings.Join(changed, ", "))
	}
	return nil
}

// foundForeign records that another program has changed a chain. It is reported when it is as desired again.
func (f *nftFirewall) foundForeign(c Chain) {
	f.foreign.add(c)
	delete(f.foreign.rules, c.path())
	delete(f.foreign.jumps, c.path())
}

// replace replaces the rules of a chain.
func (w *nftWrite) replace(chain string, rules []*knftables.Rule) {
	w.tx.Flush(&knftables.Chain{Name: chain})
	for _, r := range rules {
		w.tx.Add(r)
	}
	w.changes = append(w.changes, fmt.Sprintf("chain %s: wrote %d rules", chain, len(rules)))
}

// deleteOthers deletes the agent's chains that are not known, as those of another version, after the rules that jump to them.
func (w *nftWrite) deleteOthers(known map[string]bool) {
	var others []string
	for _, name := range slices.Sorted(maps.Keys(w.have)) {
		if isOwn := strings.HasPrefix(name, chainPrefix) || w.have[name].Hook != ""; isOwn && !known[name] {
			w.tx.Flush(&knftables.Chain{Name: name})
			others = append(others, name)
		}
	}
	for _, name := range others {
		w.tx.Delete(&knftables.Chain{Name: name})
		w.changes = append(w.changes, "chain "+name+" deleted")
	}
}

// differs reports whether a chain must be written: its rules have other comments than the desired ones, or another program has changed it since the last write.
func (f *nftFirewall) differs(have *nftChain, name string, want []*knftables.Rule) bool {
	return have == nil || f.changedSince(have, name) ||
		!slices.EqualFunc(have.rules, want, func(h nftRule, w *knftables.Rule) bool { return h.Comment == *w.Comment })
}

// changedSince reports whether another program has changed the chain since the last write. have is nil if the chain does not exist.
func (f *nftFirewall) changedSince(have *nftChain, name string) bool {
	handles, ok := f.written[name]
	return ok && (have == nil || !slices.EqualFunc(have.rules, handles, func(r nftRule, handle int) bool { return r.Handle == handle }))
}

func hasComment(have *nftChain, comment string) bool {
	return have != nil && slices.ContainsFunc(have.rules, func(r nftRule) bool { return r.Comment == comment })
}

// baseChains returns the base chains of the chains, each once.
func baseChains(all []compiledChain) (names []string) {
	for _, c := range all {
		if !slices.Contains(names, c.baseName()) {
			names = append(names, c.baseName())
		}
	}
	return names
}

// setHandles records the rules after a write.
func (f *nftFirewall) setHandles(now map[string]*nftChain) {
	clear(f.written)
	for name, chain := range now {
		if name == nodeChain {
			continue
		}
		handles := make([]int, len(chain.rules))
		for i, r := range chain.rules {
			handles[i] = r.Handle
		}
		f.written[name] = handles
	}
}

// findForeign finds the chains that another program has changed, or to which it has deleted the jump, since the last write.
func (f *nftFirewall) findForeign(have map[string]*nftChain) {
	for _, c := range f.rules {
		base := have[c.baseName()]
		isJump := func(r nftRule) bool { return r.jump() == c.Name }
		lacksJump := f.foreign.jumps[c.path()] && (base == nil || !slices.ContainsFunc(base.rules, isJump))
		if lacksJump || f.changedSince(have[c.Name], c.Name) {
			f.foundForeign(c)
		}
	}
}

// wrote records the rules that the kernel has.
func (f *nftFirewall) wrote(want []compiledChain) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range want {
		f.foreign.wroteRules(c.Chain)
		f.foreign.wroteJump(c.Chain)
		if !c.retained {
			f.active[c.Name] = c.active
		}
	}
}

// nftModules are the kernel modules of the features.
func (o Optional) nftModules() string {
	switch o.Feature {
	case FeatureNotrack, FeatureEgressNotrack:
		return "nft_ct, nft_fib_ipv4"
	case FeatureVTEPs:
		return "nft_fib_ipv4"
	case FeaturePodLimit:
		return "nft_ct, nft_connlimit"
	}
	return "nf_tables"
}

// lacksNFTModules reports whether the error is that of a kernel without a module.
func lacksNFTModules(err error) bool {
	return knftables.IsNotFound(err) || errors.Is(err, fs.ErrNotExist)
}

// skipNFT records the failure of an optional chain, and logs each cause once.
func (f *nftFirewall) skipNFT(ctx context.Context, c Chain, err error) {
	s := Skipped{Feature: c.Optional.Feature, Err: fmt.Errorf("set up nftables chain %s of table ip %s: %w", c.Name, nftTableName, err), Remedy: "see the cause; the agent retries"}
	if lacksNFTModules(err) {
		s.Err = fmt.Errorf("%w; the kernel needs %s", s.Err, c.Optional.nftModules())
		s.Remedy = "load the modules"
		if !kernelLoadsModules() {
			s.Remedy = "boot a kernel that has them; this one loads no modules"
		}
	}
	if f.store(c.Name, s) {
		klog.FromContext(ctx).Error(s.Err, "Skipped optional nftables chain", "chain", c.Name, "table", nftTableName, "feature", s.Feature, "action", s.Remedy)
	}
}
