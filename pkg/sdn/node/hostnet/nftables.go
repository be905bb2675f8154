package hostnet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/knftables"
)

const (
	nftProgram = "nft"

	// nftTableName is the agent's table, of family ip.
	nftTableName = "ovsdn-host"

	// nodeChain is the node's: the agent creates it, and never changes its rules. It precedes the drop of chain OVSDN-INPUT-LAST, which a rule in another table
	// could not override.
	nodeChain = "node-input"

	// connectionSet has the sources whose connections podLimit counts.
	connectionSet = chainPrefix + "CONNECTIONS"

	// itselfSet has each source that a rule of hairpinChains compared with its destination, twice.
	itselfSet = chainPrefix + "ITSELF-SOURCES"

	// nftRequirements are what the rules need of the kernel.
	nftRequirements = "a kernel of version 5.10 or later with nf_tables, nft_chain_nat, nft_ct, nft_masq and nft_reject_ipv4"
)

// errNoNFTables is the error of a host whose nft or kernel does not support the rules.
var errNoNFTables = errors.New("nft or the kernel does not support the rules")

// nftFirewall implements Firewall with a table of its own, whose base chains have the hooks and priorities of iptables' built-in chains. A transaction replaces all
// chains that differ: at no time a rule is missing.
//
// An accept ends the evaluation of the table only: chains of other tables can still drop the packet (dropPolicies).
type nftFirewall struct {
	firewallState

	nft     knftables.Interface
	scratch knftables.Interface // of the table that Check creates and the kernel discards

	written map[string][]int // the handles of the rules after the last write, by chain
	reduced map[string]bool  // the chains of which the kernel rejected rules

	egress    *egressEntries
	leftovers leftovers // in iptables

	active   map[string][]Rule // held by mu: the rules that are written, by chain
	unlisted bool              // other programs' chains could not be listed, which was logged

	dropped *Skipped // held by mu: about other programs' chains; nil: none drops by default
}

