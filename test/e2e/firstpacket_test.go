package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
)

// The first packets between two nodes arrive with the userspace datapath, whose neighbour cache starts empty, can be flushed, and expires.
func TestFirstPacketToNode(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: the agent compares the cache every second")
	}
	c := newCluster(t)
	if c.Shape().Datapath != lab.Netdev {
		t.Log("the kernel's datapath has no neighbour cache of its own: TestFirstPacketToNode in test/datapath shows that the kernel queues")
		return
	}
	ns := c.Namespace(t)
	pods := c.Run(t, ns, fixture.Netexec("a", fixture.Node1), fixture.Netexec("b", fixture.Node2))
	c.awaitTunnelNeighbours(t)
	first := func(what string, before ...string) {
		t.Helper()
		c.lone(t, what, func() {
			if len(before) == 0 {
				return
			}
			for _, node := range []string{fixture.Node1, fixture.Node2} {
				c.Output(t, node, before...)
				c.Output(t, node, "ovs-appctl", "tnl/neigh/flush")
			}
			c.awaitTunnelNeighbours(t)
		}, pods[0], pods[1])
	}
	first("new pods")
	for range 10 {
		first("cache flushed", "true")
	}
	first("host's neighbours flushed", "ip", "neigh", "flush", "dev", "br-ex")

	c.service(t, fixture.Node1, vswitchdService, (*lab.Service).Restart)
	c.restoreUnderlay(t, fixture.Node1)
	c.reconnected(t, fixture.Node1)
	c.serves(t, fixture.Node1)
	c.awaitTunnelNeighbours(t)
	first("vswitchd restarted")
}

// awaitTunnelNeighbours waits until both nodes have each other as a tunnel neighbour, and no datapath flow is older than that.
func (c *cluster) awaitTunnelNeighbours(t *testing.T) {
	t.Helper()
	for node, other := range map[string]string{fixture.Node1: fixture.Node2, fixture.Node2: fixture.Node1} {
		want := c.Addr(t, other).String()
		fixture.Eventually(t, fixture.SyncTime, node+" has a neighbour "+want, func(ctx context.Context) error {
			got, err := c.TryOutput(ctx, node, "ovs-appctl", "tnl/neigh/show")
			if err == nil && !strings.Contains(got, want+" ") {
				err = fmt.Errorf("got\n%s", got)
			}
			return err
		})
		for range 2 { // the first round may have begun before
			c.Output(t, node, "ovs-appctl", "revalidator/wait")
		}
	}
}
