package hostnet

import (
	"strings"
	"testing"

	"github.com/coreos/go-iptables/iptables"
)

func TestBackendIsThatOfKubeletAndKubeProxy(t *testing.T) {
	for _, test := range []struct{ name, host, want string }{
		{"nobody's rules", "", "nf_tables"},
		{"kubelet on nft", "iptables-nft -t mangle -N KUBE-KUBELET-CANARY", "nf_tables"},
		{"kubelet on legacy", "iptables-legacy -t mangle -N KUBE-KUBELET-CANARY", "legacy"},
		{"other rules on legacy", "iptables-legacy -t mangle -N DOCKER", "nf_tables"},
		{"left on legacy, kube-proxy on nft", "iptables-legacy -t mangle -N KUBE-PROXY-CANARY; iptables-nft -t mangle -N KUBE-PROXY-CANARY", "nf_tables"},
	} {
		t.Run(test.name, func(t *testing.T) {
			inNetNS(t)
			sh(t, test.host)
			found, err := findIPTables()
			must(t, err)
			version := found.(*iptables.IPTables)
			got := "nf_tables"
			must(t, version.NewChain("filter", "PROBE"))
			if strings.Contains(sh(t, "iptables-legacy -S"), "PROBE") {
				got = "legacy"
			}
			if got != test.want {
				t.Errorf("its rules are %s, want %s", got, test.want)
			}
		})
	}
}

// Only what the host has is asked: to look at the older backend's tables makes them.
func TestLookingForABackendMakesNoTables(t *testing.T) {
	inNetNS(t)
	if _, err := findIPTables(); err != nil {
		t.Fatal(err)
	}
	if _, err := Everywhere(FirewallConfig{}); err != nil {
		t.Fatal(err)
	}
	if tables := tablesOfLegacy(); len(tables) > 0 {
		t.Errorf("there are %v", tables)
	}
}

func TestRulesAreRemovedFromAllBackends(t *testing.T) {
	inNetNS(t)
	for _, b := range []backend{"iptables-nft", "iptables-legacy"} {
		f, _ := b.firewall(t, openShift())
		if _, err := f.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	all, err := Everywhere(FirewallConfig{})
	must(t, err)
	for _, f := range all {
		must(t, f.Remove(t.Context()))
	}
	if left := sh(t, "iptables-nft-save; iptables-legacy-save"); strings.Contains(left, chainPrefix) {
		t.Errorf("there is\n%s", left)
	}
}