// newNFTFirewall returns an errNoNFTables if the host does not support the rules.
func newNFTFirewall(ctx context.Context, c FirewallConfig) (*nftFirewall, error) {
	f := &nftFirewall{
		firewallState: firewallState{config: c, rules: Rules(c), podConnections: c.PodConnections},
		written:       map[string][]int{}, reduced: map[string]bool{}, active: map[string][]Rule{},
		leftovers: leftovers{remove: func(ctx context.Context) error {
			return errors.Join(removeStaleIPTables(ctx, c), removeStaleSets(ctx))
		}},
	}
	var err error
	if f.nft, err = knftables.New(knftables.IPv4Family, nftTableName); err == nil {
		f.scratch, err = knftables.New(knftables.IPv4Family, nftTableName+"-supported")
	}
	if err != nil {
		return nil, nftError(ctx, fmt.Errorf("find nft: %w", err))
	}
	f.vteps, f.egress = newVTEPs(nftSets{f.nft}), newEgressEntries(f.nft)
	f.leftovers.adopt = func(ctx context.Context) error { return adoptEgressIPs(ctx, kernelSets{}, f.EgressIPs()) }
	for _, chain := range f.rules {
		if chain.Optional != nil {
			continue
		}
		if _, err := f.supported(ctx, chain); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// nftError marks an error of nft that shows what the host does not support.
func nftError(ctx context.Context, err error) error {
	if err == nil || nftDidNotRun(ctx, err) {
		return err
	}
	return fmt.Errorf("%w: %w", errNoNFTables, err)
}

// nftDidNotRun reports whether nft did not start or was ended. That it is not installed is not such an error.
func nftDidNotRun(ctx context.Context, err error) bool {
	var state interface{ Exited() bool } // *exec.ExitError
	switch {
	case ctx.Err() != nil, errors.As(err, new(*os.SyscallError)), errors.As(err, &state) && !state.Exited():
		return true
	case isNoNFT(err), errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), errors.Is(err, unix.ENOEXEC):
		return false
	}
	return errors.As(err, new(*fs.PathError))
}

// Sync implements Firewall.
func (f *nftFirewall) Sync(ctx context.Context) (changes []string, err error) {
	f.syncing.Lock()
	defer f.syncing.Unlock()
	if changes, err = f.vteps.sync(ctx); err != nil {
		return changes, err
	}
	have, err := listOwnTable(ctx)
	if err != nil {
		return changes, err
	}
	f.vteps.setUnmatched(!slices.ContainsFunc(f.rules, func(c Chain) bool { return matchesVTEPs(f.configured(c), have[c.Name]) }))
	f.findForeign(have)
	done, err := f.sync(ctx, have)
	if changes = append(changes, done...); err != nil {
		return changes, fmt.Errorf("set up nftables table ip %s: %w", nftTableName, err)
	}
	f.leftovers.clean(ctx, f.vteps.isComplete()) // last: there are rules at any time
	return changes, nil
}

// sync writes the chains that differ. If the kernel rejects a rule, the fallback of its chain replaces it, or the chain is skipped.
func (f *nftFirewall) sync(ctx context.Context, have map[string]*nftChain) (changes []string, err error) {
	want, err := f.desired(ctx, have)
	if err != nil {
		return nil, err
	}
	changes, err = f.write(ctx, have, want)
	if err == nil || nftDidNotRun(ctx, err) {
		return changes, err
	}
	for _, c := range f.rules {
		if c, limitErr := f.limited(f.configured(c)); limitErr == nil {
			if i, supportErr := f.supported(ctx, c); i > 0 || supportErr != nil {
				f.reduced[c.Name] = true
			}
		}
	}
	if want, desiredErr := f.desired(ctx, have); desiredErr != nil {
		return nil, desiredErr
	} else if len(f.reduced) > 0 {
		return f.write(ctx, have, want)
	}
	return nil, err
}

// supported returns the index of the first of the chain's rules and fallbacks that nft and the kernel support. It changes nothing.
func (f *nftFirewall) supported(ctx context.Context, c Chain) (index int, err error) {
	var errs []error
	for i, rules := range slices.Concat([][]Rule{c.Rules}, c.Fallbacks) {
		compiled, err := compile(c, rules)
		if err != nil {
			return 0, err
		}
		tx := f.scratch.NewTransaction()
		addTable(tx)
		addBaseChain(tx, c)
		tx.Add(&knftables.Chain{Name: c.Name})
		addItselfSet(tx, compiled.rules)
		for _, r := range compiled.rules {
			tx.Add(r)
		}
		tx.Add(compiled.jump)
		if err = f.scratch.Check(ctx, tx); err == nil {
			return i, nil
		}
		if nftDidNotRun(ctx, err) {
			return 0, fmt.Errorf("run nft: %w", err)
		}
		errs = append(errs, err)
	}
	return 0, fmt.Errorf("%w: chain %s: %w", errNoNFTables, c.Name, errors.Join(errs...))
}

// Restrict implements Firewall.
func (f *nftFirewall) Restrict(ctx context.Context) (changes []string, err error) {
	f.vteps.setComplete()
	return f.Sync(ctx)
}

// SetNonMasqueradeCIDRs implements Firewall.
func (f *nftFirewall) SetNonMasqueradeCIDRs(ctx context.Context, networks []netip.Prefix) (changes []string, err error) {
	f.syncing.Lock()
	f.setExceptions(networks)
	f.syncing.Unlock()
	return f.Sync(ctx)
}

// SyncHostPorts implements Firewall.
func (f *nftFirewall) SyncHostPorts(ctx context.Context) error {
	_, err := f.Sync(ctx)
	return err
}

// Run implements Firewall.
func (f *nftFirewall) Run(ctx context.Context, interval time.Duration) {
	var checked time.Time
	f.run(ctx, interval, func(ctx context.Context) (changes []string, err error) {
		changes, err = f.Sync(ctx)
		if time.Since(checked) >= interval/2 { // less than an interval, since ticks jitter; not after each event
			f.checkDropPolicies(ctx)
			checked = time.Now()
		}
		return changes, err
	}, f.watch)
}

// watch signals when nftables reports a change of the agent's table.
func (f *nftFirewall) watch() (*watcher, error) {
	return newWatcher(unix.NETLINK_NETFILTER, []uint{unix.NFNLGRP_NFTABLES}, func(m syscall.NetlinkMessage) bool {
		table, _, ok := changedChain(m)
		return ok && table == nftTableName
	})
}

// EgressIPs implements Firewall.
func (f *nftFirewall) EgressIPs() EgressSet { return EgressSet{f.egress} }

// Backend implements Firewall.
func (f *nftFirewall) Backend() string { return BackendNFTables }

// Remove implements Firewall. It deletes the table with its sets.
func (f *nftFirewall) Remove(ctx context.Context) error {
	err := removeTable(ctx, f.nft)
	if f.leftovers.remove == nil {
		return err
	}
	return errors.Join(err, f.leftovers.remove(ctx))
}

func removeTable(ctx context.Context, nft knftables.Interface) error {
	tx := nft.NewTransaction()
	tx.Add(&knftables.Table{}) // it may not exist
	tx.Delete(&knftables.Table{})
	if err := nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("delete nftables table ip %s: %w", nftTableName, err)
	}
	return nil
}

// Drops implements Firewall.
func (f *nftFirewall) Drops(ctx context.Context) (all []RuleDrops, err error) {
	have, err := listOwnTable(ctx)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	active := maps.Clone(f.active)
	f.mu.Unlock()
	for _, c := range f.rules {
		chain := have[c.Name]
		if chain == nil {
			continue
		}
		for i, r := range active[c.Name] {
			target := r.target()
			if target != "DROP" && target != "REJECT" || i >= len(chain.rules) || chain.rules[i].Comment != r.comment() {
				continue
			}
			all = append(all, RuleDrops{Rule: c.Table + " " + c.Name + " " + r.String(), Comment: r.comment(), Packets: chain.rules[i].packets()})
		}
	}
	return all, nil
}

// Skipped implements Firewall.
func (f *nftFirewall) Skipped() []Skipped {
	all := f.firewallState.Skipped()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dropped != nil {
		all = append(all, *f.dropped)
	}
	return all
}
