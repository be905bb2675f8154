package hostnet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/coreos/go-iptables/iptables"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/nftables"
)

// legacyProgram is iptables with the legacy backend where both are installed, as in the agent's image. "iptables" has the nf_tables backend there.
const legacyProgram = "iptables-legacy"

// legacyTablesFile lists the tables of the legacy backend in this thread's network namespace. iptables-legacy would create the tables.
const legacyTablesFile = "/proc/thread-self/net/ip_tables_names"

// backends are the iptables backend that the host uses, and the other one. Neither lists the rules of the other. The other may have rules of a previous
// agent, which started before kube-proxy or before the host's backend was changed.
type backends struct {
	used, other *iptables.IPTables
	otherTables []string // existing tables of the other
	legacy      bool     // the used one is the legacy backend
}

// findIPTables returns the backend of kubelet and kube-proxy, which create a chain in table mangle. Without such a chain it is
// nf_tables, if the kernel supports that.
func findIPTables() (found backends, err error) {
	programs, err := findPrograms()
	if err != nil {
		return found, err
	}
	if len(programs) == 1 {
		return backends{used: programs[0]}, nil
	}
	newer, legacy := programs[0], programs[1]
	if supported, err := nftables.Supported(); err != nil {
		return found, err
	} else if !supported {
		return backends{used: legacy, legacy: true}, nil
	}
	chains, err := newer.ListChains(tableMangle)
	if err != nil {
		return found, fmt.Errorf("detect the iptables backend of the host: %w", err)
	}
	tables, err := legacyTables()
	if err != nil {
		return found, err
	}
	found = backends{used: newer, other: legacy, otherTables: tables}
	if slices.ContainsFunc(chains, isKubeChain) || !slices.Contains(tables, tableMangle) {
		return found, nil
	}
	if chains, err = legacy.ListChains(tableMangle); err != nil {
		return found, fmt.Errorf("detect the iptables backend of the host: %w", err)
	}
	if slices.ContainsFunc(chains, isKubeChain) {
		return backends{used: legacy, legacy: true, other: newer, otherTables: []string{tableMangle, tableNAT, tableFilter, tableRaw}}, nil
	}
	return found, nil
}

// findPrograms returns the installed programs: "iptables" and "iptables-legacy".
func findPrograms() ([]*iptables.IPTables, error) {
	common := func(path string) (*iptables.IPTables, error) {
		return iptables.New(iptables.IPFamily(iptables.ProtocolIPv4), iptables.Timeout(lockWait), iptables.Path(path))
	}
	var found []*iptables.IPTables
	first, err := common("iptables")
	if err == nil {
		found = append(found, first)
	}
	legacy, legacyErr := common(legacyProgram)
	if legacyErr == nil {
		found = append(found, legacy)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("find iptables, which the node requires to masquerade pods: %w", errors.Join(err, legacyErr))
	}
	return found, nil
}

func isKubeChain(chain string) bool { return strings.HasPrefix(chain, kubeChainPrefix) }

// legacyTables returns the existing tables of the legacy backend, none if the kernel does not support it.
func legacyTables() ([]string, error) {
	names, err := os.ReadFile(legacyTablesFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list tables of the legacy backend of iptables: %w", err)
	}
	return strings.Fields(string(names)), nil
}

// AllFirewalls returns a firewall for each backend that may have rules, for Remove.
func AllFirewalls(c FirewallConfig) ([]*Firewall, error) {
	programs, err := findPrograms()
	if err != nil {
		return nil, err
	}
	var all []*Firewall
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
			all = append(all, &Firewall{iptables: legacy, rules: has})
		}
	}
	for _, p := range programs {
		all = slices.Insert(all, 0, &Firewall{iptables: p, rules: Rules(c)})
	}
	return all, nil
}
