package datapath_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// vip is a port of the service's address.
func vip(port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr("172.30.0.10"), port)
}

// both are the services that the tests have.
func both(endpoint netip.AddrPort) []service {
	return []service{{proto: "tcp", vip: vip(80), endpoint: endpoint}, {proto: "udp", vip: vip(53), endpoint: endpoint}}
}

// mustServe checks that the service works, that its client sees only the service, and the source that its endpoint sees.
func mustServe(t *testing.T, client *datapath.Host, server *datapath.Pod, port uint16) {
	t.Helper()
	mustServeAs(t, client, client.Addr, server, port)
}

// mustServeAs is mustServe for a client whose address is translated.
func mustServeAs(t *testing.T, client *datapath.Host, source netip.Addr, server *datapath.Pod, port uint16) {
	t.Helper()
	asking, serving, l := client.UDP(t, 0), server.UDP(t, port), server.ListenTCP(t, port)
	defer serving.Close()
	defer l.Close()
	want := netip.AddrPortFrom(source, asking.Addr().Port())
	if from := asking.MustReach(t, vip(53), serving); from != want {
		t.Errorf("the endpoint is asked by %s, want %s", from, want)
	}
	if from := serving.MustReach(t, want, asking); from != vip(53) {
		t.Errorf("the client is answered by %s", from)
	}
	s := client.Dial(t, vip(80), l)
	s.MustPass(t)
}

// Only the client sees the service's address: anti-spoofing, policies and endpoints see pods' addresses.
func testService(t *testing.T, c *cluster) {
	c.eachPlace(t, func(t *testing.T, client, server *datapath.Pod) {
		endpoint := netip.AddrPortFrom(server.Addr, 8080)
		c.serve(both(endpoint)...)
		c.apply(t)
		mustServe(t, &client.Host, server, 8080)
		mustServe(t, &c.Nodes[0].Host, server, 8080)

		asking, serving := client.UDP(t, 0), server.UDP(t, 8080)
		c.isolate(client, server)
		c.apply(t)
		asking.MustNotReach(t, vip(53), serving)
		// The endpoint was chosen before the verdict. That lets no reply in.
		serving.MustNotReach(t, asking.Addr(), asking)
		c.allow("udp", client.Addr, endpoint)
		c.allow("tcp", client.Addr, endpoint)
		c.apply(t)
		asking.MustReach(t, vip(53), serving)
		serving.MustReach(t, asking.Addr(), asking)
		asking.MustReachWith(t, vip(53), serving, asking.Large)
		if from := serving.MustReachWith(t, asking.Addr(), asking, serving.Large); from != vip(53) {
			t.Errorf("the client is answered in fragments by %s", from)
		}
		if c.Type == ovstest.DatapathNetdev {
			// The later fragments are evaluated before the translation of the first one, which alone has ports.
			first := client.UDP(t, 0)
			m := first.Large()
			first.Send(t, vip(53), m)
			if _, ok := serving.Receive(t, m, time.Second); ok {
				t.Error("a connection's first packet arrives in fragments: want it lost, as in decision 0001")
			}
		}
		serving.Close()
		mustServe(t, &client.Host, server, 8080)
	})
}

// UDP packets reach the endpoint of the first one until the connection is flushed, in the zone of each opener.
func testServiceRemoved(t *testing.T, c *cluster) {
	c.reset(t)
	client, old, fresh := c.pod(0, 0), c.pod(0, 1).UDP(t, 8080), c.pod(1, 0).UDP(t, 8080)
	asking := client.UDP(t, 0)
	c.serve(both(old.Addr())...)
	c.apply(t)
	asking.MustReach(t, vip(53), old)
	c.serve(both(fresh.Addr())...)
	c.apply(t)
	asking.MustReach(t, vip(53), old)
	c.Nodes[0].Switch.OFCtl(t, "ct-flush", ovstest.Bridge, fmt.Sprintf("zone=%d", kindService.zone(client.Addr)),
		fmt.Sprintf("ct_nw_dst=%s,ct_nw_proto=%d,ct_tp_dst=53", vip(53).Addr(), udp), fmt.Sprintf("ct_nw_src=%s", old.Addr().Addr()))
	asking.MustReach(t, vip(53), fresh)
}

// A pod that reaches itself through a service passes all policies, and sees an address that is not its own.
func testHairpin(t *testing.T, c *cluster) {
	c.reset(t)
	pod := c.pod(0, 0)
	c.isolate(pod)
	c.serve(both(netip.AddrPortFrom(pod.Addr, 8080))...)
	c.apply(t)
	asking, serving := pod.UDP(t, 0), pod.UDP(t, 8080)
	from := asking.MustReach(t, vip(53), serving)
	if from.Addr() != netip.MustParseAddr(hairpin) {
		t.Errorf("the endpoint is asked by %s", from)
	}
	if from := serving.MustReach(t, from, asking); from != vip(53) {
		t.Errorf("the client is answered by %s", from)
	}
	s := pod.Dial(t, vip(80), pod.ListenTCP(t, 8080))
	s.MustPass(t)
}

// The node reaches itself through a service: an API server on it is an endpoint of the service kubernetes.
func testNodeHairpin(t *testing.T, c *cluster) {
	c.reset(t)
	node := c.Nodes[0]
	endpoint := datapath.Host{NS: node.NS, Addr: node.VTEP}
	node.Sh(t, "ip route add "+nodeHairpin+" dev tun0", fmt.Sprintf("ip neigh add %s lladdr %s dev tun0", nodeHairpin, datapath.MAC(netip.MustParseAddr(nodeHairpin))))
	c.serve(both(netip.AddrPortFrom(endpoint.Addr, 8080))...)
	c.apply(t)
	asking, serving := node.UDP(t, 0), endpoint.UDP(t, 8080)
	from := asking.MustReach(t, vip(53), serving)
	if from.Addr() != netip.MustParseAddr(nodeHairpin) {
		t.Errorf("the endpoint is asked by %s", from)
	}
	if from := serving.MustReach(t, from, asking); from != vip(53) {
		t.Errorf("the node is answered by %s", from)
	}
	l := endpoint.ListenTCP(t, 8080)
	own, pods := node.Dial(t, vip(80), l), c.pod(0, 0).Dial(t, vip(80), l)
	own.MustPass(t)
	pods.MustPass(t)

	// Another host's address is no different, but that the host routes there.
	node.Sh(t, "nft add table ip leaving", "nft add chain ip leaving post '{ type nat hook postrouting priority srcnat; }'",
		fmt.Sprintf("nft add rule ip leaving post ip saddr %s oifname != tun0 masquerade", nodeHairpin))
	t.Cleanup(func() { node.Sh(t, "nft delete table ip leaving") })
	c.serve(both(netip.AddrPortFrom(c.Outside.Addr, 8080))...)
	c.apply(t)
	there := node.Dial(t, vip(80), c.Outside.ListenTCP(t, 8080))
	there.MustPass(t)
}

// An ICMP error about a packet to a service comes from the service.
func testServiceICMPError(t *testing.T, c *cluster) {
	c.eachPlace(t, func(t *testing.T, client, server *datapath.Pod) {
		closed := netip.AddrPortFrom(server.Addr, 99)
		c.serve(both(closed)...)
		c.isolate(client, server)
		c.allow("udp", client.Addr, closed)
		c.apply(t)
		asking, errors := client.UDP(t, 0), client.Listen(t, icmp, 0)
		if from := asking.MustReach(t, vip(53), errors); from.Addr() != vip(53).Addr() {
			t.Errorf("the error comes from %s", from)
		}
	})
}
