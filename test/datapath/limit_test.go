package datapath_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/test/ovstest"
)

// A pod that opens an unlimited number of connections does not limit other pods.
func testLimit(t *testing.T, c *cluster) {
	const limit = 20
	node, greedy, modest := c.Nodes[0], c.pod(0, 0), c.pod(0, 1)
	dns := c.pod(0, 2).UDP(t, 53)
	for name, to := range map[string]netip.AddrPort{"a pod": dns.Addr(), "a service": vip(53)} {
		t.Run(name, func(t *testing.T) {
			c.reset(t)
			c.isolate(node.Pods...)
			c.allow("udp", greedy.Addr, dns.Addr())
			c.allow("udp", modest.Addr, dns.Addr())
			c.serve(both(dns.Addr())...)
			c.apply(t)
			// Not a default limit: in userspace all zones without a limit of their own would share it.
			zones := []uint16{kindLocal.zone(greedy.Addr), kindService.zone(greedy.Addr), kindLocal.zone(modest.Addr), kindService.zone(modest.Addr)}
			for _, zone := range zones {
				node.AppCtl(t, "dpctl/ct-set-limits", fmt.Sprintf("zone=%d,limit=%d", zone, limit))
				t.Cleanup(func() { node.AppCtl(t, "dpctl/ct-del-limits", fmt.Sprintf("zone=%d", zone)) })
			}
			first, other := greedy.UDP(t, 0), modest.UDP(t, 0)
			first.MustReach(t, to, dns)
			more := func() {
				// Whether a packet without room passes differs, see below.
				s := greedy.UDP(t, 0)
				m := s.Message()
				s.Send(t, to, m)
				dns.Receive(t, m, 50*time.Millisecond)
			}
			for sent := 0; sent < 10*limit && len(node.Connections(t, zones[0])) < limit; sent++ { // the machine may lose some
				more()
			}
			for range 5 {
				more()
			}
			if got := len(node.Connections(t, zones[0])); got != limit {
				t.Errorf("the greedy pod has %d connections, want %d", got, limit)
			}
			late := greedy.UDP(t, 0)
			if c.Type == ovstest.DatapathNetdev && to == dns.Addr() {
				late.MustReach(t, to, dns)
			} else {
				late.MustNotReach(t, to, dns)
			}
			dns.MustNotReach(t, late.Addr(), late)

			first.MustReach(t, to, dns)
			dns.MustReach(t, first.Addr(), first)
			other.MustReach(t, to, dns)
			dns.MustReach(t, other.Addr(), other)
		})
	}
}
