package datapath_test

import (
	"errors"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// testBalancedOneLess: when a service loses an endpoint, as in a rolling restart, and packets arrive before the switch has revalidated its megaflows, no megaflow
// continues to send connections to that endpoint.
func testBalancedOneLess(t *testing.T, b *balanced) {
	// Other modes have the same groups, and the kernel's datapath finds megaflows by their IDs.
	if b.mode != config.ModeSubnet || b.Type != ovstest.DatapathNetdev {
		return
	}
	client, node := b.pod(0, 0), b.Nodes[0]
	remaining, removed, added := b.pod(0, 1), b.pod(1, 0), b.pod(1, 1)
	at := func(p *datapath.Pod) netip.AddrPort { return netip.AddrPortFrom(p.Addr, 8080) }
	remaining.ListenTCP(t, 8080)
	added.ListenTCP(t, 8080)
	b.endpoints = []netip.AddrPort{at(remaining), at(removed), at(added)}
	b.install(t)
	connect(t, client, 32) // of 256 slots

	node.AppCtl(t, "revalidator/pause")
	resume := sync.OnceFunc(func() { node.AppCtl(t, "revalidator/resume") })
	t.Cleanup(resume)
	b.endpoints = []netip.AddrPort{at(remaining), at(added)}
	write(t, node, b.compile(t, node))
	connect(t, client, 100)
	masks := map[string]string{} // by recirculation
	for _, m := range regexp.MustCompile(`recirc_id\((\w+)\),dp_hash\(\w+/(0x\w+)\)`).FindAllStringSubmatch(node.AppCtl(t, "dpctl/dump-flows"), -1) {
		if mask, exists := masks[m[1]]; exists && mask != m[2] {
			t.Fatalf("masks of dp_hash after recirculation %s: got %s and %s, want one", m[1], mask, m[2])
		}
		masks[m[1]] = m[2]
	}
	if len(masks) == 0 {
		t.Fatal("no megaflow matches dp_hash")
	}
	resume()
	node.Revalidate(t)
	const connections = 100
	if refused := connect(t, client, connections); refused > 0 {
		t.Errorf("connections to the removed endpoint: got %d of %d, want 0", refused, connections)
	}
}

// connect opens connections to the service, one after the other, and returns how many were refused.
func connect(t *testing.T, from *datapath.Pod, connections int) (refused int) {
	t.Helper()
	err := from.NS.Do(func(ns.NetNS) error {
		for range connections {
			conn, err := new(net.Dialer).DialContext(t.Context(), "tcp4", vip(80).String())
			switch {
			case errors.Is(err, syscall.ECONNREFUSED):
				refused++
			case err != nil:
				return err
			default:
				if err := errors.Join(conn.(*net.TCPConn).SetLinger(0), conn.Close()); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return refused
}

// wantNoRecirculationDropped asserts at the end of a test that the userspace datapath, which recirculates a packet six times at most (MAX_RECIRC_DEPTH in dpif-netdev.c),
// has dropped none that needs more. Senders repeat such a packet, and only the first of a connection selects an endpoint.
func (c *cluster) wantNoRecirculationDropped(t *testing.T) {
	t.Helper()
	if c.Type != ovstest.DatapathNetdev {
		return
	}
	for i, node := range c.Nodes {
		dropped := func() string { return node.AppCtl(t, "coverage/read-counter", "datapath_drop_recirc_error") }
		before := dropped()
		t.Cleanup(func() {
			if after := dropped(); after != before {
				t.Errorf("packets that node %d dropped since they exceed the limit of recirculations: got %s, before the test %s", i, strings.TrimSpace(after), strings.TrimSpace(before))
			}
		})
	}
}
