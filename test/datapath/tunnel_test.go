package datapath_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/test/datapath"
)

// The host's conntrack has no entry for the tunnel, however many connections are in it.
func testTunnelNotTracked(t *testing.T, c *cluster) {
	const connections = 50
	c.reset(t)
	client, server := c.pod(0, 0), c.pod(1, 0)
	entries := func() (tunnel int) {
		t.Helper()
		for _, node := range c.Nodes {
			node.Sh(t, "conntrack -F 2>/dev/null")
		}
		serving := server.UDP(t, 0)
		for range connections {
			asking := client.UDP(t, 0)
			asking.MustReach(t, serving.Addr(), serving)
			serving.MustReach(t, asking.Addr(), asking)
			asking.Close()
		}
		for _, node := range c.Nodes {
			var n int
			if _, err := fmt.Sscan(node.Sh(t, "conntrack -L -p udp --orig-port-dst 4789 2>/dev/null | wc -l"), &n); err != nil {
				t.Fatal(err)
			}
			tunnel += n
		}
		return tunnel
	}
	without := entries()
	if without < connections {
		t.Errorf("without rules conntrack has %d entries for the tunnel of %d connections: nothing was measured", without, connections)
	}
	for _, node := range c.Nodes {
		exempt(t, node)
	}
	with := entries()
	if with != 0 {
		t.Errorf("conntrack has %d entries for the tunnel, want 0", with)
	}
	t.Logf("conntrack entries of two nodes for %d connections between them: %d, with the agent's rules %d", connections, without, with)
}

// exempt sets the rules of table raw that the agent sets on the node, until the test ends. All at once: a run of iptables is slow in a
// virtual machine.
func exempt(t *testing.T, node *datapath.Node) {
	t.Helper()
	var raw hostnet.Ruleset
	for _, c := range hostnet.Rules(hostnet.FirewallConfig{VXLANPort: 4789}) {
		isEgress := c.Optional != nil && c.Optional.Feature == hostnet.FeatureEgressNotrack // needs a set, and is not about the tunnel
		if c.Table == "raw" && !isEgress {
			raw = append(raw, c)
		}
	}
	t.Cleanup(func() { node.Sh(t, "iptables -t raw -F", "iptables -t raw -X") })
	node.Sh(t, "iptables-restore --noflush <<'END'", strings.TrimSuffix(raw.String(), "\n"), "END")
}
