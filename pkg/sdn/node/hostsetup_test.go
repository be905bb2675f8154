package node

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
)

// The firewall masquerades packets of pods to hosts outside unless the agent runs with --ip-masq=false.
func TestFirewallConfig_ipMasq(t *testing.T) {
	cluster := netip.MustParsePrefix("10.128.0.0/14")
	for _, masquerades := range []bool{true, false} {
		n := &nodeNetwork{
			agent: &agent{Config: Defaults()},
			network: &config.Network{
				Mode: config.ModeNetworkPolicy, ClusterNetworks: []config.ClusterNetwork{{Prefix: cluster}}, ServiceNetwork: netip.MustParsePrefix("172.30.0.0/16"),
				VXLANPort: config.DefaultVXLANPort,
			},
			hostSubnet: &config.HostSubnet{Subnets: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/23")}},
		}
		n.node.ClusterNetworks = []netip.Prefix{cluster}
		n.agent.IPMasq = masquerades
		var all []string
		for _, chain := range hostnet.Rules(n.firewallConfig()) {
			for _, rule := range chain.Rules {
				all = append(all, strings.Join(rule, " "))
			}
		}
		got := slices.ContainsFunc(all, func(rule string) bool {
			return strings.HasPrefix(rule, "-s 10.128.0.0/14") && strings.Contains(rule, "-j MASQUERADE") && !strings.Contains(rule, "--match-set")
		})
		if got != masquerades {
			t.Errorf("--ip-masq=%v: got rules\n%s\nwant one that masquerades packets of pods to all hosts outside: %v", masquerades, strings.Join(all, "\n"), masquerades)
		}
	}
}
