package hostnet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
	"sigs.k8s.io/knftables"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/nftables"
)

// AllFirewalls returns a firewall for each backend that may have rules, for Remove, with the errors about other ones. On a host whose rules are in
// nftables, or without iptables, the firewall of nftables removes the rules of iptables, too.
func AllFirewalls(ctx context.Context, c FirewallConfig) (all []Firewall, err error) {
	found, iptablesErr := iptablesFirewalls(c)
	lacks := errors.Is(iptablesErr, errNoIPTables)
	exists, tableErr := hasStaleTable(ctx, len(found), iptablesErr)
	inNFT := exists || lacks || c.Program == FirewallNFTables
	errs := []error{tableErr}
	var nft *nftFirewall
	if inNFT {
		nft, err = removingNFT(ctx, exists)
		errs = append(errs, err)
	}
	switch {
	case nft != nil: // first: iptables is not needed for what nft has removed
		nft.leftovers.remove = func(ctx context.Context) error { return removeStaleIPTables(ctx, c) }
		all = append(all, nft)
	case iptablesErr != nil && !lacks:
		errs = append(errs, ignoreUnusable(ctx, iptablesErr))
	}
	for _, f := range found {
		f.unusable = ignoreUnusable
		all = append(all, f)
	}
	return all, errors.Join(errs...)
}

// hasStaleTable reports whether nftables has the agent's table. It does not load nf_tables on a host whose only program is iptables-legacy.
func hasStaleTable(ctx context.Context, programs int, iptablesErr error) (bool, error) {
	if programs == 1 && iptablesErr == nil {
		if uses, err := usesNFT(ctx); err != nil || !uses {
			return false, err
		}
	}
	return nftables.HasTable(nftTableName)
}

// removingNFT returns the firewall of nftables for Remove; nil if nft is not usable, with an error if the agent's table exists.
func removingNFT(ctx context.Context, exists bool) (*nftFirewall, error) {
	nft, err := knftables.New(knftables.IPv4Family, nftTableName)
	switch {
	case err != nil && nftDidNotRun(ctx, err):
		return nil, fmt.Errorf("run nft: %w", err)
	case err != nil && exists:
		return nil, fmt.Errorf("find nft, which the rules of the host's firewall are in: %w", err)
	case err != nil:
		return nil, nil //nolint:nilerr,nilnil // without iptables and nftables there are no rules
	}
	return &nftFirewall{nft: nft}, nil
}

// ignoreUnusable returns the error of iptables, or nil if the kernel has no rules of the agent for it: a host whose rules are in nftables need not have an iptables that
// works.
func ignoreUnusable(ctx context.Context, err error) error {
	if has, hasErr := hasIPTablesRules(); has || hasErr != nil {
		return errors.Join(err, hasErr)
	}
	klog.FromContext(ctx).Info("Ignored an iptables that does not work: the kernel has no rules of the agent for it", "err", err.Error())
	return nil
}

// hasIPTablesRules reports whether the kernel may have rules of the agent in tables of iptables. It asks the kernel, since iptables does not work. Only
// iptables-legacy could list the rules of that backend.
func hasIPTablesRules() (bool, error) {
	messages, err := nftables.Dump(unix.NFT_MSG_GETCHAIN, unix.NFT_MSG_NEWCHAIN)
	if err != nil {
		return false, fmt.Errorf("list chains of nftables: %w", err)
	}
	for _, m := range messages {
		if c, ok := parseNFTChain(m); ok && c.table.isOfIPTables() && strings.HasPrefix(c.chain, chainPrefix) {
			return true, nil
		}
	}
	tables, err := legacyTables()
	return len(Rules(FirewallConfig{}).in(tables)) > 0, err
}

// iptablesFirewalls returns a firewall for each backend of iptables that may have rules, with the error about a program that does not work.
func iptablesFirewalls(c FirewallConfig) (all []*iptablesFirewall, err error) {
	programs, findErr := findPrograms()
	if len(programs) > 1 {
		newer, legacy := programs[0], programs[1]
		programs = nil
		supported, err := nftables.Supported()
		if err != nil {
			return nil, err
		}
		if supported {
			programs = append(programs, newer)
		}
		tables, err := legacyTables()
		if err != nil {
			return nil, err
		}
		if has := Rules(c).in(tables); len(has) > 0 {
			all = append(all, &iptablesFirewall{iptables: legacy, firewallState: firewallState{rules: has}})
		}
	}
	for _, p := range programs {
		all = slices.Insert(all, 0, &iptablesFirewall{iptables: p, firewallState: firewallState{rules: Rules(c)}})
	}
	return all, findErr
}
