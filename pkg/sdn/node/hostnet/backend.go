package hostnet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/coreos/go-iptables/iptables"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// legacyProgram is iptables with its older backend, where both are installed, as in the agent's image. There "iptables" has the newer one.
const legacyProgram = "iptables-legacy"

// legacyTables is a file that lists the older backend's tables that this thread's network namespace has. To ask that backend itself would make them.
const legacyTables = "/proc/thread-self/net/ip_tables_names"

// backends are iptables with the backend that the host uses, since neither sees the rules of the other, and the other where that may have rules
// of ours: of an agent that took it, before kube-proxy was there or before the host was changed.
type backends struct {
	used, other *iptables.IPTables
	has         []string // tables of the other
}

// findIPTables looks for kubelet and kube-proxy: they keep a chain in table mangle, whatever they do else. Where there is no trace of them the
// newer backend is used, if the kernel has it.
func findIPTables() (found backends, err error) {
	programs, err := findBackends()
	if err != nil {
		return found, err
	}
	if len(programs) == 1 {
		return backends{used: programs[0]}, nil
	}
	newer, legacy := programs[0], programs[1]
	if there, err := hasNFTables(); err != nil {
		return found, err
	} else if !there {
		return backends{used: legacy}, nil
	}
	chains, err := newer.ListChains(tableMangle)
	if err != nil {
		return found, fmt.Errorf("find out which iptables the host uses: %w", err)
	}
	tables, err := tablesOfLegacy()
	if err != nil {
		return found, err
	}
	found = backends{used: newer, other: legacy, has: tables}
	if slices.ContainsFunc(chains, isKube) || !slices.Contains(tables, tableMangle) {
		return found, nil
	}
	if chains, err = legacy.ListChains(tableMangle); err != nil {
		return found, fmt.Errorf("find out which iptables the host uses: %w", err)
	}
	if slices.ContainsFunc(chains, isKube) {
		return backends{used: legacy, other: newer, has: []string{tableMangle, tableNAT, tableFilter, tableRaw}}, nil
	}
	return found, nil
}

// findBackends returns the programs that there are: "iptables" and, if that is another, the legacy one.
func findBackends() ([]*iptables.IPTables, error) {
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
		return nil, fmt.Errorf("find iptables, which the node needs to masquerade pods: %w", errors.Join(err, legacyErr))
	}
	return found, nil
}

func isKube(chain string) bool { return strings.HasPrefix(chain, kubeChainPrefix) }

// hasNFTables asks the kernel, which loads what it needs for the answer.
func hasNFTables() (bool, error) {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, unix.NLM_F_REQUEST)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	_, err := request.Execute(unix.NETLINK_NETFILTER, 0)
	return answersNFTables(err)
}

// answersNFTables tells a kernel without nf_tables (EINVAL, of a subsystem that nfnetlink does not know) or without nfnetlink
// (EPROTONOSUPPORT, of the socket) from one that could not be asked.
func answersNFTables(err error) (bool, error) {
	switch {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EPROTONOSUPPORT):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("ask the kernel for nf_tables: %w", err)
	}
	return true, nil
}

// tablesOfLegacy returns none where the kernel has no such backend.
func tablesOfLegacy() ([]string, error) {
	names, err := os.ReadFile(legacyTables)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find out whether iptables' older backend has tables: %w", err)
	}
	return strings.Fields(string(names)), nil
}

// Everywhere returns firewalls for all backends that may have rules, whichever was found first when they were made: for Remove.
func Everywhere(c FirewallConfig) ([]*Firewall, error) {
	programs, err := findBackends()
	if err != nil {
		return nil, err
	}
	var all []*Firewall
	if len(programs) > 1 {
		newer, legacy := programs[0], programs[1]
		programs = nil
		there, err := hasNFTables()
		if err != nil {
			return nil, err
		}
		if there {
			programs = append(programs, newer)
		}
		tables, err := tablesOfLegacy()
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
