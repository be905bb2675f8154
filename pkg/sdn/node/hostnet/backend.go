package hostnet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/coreos/go-iptables/iptables"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/nftables"
)

// legacyProgram is iptables with the legacy backend where both are installed, as in the agent's image. "iptables" has the nf_tables backend there.
const legacyProgram = "iptables-legacy"

const iptablesProgram = "iptables"

// legacyTablesFile lists the tables of the legacy backend in this thread's network namespace. iptables-legacy would create the tables.
const legacyTablesFile = "/proc/thread-self/net/ip_tables_names"

// backends are the iptables backend that the host uses, and the other one. Neither lists the rules of the other. The other may have rules of a previous
// agent, which started before kube-proxy or before the host's backend was changed.
type backends struct {
	used, other *iptables.IPTables
	otherTables []string // existing tables of the other
	legacy      bool     // the used one is the legacy backend
	nft         bool     // the kernel uses nf_tables; false: a request for it would load the module
}

// findIPTables returns the backend of kubelet and kube-proxy, which create a chain in table mangle. Without such a chain it is
// nf_tables, if the kernel supports that.
func findIPTables(ctx context.Context) (found backends, err error) {
	programs, err := findPrograms()
	if err != nil {
		return found, err
	}
	if len(programs) == 1 {
		found.used = programs[0]
		found.nft, err = usesNFT(ctx)
		return found, err
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
	found = backends{used: newer, other: legacy, otherTables: tables, nft: true}
	if slices.ContainsFunc(chains, isKubeChain) || !slices.Contains(tables, tableMangle) {
		return found, nil
	}
	if chains, err = legacy.ListChains(tableMangle); err != nil {
		return found, fmt.Errorf("detect the iptables backend of the host: %w", err)
	}
	if slices.ContainsFunc(chains, isKubeChain) {
		return backends{used: legacy, legacy: true, other: newer, otherTables: []string{tableMangle, tableNAT, tableFilter, tableRaw}, nft: true}, nil
	}
	return found, nil
}

// findPrograms returns the installed programs: "iptables" and "iptables-legacy". It returns those that work with the error about another one. An
// iptables-legacy that does not work beside iptables is ignored if the kernel has no tables for it.
func findPrograms() (found []*iptables.IPTables, err error) {
	tables, err := legacyTables()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, name := range []string{iptablesProgram, legacyProgram} {
		p, err := iptables.New(iptables.IPFamily(iptables.ProtocolIPv4), iptables.Timeout(lockWait), iptables.Path(name))
		switch {
		case err == nil:
			found = append(found, p)
		case errors.Is(err, exec.ErrNotFound), name == legacyProgram && len(found) > 0 && len(tables) == 0:
		default:
			errs = append(errs, fmt.Errorf("run %s: %w", name, err))
		}
	}
	if len(found)+len(errs) == 0 {
		return nil, errNoIPTables
	}
	return found, errors.Join(errs...)
}

// usesNFT reports whether the kernel uses nf_tables on a host with one program of iptables. It does not load the module.
func usesNFT(ctx context.Context) (bool, error) {
	if isNFT, err := isNFTProgram(ctx); err != nil || isNFT {
		return isNFT, err
	}
	return isNFTLoaded()
}

// isNFTProgram reports whether the backend of the only program that is installed is nf_tables.
func isNFTProgram(ctx context.Context) (bool, error) {
	name := iptablesProgram
	if _, err := exec.LookPath(name); errors.Is(err, exec.ErrNotFound) {
		name = legacyProgram
	}
	out, err := exec.CommandContext(ctx, name, "--version").Output() //nolint:gosec // one of two names
	if err != nil {
		return false, fmt.Errorf("run %s --version: %w", name, err)
	}
	return bytes.Contains(out, []byte("(nf_tables)")), nil
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
