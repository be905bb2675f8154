package datapath_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

const (
	tcp  = 6
	udp  = 17
	sctp = "ip4:132"
	icmp = "ip4:1"
)

// soon is enough for TCP to send again what was lost.
const soon = 30 * time.Second

// If one policy allows a connection and the other denies it, the server's packets must not count as replies.
func testHalfAllow(t *testing.T, c *cluster) {
	c.eachPlace(t, func(t *testing.T, client, server *datapath.Pod) {
		asking, dns := client.UDP(t, 0), server.UDP(t, 53)
		c.isolate(client, server)
		for name, allow := range map[string]func(string, netip.Addr, netip.AddrPort){"out": c.allowOut, "in": c.allowIn} {
			t.Run(name, func(t *testing.T) {
				c.forbid()
				allow("udp", client.Addr, dns.Addr())
				c.apply(t)
				asking.MustNotReach(t, dns.Addr(), dns)
				dns.MustNotReach(t, asking.Addr(), asking)
			})
		}
	})
}

// The opener's packets are evaluated by the current policies; replies pass until the connection is flushed.
func testForbidden(t *testing.T, c *cluster) {
	c.eachPlace(t, func(t *testing.T, client, server *datapath.Pod) {
		to := netip.AddrPortFrom(server.Addr, 80)
		c.isolate(client, server)
		c.allow("tcp", client.Addr, to)
		c.apply(t)
		s := client.Dial(t, to, server.ListenTCP(t, 80))
		s.MustPass(t)

		c.forbid()
		c.apply(t)
		datapath.MustNotPass(t, s.Client, s.Server)
		datapath.MustPass(t, s.Server, s.Client)
		c.flush(t, client, tcp, to)
		datapath.MustNotPass(t, s.Server, s.Client)

		// Allowed again, TCP goes on with what it could not get through.
		c.allow("tcp", client.Addr, to)
		c.apply(t)
		datapath.MustArrive(t, s.Server, soon)
		datapath.MustArrive(t, s.Client, soon)
	})
}

// An ICMP error about a pod's packet is admitted, one without a connection is not.
func testICMPErrors(t *testing.T, c *cluster) {
	c.eachPlace(t, func(t *testing.T, client, server *datapath.Pod) {
		closed := netip.AddrPortFrom(server.Addr, 99)
		asking, errors, forger := client.UDP(t, 0), client.Listen(t, icmp, 0), server.Listen(t, icmp, 0)
		c.isolate(client, server)
		c.allow("udp", client.Addr, closed)
		c.apply(t)
		unasked := netip.AddrPortFrom(client.Addr, 5000)
		forger.MustNotReachWith(t, errors.Addr(), errors, func() []byte {
			return icmpError(portUnreachable, unasked, closed, forger.Message())
		})
		// An error contains what it is about.
		asking.MustReach(t, closed, errors)
	})
}

// A router opens no connections. Its "too large" is admitted, and nothing else from it.
func testTooLarge(t *testing.T, c *cluster) {
	c.reset(t)
	client, server := c.pod(1, 0), c.pod(0, 1)
	c.isolate(server)
	c.apply(t)
	c.Outside.RouteTo(t, c.Nodes[0])
	router, errors := c.Outside.Listen(t, icmp, 0), server.Listen(t, icmp, 0)
	about := func(code icmpCode) func() []byte {
		return func() []byte {
			return icmpError(code, netip.AddrPortFrom(server.Addr, 80), netip.AddrPortFrom(client.Addr, 5000), router.Message())
		}
	}
	router.MustReachWith(t, errors.Addr(), errors, about(fragmentationNeeded))
	router.MustNotReachWith(t, errors.Addr(), errors, about(portUnreachable))
}

func testFragments(t *testing.T, c *cluster) {
	c.eachPlace(t, func(t *testing.T, client, server *datapath.Pod) {
		asking, dns, other := client.UDP(t, 0), server.UDP(t, 53), server.UDP(t, 54)
		c.isolate(client, server)
		c.allow("udp", client.Addr, dns.Addr())
		c.apply(t)
		asking.MustReachWith(t, dns.Addr(), dns, asking.Large)
		dns.MustReachWith(t, asking.Addr(), asking, dns.Large)
		asking.MustNotReachWith(t, other.Addr(), other, asking.Large)
	})
}

// The kernel distinguishes associations by their ports. Userspace treats all between two addresses as one, so that it evaluates them
// without state.
func testSCTP(t *testing.T, c *cluster) {
	c.reset(t)
	client, server := c.pod(0, 0), c.pod(0, 1)
	asking, serving := client.Listen(t, sctp, 0), server.Listen(t, sctp, 0)
	c.isolate(client, server)
	c.allow("sctp", client.Addr, netip.AddrPortFrom(server.Addr, 2000))
	c.apply(t)
	asking.MustReachWith(t, serving.Addr(), serving, func() []byte { return sctpInit(1000, 2000, asking.Message()) })
	serving.MustReachWith(t, asking.Addr(), asking, func() []byte { return sctpInit(2000, 1000, serving.Message()) })
	stranger := func() []byte { return sctpInit(2001, 1001, serving.Message()) }
	if c.Type == ovstest.DatapathSystem {
		serving.MustNotReachWith(t, asking.Addr(), asking, stranger)
	} else {
		serving.MustReachWith(t, asking.Addr(), asking, stranger)
	}
}

// When ovs-vswitchd restarts, userspace has lost all connections, and the kernel none.
func testRestart(t *testing.T, c *cluster) {
	c.reset(t)
	client, server, free := c.pod(0, 0), c.pod(0, 1), c.pod(0, 2)
	to := netip.AddrPortFrom(server.Addr, 80)
	c.isolate(client, server)
	c.allow("tcp", client.Addr, to)
	c.allow("tcp", free.Addr, to)
	c.apply(t)
	l := server.ListenTCP(t, 80)
	tracked, untracked := client.Dial(t, to, l), free.Dial(t, to, l)
	restart := func() {
		c.Nodes[0].Switch.StopVSwitchd(t)
		c.Nodes[0].Switch.StartVSwitchd(t)
		c.apply(t)
	}
	restart()
	tracked.MustPass(t)
	untracked.MustPass(t)

	restart()
	if c.Type == ovstest.DatapathSystem {
		datapath.MustPass(t, tracked.Server, tracked.Client)
		return
	}
	// Packets of a server are dropped until the client has sent again.
	datapath.MustNotPass(t, tracked.Server, tracked.Client)
	datapath.MustPass(t, tracked.Client, tracked.Server)
	datapath.MustArrive(t, tracked.Client, soon)
}
