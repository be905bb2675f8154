package datapath_test

import (
	"testing"

	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/tier"
)

// TestConntrack tests docs/decisions/0001-conntrack.md with packets. The tests share a cluster, since its creation is slow in a virtual
// machine; each begins with c.reset. The short tier has several clusters, and runs a test on any that is free.
func TestConntrack(t *testing.T) {
	tier.Parallel(t)
	count := 1
	if testing.Short() {
		count = 3
	}
	clusters := make(chan *cluster, count)
	for range count {
		clusters <- newCluster(t, 3, 2)
	}
	for _, test := range []struct {
		name string
		run  func(*testing.T, *cluster)
	}{
		{"replies of isolated pods", testReplies},
		{"half an allow is none", testHalfAllow},
		{"a forbidden connection is cut", testForbidden},
		{"ICMP errors", testICMPErrors},
		{"too large", testTooLarge},
		{"fragments", testFragments},
		{"SCTP", testSCTP},
		{"service", testService},
		{"service removed", testServiceRemoved},
		{"hairpin", testHairpin},
		{"hairpin of the node", testNodeHairpin},
		{"ICMP error from a service", testServiceICMPError},
		{"external proxy", testExternalProxy},
		{"tuple collision", testTupleCollision},
		{"tunnel not tracked", testTunnelNotTracked},
		{"the world in mode multitenant", testWorld},
		{"limit", testLimit},
		{"ovs-vswitchd restarts", testRestart},
	} {
		t.Run(test.name, func(t *testing.T) {
			tier.Parallel(t)
			c := <-clusters
			t.Cleanup(func() { clusters <- c }) // after the clean-up functions of the test
			test.run(t, c)
		})
	}
}

func testReplies(t *testing.T, c *cluster) {
	c.eachPlace(t, func(t *testing.T, client, server *datapath.Pod) {
		asking, dns, other := client.UDP(t, 0), server.UDP(t, 53), server.UDP(t, 54)
		c.isolate(client, server)
		c.apply(t)
		asking.MustNotReach(t, dns.Addr(), dns)
		// Denied packets have left no entry that admits the server's packets.
		dns.MustNotReach(t, asking.Addr(), asking)

		c.allow("udp", client.Addr, dns.Addr())
		c.apply(t)
		dns.MustNotReach(t, asking.Addr(), asking)
		asking.MustReach(t, dns.Addr(), dns)
		dns.MustReach(t, asking.Addr(), asking)
		other.MustNotReach(t, asking.Addr(), asking)
		asking.MustNotReach(t, other.Addr(), other)
	})
}
