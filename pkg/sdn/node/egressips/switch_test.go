package egressips

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// The way of a pod's packet to outside follows the objects, on Open vSwitch.
func TestEgressIPs_packets(t *testing.T) {
	tier.Parallel(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	sw := ovstest.Start(t)
	c := newCluster(t)
	c.real = native.New(ovstest.Bridge, sw.RunDir)
	t.Cleanup(c.real.Close)
	if err := c.real.EnsureBridge(t.Context(), ovs.Bridge{Name: ovstest.Bridge, DatapathType: ovstest.DatapathType(t), TableNames: pipeline.TableNames()}); err != nil {
		t.Fatal(err)
	}
	c.hostSubnets.Add(hostSubnet("node1", "192.0.2.100"))
	c.hostSubnets.Add(hostSubnet("node2"))
	c.netNamespaces.Add(netNamespace("shop@u1", "192.0.2.100"))
	a, _ := c.start(t, "shop@u1/5")
	// way returns "translated", "tunnel", "dropped" or "node".
	way := func() string {
		trace := sw.Trace(t, "in_port=5,dl_src=0a:58:0a:80:00:05,tcp,nw_src=10.128.0.5,nw_dst=203.0.113.9,tcp_dst=443")
		switch {
		case strings.Contains(trace, "nat(src=192.0.2.100)"):
			return "translated"
		case strings.Contains(trace, "192.0.2.2->tun_dst"):
			return "tunnel"
		case strings.Contains(trace, "101. priority 0"):
			return "dropped"
		case strings.Contains(trace, "101. "):
			return "node"
		}
		return trace
	}
	want := func(when, want string) {
		t.Helper()
		await.OK(t, testTimeout, func(context.Context) error {
			if got := way(); got != want {
				return fmt.Errorf("%s: got %s, want %s", when, got, want)
			}
			return nil
		})
	}
	want("hosted here", "translated")
	c.hostSubnets.Modify(hostSubnet("node2", "192.0.2.100"))
	want("hosted by two nodes", "dropped")
	c.hostSubnets.Modify(hostSubnet("node1"))
	want("hosted by node2", "tunnel")
	c.netNamespaces.Add(netNamespace("bank@u2", "192.0.2.100"))
	want("used by two namespaces", "dropped")
	c.netNamespaces.Modify(netNamespace("shop@u1"))
	want("without egress IPs", "node")
	c.netNamespaces.Modify(netNamespace("shop@u1", "192.0.2.100", "192.0.2.101"))
	want("used by two namespaces again", "dropped")
	c.netNamespaces.Delete(netNamespace("bank@u2"))
	want("used by one namespace", "tunnel")
	a.wantHost("host [] flows []")
}
