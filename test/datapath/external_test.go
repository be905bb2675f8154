package datapath_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/ovsdn/ovsdn/test/datapath"
)

// tenants gives VNIDs to pods: to the first two of the first node and to the first of the second node the same.
func (c *cluster) tenants(external bool) {
	const tenant, other = 10, 11
	for _, p := range c.pipelines {
		p.external = external
		p.vnids = map[netip.Addr]uint32{
			c.pod(0, 0).Addr: tenant, c.pod(0, 1).Addr: tenant, c.pod(1, 0).Addr: tenant,
			c.pod(0, 2).Addr: other, c.pod(1, 1).Addr: other,
		}
		for i := range p.services {
			p.services[i].vnid = tenant
		}
	}
}

// In mode multitenant with the service proxy on the host, replies return on the path of the requests, and both retain their VNIDs.
func testExternalProxy(t *testing.T, c *cluster) {
	const port = 8080
	stranger := c.pod(0, 2)
	c.eachPlace(t, func(t *testing.T, client, server *datapath.Pod) {
		endpoint := netip.AddrPortFrom(server.Addr, port)
		c.serve(both(endpoint)...)
		c.tenants(true)
		c.apply(t)
		proxy(t, c.Nodes[0], endpoint)
		mustServe(t, &client.Host, server, port)

		direct, strange, serving := client.UDP(t, 0), stranger.UDP(t, 0), server.UDP(t, port)
		direct.MustReach(t, endpoint, serving)
		if from := serving.MustReach(t, direct.Addr(), direct); from != endpoint {
			t.Errorf("a client that asked the endpoint itself is answered by %s", from)
		}
		strange.MustNotReach(t, vip(53), serving)
		strange.MustNotReach(t, endpoint, serving)

		// Policies evaluate the packets that the host has translated.
		c.isolate(client, server)
		c.apply(t)
		asking := client.UDP(t, 0)
		asking.MustNotReach(t, vip(53), serving)
		serving.MustNotReach(t, asking.Addr(), asking)
		serving.Close()
		for _, proto := range []string{"tcp", "udp"} {
			c.allow(proto, client.Addr, endpoint)
		}
		c.apply(t)
		mustServe(t, &client.Host, server, port)
	})
	t.Run("mode subnet", func(t *testing.T) {
		c.reset(t)
		client, server := c.pod(0, 0), c.pod(1, 0)
		endpoint := netip.AddrPortFrom(server.Addr, port)
		c.serve(both(endpoint)...)
		for _, p := range c.pipelines {
			p.external = true
		}
		c.apply(t)
		proxy(t, c.Nodes[0], endpoint)
		mustServe(t, &client.Host, server, port)
	})
	t.Run("endpoint of another VNID", func(t *testing.T) {
		c.reset(t)
		serving := c.pod(1, 1).UDP(t, port)
		c.serve(both(serving.Addr())...)
		c.tenants(true)
		c.apply(t)
		proxy(t, c.Nodes[0], serving.Addr())
		asking := c.pod(0, 0).UDP(t, 0)
		asking.MustNotReach(t, vip(53), serving)
	})
}

// proxy makes the node's host send both services to an endpoint as kube-proxy does.
func proxy(t *testing.T, node *datapath.Node, to netip.AddrPort) {
	t.Helper()
	node.Sh(t, "nft add table ip proxy",
		"nft add chain ip proxy pre '{ type nat hook prerouting priority dstnat; }'",
		fmt.Sprintf("nft add rule ip proxy pre ip daddr %s tcp dport 80 dnat to %s", vip(80).Addr(), to),
		fmt.Sprintf("nft add rule ip proxy pre ip daddr %s udp dport 53 dnat to %s", vip(53).Addr(), to))
	t.Cleanup(func() { node.Sh(t, "nft delete table ip proxy") })
}

// In mode multitenant hosts outside have a VNID of their own: they may reply, and reach VNID 0 only.
func testWorld(t *testing.T, c *cluster) {
	for name, external := range map[string]bool{"proxy in OVS": false, "external proxy": true} {
		t.Run(name, func(t *testing.T) {
			c.reset(t)
			c.tenants(external)
			remote := c.pod(1, 1).Host
			for _, p := range c.pipelines {
				delete(p.vnids, remote.Addr)
			}
			c.apply(t)
			c.Outside.RouteTo(t, c.Nodes[0])
			world, asking, silent := c.Outside.UDP(t, 0), c.pod(0, 0).UDP(t, 0), c.pod(0, 0).UDP(t, 0)
			world.MustNotReach(t, silent.Addr(), silent)
			// Through the first node to pods of the second one.
			c.Outside.Sh(t, fmt.Sprintf("ip route add %s via %s", c.Nodes[1].Subnet, c.Nodes[0].VTEP))
			t.Cleanup(func() { c.Outside.Sh(t, "ip route del "+c.Nodes[1].Subnet.String()) })
			tenant, global := c.pod(1, 0).UDP(t, 0), remote.UDP(t, 0)
			world.MustNotReach(t, tenant.Addr(), tenant)
			world.MustReach(t, global.Addr(), global)
			node := c.Nodes[0].UDP(t, 0)
			node.MustReach(t, tenant.Addr(), tenant)

			asking.MustReach(t, world.Addr(), world)
			world.MustReach(t, asking.Addr(), asking)
			// The host's own tracker still has the connection, and on the kernel's datapath its packets carry that state.
			c.flush(t, c.pod(0, 0), udp, world.Addr())
			world.MustNotReach(t, asking.Addr(), asking)
		})
	}
}
