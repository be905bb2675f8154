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

// KubeProxyRules returns where kube-proxy has rules on this host, which remain when it ends; "": it has none. It reads no rules of nftables. It runs iptables only if the
// legacy backend has table nat.
func KubeProxyRules() (place string, err error) {
	const table, chain = "table ip " + kubeProxyTable + " of nftables", "chain " + kubeProxyChain + " of iptables"
	exists, err := nftables.HasTable(kubeProxyTable)
	if err != nil {
		return "", err
	}
	if exists {
		return table, nil
	}
	if exists, err = nftables.HasChain(tableNAT, kubeProxyChain); err == nil && !exists {
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
	return programs[len(programs)-1].ChainExists(tableNAT, kubeProxyChain)
}
