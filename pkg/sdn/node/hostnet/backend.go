package hostnet

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/coreos/go-iptables/iptables"
)

// legacyProgram is iptables with its older backend, where both are installed, as in the agent's image. There "iptables" has the newer one.
const legacyProgram = "iptables-legacy"

// legacyTables is a file that lists the older backend's tables that this thread's network namespace has. To ask that backend itself would make them.
const legacyTables = "/proc/thread-self/net/ip_tables_names"

// findIPTables returns iptables with the backend that the host uses, since neither sees the rules of the other. kubelet and kube-proxy tell:
// they keep a chain in table mangle, whatever they do else. Where there is no trace of them it is the newer, if the kernel has it.
func findIPTables() (program, error) {
	programs, err := findBackends()
	if err != nil {
		return nil, err
	}
	if len(programs) == 1 {
		return programs[0], nil
	}
	newer, legacy := programs[0], programs[1]
	chains, err := newer.ListChains("mangle")
	switch {
	case err != nil: // such as a kernel without nf_tables
		return legacy, nil
	case slices.ContainsFunc(chains, isKube) || !slices.Contains(tablesOfLegacy(), "mangle"):
		return newer, nil
	}
	if chains, err = legacy.ListChains("mangle"); err == nil && slices.ContainsFunc(chains, isKube) {
		return legacy, nil
	}
	return newer, nil
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

// tablesOfLegacy returns none where the kernel has no such backend.
func tablesOfLegacy() []string {
	names, err := os.ReadFile(legacyTables)
	if err != nil {
		return nil
	}
	return strings.Fields(string(names))
}

// Everywhere returns firewalls for all backends that have rules, whichever was found first when they were made: for Remove.
func Everywhere(c FirewallConfig) ([]*Firewall, error) {
	programs, err := findBackends()
	if err != nil {
		return nil, err
	}
	if len(programs) > 1 && len(tablesOfLegacy()) == 0 {
		programs = programs[:1]
	}
	var all []*Firewall
	for _, p := range programs {
		if _, err := p.List("filter", "INPUT"); err == nil || len(programs) == 1 { // else the kernel has no such backend
			all = append(all, &Firewall{iptables: p, rules: Rules(c)})
		}
	}
	return all, nil
}
