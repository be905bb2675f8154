package hostnet

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Names of kube-proxy's rules. kubelet creates neither.
const (
	kubeProxyTable = "kube-proxy"    // table of nftables, in mode nftables
	kubeProxyChain = "KUBE-SERVICES" // chain of table nat of iptables, in the modes iptables and ipvs
)

// KubeProxyRules returns where kube-proxy has rules on this host, which remain when it ends; "": it has none. It reads no rules of nftables. It runs iptables only if the
// legacy backend has table nat.
func KubeProxyRules() (place string, err error) {
	for _, o := range []struct {
		place   string
		message int
		names   []*nl.RtAttr
	}{
		{"table ip " + kubeProxyTable + " of nftables", unix.NFT_MSG_GETTABLE, []*nl.RtAttr{nl.NewRtAttr(unix.NFTA_TABLE_NAME, nl.ZeroTerminated(kubeProxyTable))}},
		{placeOfChain(), unix.NFT_MSG_GETCHAIN, []*nl.RtAttr{
			nl.NewRtAttr(unix.NFTA_CHAIN_TABLE, nl.ZeroTerminated(tableNAT)), nl.NewRtAttr(unix.NFTA_CHAIN_NAME, nl.ZeroTerminated(kubeProxyChain)),
		}},
	} {
		exists, err := nftablesHas(o.message, o.names)
		if err != nil {
			return "", fmt.Errorf("find %s: %w", o.place, err)
		}
		if exists {
			return o.place, nil
		}
	}
	exists, err := legacyHasKubeProxy()
	if err != nil {
		return "", fmt.Errorf("find %s: %w", placeOfChain(), err)
	}
	if exists {
		return placeOfChain(), nil
	}
	return "", nil
}

func placeOfChain() string { return "chain " + kubeProxyChain + " of iptables" }

// nftablesHas reports whether the object of family ip exists.
func nftablesHas(message int, names []*nl.RtAttr) (bool, error) {
	request := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|message, 0)
	request.AddData(&nl.Nfgenmsg{NfgenFamily: unix.NFPROTO_IPV4, Version: nl.NFNETLINK_V0})
	for _, name := range names {
		request.AddData(name)
	}
	_, err := request.Execute(unix.NETLINK_NETFILTER, 0)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return supportsNFTables(err)
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
