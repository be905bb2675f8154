package hostnet

import (
	"fmt"
	"slices"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/nftables"
)

// Names of kube-proxy's rules. kubelet creates neither.
const (
	kubeProxyTable = "kube-proxy"    // table of nftables, in mode nftables
	kubeProxyChain = "KUBE-SERVICES" // chain of table nat of iptables, in the modes iptables and ipvs
)

// KubeProxyRules returns where kube-proxy has rules on this host, which remain when it ends; "": it has none. Without rules, as `iptables -F` leaves it, neither counts. It runs
// iptables only if the legacy backend has table nat.
func KubeProxyRules() (place string, err error) {
	const table, chain = "table ip " + kubeProxyTable + " of nftables", "chain " + kubeProxyChain + " of iptables"
	exists, err := nftables.HasRules(kubeProxyTable, "")
	if err != nil {
		return "", err
	}
	if exists {
		return table, nil
	}
	if exists, err = nftables.HasRules(tableNAT, kubeProxyChain); err == nil && !exists {
		exists, err = legacyHasKubeProxy()
	}
	if err != nil {
		return "", fmt.Errorf("find %s: %w", chain, err)
	}
	if exists {
		return chain, nil
	}
	return "", nil
}

func legacyHasKubeProxy() (bool, error) {
	tables, err := legacyTables()
	if err != nil || !slices.Contains(tables, tableNAT) {
		return false, err
	}
	programs, err := findPrograms()
	if err != nil {
		return false, err
	}
	legacy := programs[len(programs)-1]
	exists, err := legacy.ChainExists(tableNAT, kubeProxyChain)
	if err != nil || !exists {
		return false, err
	}
	lines, err := legacy.List(tableNAT, kubeProxyChain)
	return len(lines) > 1, err // the first creates the chain
}
