package hostnet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/coreos/go-iptables/iptables"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
	"sigs.k8s.io/knftables"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/nftables"
)

// nftModule exists while the kernel has the module nf_tables loaded.
const nftModule = "/sys/module/nf_tables"

// leftovers are the rules and the egress IPs of a previous agent in the program that the host does not use. They are held by Sync.
type leftovers struct {
	adopt  func(context.Context) error // adds the egress IPs to the set of the used program; nil: done
	remove func(context.Context) error // nil: there are no rules
	logged bool
}

// clean adopts the egress IPs, then removes the rules: only once the VTEPs are complete, since the new rules are until then not the final ones. A failure does not
// fail Sync: it is logged once, and the next Sync tries again.
func (l *leftovers) clean(ctx context.Context, complete bool) {
	err := l.step(ctx, &l.adopt)
	if err == nil && complete {
		err = l.step(ctx, &l.remove)
	}
	if err != nil && ctx.Err() == nil && !l.logged {
		l.logged = true
		klog.FromContext(ctx).Error(err, "Failed to remove all rules of a previous agent from the other program of the firewall; trying again",
			"action", "if this remains so, restart the machine")
	}
}

// step does a step until it succeeds.
func (l *leftovers) step(ctx context.Context, do *func(context.Context) error) error {
	if *do == nil {
		return nil
	}
	err := (*do)(ctx)
	if err == nil {
		*do = nil
	}
	return err
}

// adoptEgressIPs adds the egress IPs of another set, if it exists. Package egressaddress removes those that the node does not host.
func adoptEgressIPs(ctx context.Context, from ipsets, to EgressSet) error {
	set, err := from.list(ctx, egressSet)
	switch {
	case errors.Is(err, unix.ENOENT), hasNoSets(err):
		return nil
	case err != nil:
		return fmt.Errorf("list set %s of a previous agent: %w", egressSet, err)
	case set.TypeName != egressSetType || len(set.Entries) == 0:
		return nil
	}
	if _, err := to.List(ctx); err != nil { // it creates the set
		return err
	}
	for _, e := range set.Entries {
		if addr, ok := netip.AddrFromSlice(e.IP); ok {
			if err := to.Add(ctx, addr.Unmap()); err != nil {
				return err
			}
		}
	}
	return nil
}

// adoptFromNFT adds the egress IPs of a previous agent that used nftables.
func adoptFromNFT(ctx context.Context, to EgressSet) error {
	nft, err := staleTable()
	if err != nil || nft == nil {
		return err
	}
	return adoptEgressIPs(ctx, nftSets{nft}, to)
}

// isNFTLoaded reports whether the kernel has loaded the module nf_tables. Each request for nf_tables would load it.
func isNFTLoaded() (bool, error) {
	_, err := os.Stat(nftModule)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// staleTable returns nft for the table of a previous agent, nil if there is none or nft is not installed.
func staleTable() (knftables.Interface, error) {
	exists, err := nftables.HasTable(nftTableName)
	if err != nil || !exists {
		return nil, err
	}
	nft, err := knftables.New(knftables.IPv4Family, nftTableName)
	if errors.Is(err, exec.ErrNotFound) {
		return nil, nil //nolint:nilnil // nothing can be done about the table
	}
	if err != nil {
		return nil, fmt.Errorf("find nft: %w", err)
	}
	return nft, nil
}

// removeStaleTable removes the table of a previous agent, if there is one.
func removeStaleTable(ctx context.Context) error {
	nft, err := staleTable()
	if err != nil {
		return err
	}
	if nft == nil {
		if exists, err := nftables.HasTable(nftTableName); err != nil || !exists {
			return err
		}
		klog.FromContext(ctx).Info("Retained rules of a previous agent in nftables: nft is not installed", "table", nftTableName, "action", "restart the machine")
		return nil
	}
	have, err := listOwnTable(ctx)
	if err != nil {
		return err
	}
	if node := have[nodeChain]; node != nil && len(node.rules) > 0 {
		return removeExceptNode(ctx, nft, have)
	}
	return removeTable(ctx, nft)
}

// removeExceptNode deletes the table but chain node-input, whose rules are the administrator's, and what these rules use.
func removeExceptNode(ctx context.Context, nft knftables.Interface, have map[string]*nftChain) error {
	node := have[nodeChain]
	isUsed := func(name string) bool {
		return slices.ContainsFunc(node.rules, func(r nftRule) bool { return r.mentions(name) || r.mentions("@"+name) })
	}
	tx := nft.NewTransaction()
	addTable(tx) // some of the sets may not exist
	tx.Add(newItselfSet())
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(have)), func(name string) bool { return name == nodeChain })
	for _, name := range names {
		tx.Flush(&knftables.Chain{Name: name})
	}
	for _, name := range names {
		if !isUsed(name) {
			tx.Delete(&knftables.Chain{Name: name})
		}
	}
	for _, name := range []string{vtepSet, egressSet, connectionSet, itselfSet} {
		if !isUsed(name) {
			tx.Delete(&knftables.Set{Name: name})
		}
	}
	if err := nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("delete the agent's chains of nftables table ip %s: %w", nftTableName, err)
	}
	klog.FromContext(ctx).Info("Retained the node's own rules in nftables, which have no effect while the agent's are in iptables",
		"table", nftTableName, "chain", nodeChain, "rules", len(node.rules), "action", "add them to iptables; to delete them: nft delete table ip "+nftTableName)
	return nil
}

