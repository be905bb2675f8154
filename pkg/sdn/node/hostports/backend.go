package hostports

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/coreos/go-iptables/iptables"
	"sigs.k8s.io/knftables"
)

// Names that portmap uses, with its nftables backend and with iptables. It never changes them.
const (
	nftTable       = "cni_hostport"
	nftPorts       = "hostports"        // has the rules of all pods
	nftHostIPPorts = "hostip_hostports" // has those of previous versions

	natTable   = "nat"
	portsChain = "CNI-HOSTPORT-DNAT" // has the jumps to all pods' chains
	markChain  = "CNI-HOSTPORT-SETMARK"
	masqChain  = "CNI-HOSTPORT-MASQ"
)

// supportsNFTables returns an error if the kernel or nft lacks what portmap uses, or, with unknown, if nft could not run. It changes nothing.
func supportsNFTables(ctx context.Context) (unknown bool, err error) {
	nft, err := knftables.New(knftables.IPv4Family, "ovsdn_supports_hostports")
	if err != nil {
		return didNotRun(ctx, err), fmt.Errorf("find nftables: %w", err)
	}
	base := func(name string, hook knftables.BaseChainHook, priority knftables.BaseChainPriority) *knftables.Chain {
		return &knftables.Chain{Name: name, Type: knftables.PtrTo(knftables.NATType), Hook: &hook, Priority: &priority}
	}
	tx := nft.NewTransaction()
	tx.Add(&knftables.Table{})
	tx.Add(&knftables.Chain{Name: "ports"})
	tx.Add(base("prerouting", knftables.PreroutingHook, knftables.DNATPriority))
	tx.Add(base("postrouting", knftables.PostroutingHook, knftables.SNATPriority))
	tx.Add(&knftables.Rule{Chain: "prerouting", Rule: "fib daddr type local jump ports"})
	tx.Add(&knftables.Rule{Chain: "ports", Rule: "tcp dport 1 dnat to 192.0.2.1:1"})
	tx.Add(&knftables.Rule{Chain: "postrouting", Rule: "ip saddr 192.0.2.1 masquerade"})
	if err := nft.Check(ctx, tx); err != nil {
		return didNotRun(ctx, err), fmt.Errorf("nftables lacks what host ports need: %w", err)
	}
	return false, nil
}

// didNotRun reports whether a program was not started or was killed, so that its error does not show what the kernel supports.
func didNotRun(ctx context.Context, err error) bool {
	var state interface{ Exited() bool } // *exec.ExitError
	return ctx.Err() != nil || errors.As(err, new(*fs.PathError)) || errors.As(err, &state) && !state.Exited()
}

func (p *Portmap) supportsIPTables(b Backend) error {
	ipt, err := p.iptables(b)
	if err != nil {
		return err
	}
	_, err = ipt.List(natTable, "OUTPUT")
	return err
}

// lockWait is the time for which one run of iptables waits for its lock, in seconds.
const lockWait = 5

func (p *Portmap) iptables(b Backend) (*iptables.IPTables, error) {
	path := "iptables"
	if legacy := filepath.Join(p.LegacyDir, path); b == BackendLegacy && isExecutable(legacy) {
		path = legacy
	}
	ipt, err := iptables.New(iptables.IPFamily(iptables.ProtocolIPv4), iptables.Timeout(lockWait), iptables.Path(path))
	if err != nil {
		return nil, fmt.Errorf("find iptables: %w", err)
	}
	return ipt, nil
}

// allChains in place of a chain lists those of a table: the client has no other way to do so, and adds this option anyway.
const allChains = "--wait"

// eachNATRule calls do with the chain and the words of each rule of table nat: those of the rule itself, which are not empty. It starts iptables once, since
// each run of the legacy backend copies the table, which has hundreds of thousands of rules where kube-proxy has many Services.
func (p *Portmap) eachNATRule(b Backend, do func(chain string, words []string)) error {
	ipt, err := p.iptables(b)
	if err != nil {
		return err
	}
	lines, err := ipt.List(natTable, allChains)
	if err != nil {
		return fmt.Errorf("list table nat: %w", err)
	}
	for _, line := range lines {
		if words := strings.Fields(line); len(words) > 2 && words[0] == "-A" {
			do(words[1], words[2:])
		}
	}
	return nil
}

// removeUnusedTable removes the table of the nftables backend, unless another network has host ports there.
func removeUnusedTable(ctx context.Context) error {
	nft, err := knftables.New(knftables.IPv4Family, nftTable)
	if err != nil {
		return nil //nolint:nilerr // without nftables there is no table
	}
	rules, err := nft.ListRules(ctx, "")
	if knftables.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, r := range rules {
		if r.Chain == nftPorts || r.Chain == nftHostIPPorts {
			return nil
		}
	}
	tx := nft.NewTransaction()
	tx.Delete(&knftables.Table{})
	return nft.Run(ctx, tx)
}

// removeUnusedChains removes the chains of the iptables backend, unless another network has host ports there.
func (p *Portmap) removeUnusedChains(b Backend) error {
	ipt, err := p.iptables(b)
	if err != nil {
		return nil //nolint:nilerr // without iptables there are no chains
	}
	rules, err := ipt.List(natTable, portsChain)
	const declaration = 1 // of the chain itself
	if err != nil || len(rules) > declaration {
		return nil //nolint:nilerr // the chain does not exist
	}
	toPorts := []string{"-m", "addrtype", "--dst-type", "LOCAL", "-j", portsChain}
	var errs []error
	for _, jump := range []struct {
		chain string
		rule  []string
	}{
		{"PREROUTING", toPorts}, {"OUTPUT", toPorts},
		{"POSTROUTING", []string{"-m", "comment", "--comment", "CNI portfwd requiring masquerade", "-j", masqChain}},
	} {
		for { // portmap writes a rule twice if two of it run at the same time
			exists, err := ipt.Exists(natTable, jump.chain, jump.rule...)
			if err == nil && exists {
				err = ipt.Delete(natTable, jump.chain, jump.rule...)
			}
			errs = append(errs, err)
			if err != nil || !exists {
				break
			}
		}
	}
	for _, chain := range []string{portsChain, markChain, masqChain} {
		errs = append(errs, ipt.ClearAndDeleteChain(natTable, chain))
	}
	return errors.Join(errs...)
}
