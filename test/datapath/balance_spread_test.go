package datapath_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// testBalancedSpread: of 10,000 connections each of 10 endpoints gets its share within 15 %. In the short tier, of 200 each gets some.
func testBalancedSpread(t *testing.T, b *balanced) {
	if b.mode != config.ModeSubnet {
		return // the same groups
	}
	const count = 10
	connections := tier.Size(t, 200, 10_000, "each endpoint gets some; the complete tier compares the shares")
	for i := range uint16(count) {
		b.endpoints = append(b.endpoints, netip.AddrPortFrom(b.pod(0, 1).Addr, 8080+i))
	}
	b.install(t)
	client := b.pod(0, 0)
	// The endpoints do not listen, and refuse each connection.
	err := client.NS.Do(func(ns.NetNS) error {
		for range connections {
			conn, err := new(net.Dialer).DialContext(t.Context(), "tcp4", vip(80).String())
			if err == nil {
				return errors.Join(errors.New("an endpoint listens"), conn.Close())
			}
			if !errors.Is(err, syscall.ECONNREFUSED) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	b.Nodes[0].Revalidate(t) // updates the counters
	total, got := 0, map[netip.AddrPort]int{}
	for _, e := range b.endpoints {
		if got[e] = packetsOf(t, b.Nodes[0], fmt.Sprintf("table=67,tcp,reg9=%#x", e.Port())); got[e] == 0 {
			t.Errorf("endpoint %s: got no connection of %d", e, connections)
		}
		total += got[e]
	}
	t.Logf("%d connections, %d translated", connections, total)
	t.Run("shares", func(t *testing.T) {
		if testing.Short() {
			t.Skip("complete tier: ratios")
		}
		share := connections / count
		for e, packets := range got {
			if packets < share*85/100 || packets > share*115/100 {
				t.Errorf("endpoint %s: got %d connections, want %d within 15 %%", e, packets, share)
			}
		}
	})
}

// testHairpinAddresses: packets of pods to the addresses of hairpins do not reach the host, which would return them to the switch until their TTL ends.
func testHairpinAddresses(t *testing.T, b *balanced) {
	b.endpoints = []netip.AddrPort{netip.AddrPortFrom(b.pod(0, 1).Addr, 8080)}
	b.install(t)
	returned := func() int {
		t.Helper()
		b.Nodes[0].Revalidate(t) // updates the counters
		return packetsOf(t, b.Nodes[0], "table=0,ip,in_port=2,nw_dst="+nodeHairpin)
	}
	client, control := b.pod(0, 0).UDP(t, 0), b.pod(0, 1).UDP(t, 0)
	before := returned()
	for _, addr := range []netip.Addr{netip.MustParseAddr(hairpin), netip.MustParseAddr(nodeHairpin)} {
		client.Send(t, netip.AddrPortFrom(addr, 53), client.Message())
	}
	client.MustReach(t, control.Addr(), control)
	if got := returned() - before; got != 0 {
		t.Errorf("packets that the host returned: got %d, want 0", got)
	}
}

// packetsOf returns the number of packets that matched a flow of br0.
func packetsOf(t *testing.T, node *datapath.Node, flow string) (packets int) {
	t.Helper()
	dump := node.Switch.OFCtl(t, "dump-flows", ovstest.Bridge, flow)
	_, counter, found := strings.Cut(dump, "n_packets=")
	if _, err := fmt.Sscanf(counter, "%d", &packets); !found || err != nil {
		t.Fatalf("no counter of %s in %s: %v", flow, dump, err)
	}
	return packets
}