// removeStaleIPTables removes the rules of a previous agent that used iptables: with nft from the backend nf_tables, with iptables-legacy from the other. It continues
// after errors and joins them.
func removeStaleIPTables(ctx context.Context, c FirewallConfig) error {
	tables, err := listNFTTables()
	errs := []error{err}
	for _, t := range tables {
		if t.isOfIPTables() {
			errs = append(errs, removeJumps(ctx, t.name))
		}
	}
	return errors.Join(append(errs, removeLegacyRules(ctx, c))...)
}

// removeStaleSets destroys the sets of a previous agent that used iptables. It does not wait until the kernel has released them after the deletion of their rules.
func removeStaleSets(ctx context.Context) error {
	return errors.Join(destroySet(ctx, vtepSet, vtepSetType), destroySet(ctx, egressSet, egressSetType))
}

// removeJumps removes the agent's chains from a table of iptables, and the jumps to them.
func removeJumps(ctx context.Context, table string) error {
	have, err := listNFT(ctx, "table", "ip", table)
	if err != nil {
		return err
	}
	nft, err := knftables.New(knftables.IPv4Family, table)
	if err != nil {
		return fmt.Errorf("find nft: %w", err)
	}
	tx := nft.NewTransaction()
	for _, r := range rulesOf(have) {
		if strings.HasPrefix(r.jump(), chainPrefix) && !strings.HasPrefix(r.Chain, chainPrefix) {
			tx.Delete(&knftables.Rule{Chain: r.Chain, Handle: &r.Handle})
		}
	}
	var own []string
	for name := range have {
		if strings.HasPrefix(name, chainPrefix) {
			own = append(own, name)
			tx.Flush(&knftables.Chain{Name: name})
		}
	}
	for _, name := range own {
		tx.Delete(&knftables.Chain{Name: name})
	}
	if tx.NumOperations() == 0 {
		return nil
	}
	if err := nft.Run(ctx, tx); err != nil {
		return fmt.Errorf("remove the agent's chains from table %s of iptables: %w", table, err)
	}
	klog.FromContext(ctx).Info("Removed the chains of a previous agent from iptables", "table", table, "chains", len(own))
	return nil
}

// removeLegacyRules removes the agent's chains of the legacy backend, of which nft sees nothing.
func removeLegacyRules(ctx context.Context, c FirewallConfig) error {
	tables, err := legacyTables()
	has := Rules(c).in(tables)
	if err != nil || len(has) == 0 {
		return err
	}
	program, err := legacyIPTables(ctx)
	if errors.Is(err, errNoIPTables) {
		klog.FromContext(ctx).Info("Can't look for rules of a previous agent in iptables-legacy, which is not installed",
			"tables", tables, "action", "restart the machine once")
		return nil
	}
	if err != nil {
		return err
	}
	legacy := &iptablesFirewall{iptables: program, firewallState: firewallState{rules: has}}
	return legacy.Remove(ctx)
}

// legacyIPTables returns the program of the legacy backend, an errNoIPTables if only that of nf_tables is installed.
func legacyIPTables(ctx context.Context) (*iptables.IPTables, error) {
	programs, err := findPrograms()
	if err != nil {
		return nil, err
	}
	if len(programs) > 1 {
		return programs[1], nil
	}
	isNFT, err := isNFTProgram(ctx)
	if err == nil && isNFT {
		err = errNoIPTables
	}
	return programs[0], err
}
