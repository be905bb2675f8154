package hostnet

import (
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
)

// kube-proxy's rules are found in each of its modes, and kubelet's are not kube-proxy's.
func TestKubeProxyRules(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend, _ ns.NetNS) {
		iptables := b.command() + " -t nat "
		for _, step := range []struct{ name, run, want string }{
			{"no rules", "true", ""},
			{"kubelet", b.command() + " -t mangle -N KUBE-KUBELET-CANARY; " + iptables + "-N KUBE-KUBELET-CANARY", ""},
			{"chain of another table", b.command() + " -t filter -N KUBE-SERVICES", ""},
			{"empty chain", iptables + "-N KUBE-SERVICES; " + iptables + "-A PREROUTING -j KUBE-SERVICES", ""},
			{"iptables", iptables + "-A KUBE-SERVICES -d 172.30.0.1 -j ACCEPT", "chain KUBE-SERVICES of iptables"},
			{"nftables, empty", "nft add table ip kube-proxy; nft add chain ip kube-proxy services", "chain KUBE-SERVICES of iptables"},
			{"nftables", "nft add rule ip kube-proxy services counter", "table ip kube-proxy of nftables"},
			{"nftables, deleted", "nft delete table ip kube-proxy", "chain KUBE-SERVICES of iptables"},
			{"iptables, flushed", iptables + "-F", ""},
			{"iptables, deleted", iptables + "-X KUBE-SERVICES", ""},
			{"table of another family", "nft add table ip6 kube-proxy", ""},
		} {
			sh(t, step.run)
			if got, err := KubeProxyRules(); err != nil || got != step.want {
				t.Errorf("%s: got %q, %v, want %q", step.name, got, err, step.want)
			}
		}
	})
}

// The search creates no tables: iptables-legacy would create each that it lists.
func TestKubeProxyRules_createsNoTables(t *testing.T) {
	inNetNS(t)
	if got, err := KubeProxyRules(); err != nil || got != "" {
		t.Errorf("got %q, %v, want no rules", got, err)
	}
	if tables, err := legacyTables(); err != nil || len(tables) > 0 {
		t.Errorf("got tables %v, error %v, want none", tables, err)
	}
	if tables := sh(t, "nft list tables"); tables != "" {
		t.Errorf("got tables %q, want none", tables)
	}
}
