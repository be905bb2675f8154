package datapath_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// testBalancedSpread: of 10,000 connections each of 10 endpoints gets its share within 15 %, also after one was removed, and after a new one was added. Connections to
// endpoints that remain continue. In the short tier, of 200 connections each endpoint gets some.
func testBalancedSpread(t *testing.T, b *balanced) {
	if b.mode != config.ModeSubnet {
		return // the same groups
	}
	const count = 10
	connections := tier.Size(t, 200, 10_000, "each endpoint gets some; the complete tier compares the shares")
	client, server := b.pod(0, 0), b.pod(0, 1)
	b.widenPorts(t, client)
	at := func(i uint16) netip.AddrPort { return netip.AddrPortFrom(server.Addr, 8080+i) }
	for i := range uint16(count) {
		b.endpoints = append(b.endpoints, at(i))
	}
	b.install(t)
	established := b.establish(t, client, server)
	for _, change := range []struct {
		name      string
		endpoints []netip.AddrPort
	}{
		{"10 endpoints", b.endpoints},
		{"one removed", slices.Delete(slices.Clone(b.endpoints), 3, 4)},
		{"one added", append(slices.Delete(slices.Clone(b.endpoints), 3, 4), at(count))},
	} {
		b.endpoints = change.endpoints
		b.install(t)
		b.spreads(t, change.name, client, connections)
		for _, e := range b.endpoints {
			if s, ok := established[e]; ok {
				s.MustPass(t)
			}
		}
	}
}

// widenPorts lets a pod use each port once until the end of the test: a port that is used again could get the endpoint of its last connection.
func (b *balanced) widenPorts(t *testing.T, client *datapath.Pod) {
	t.Helper()
	const name = "net.ipv4.ip_local_port_range"
	before := strings.TrimSpace(client.Sh(t, "sysctl -n "+name))
	client.Sh(t, "sysctl -qw "+name+"='1024 65535'")
	t.Cleanup(func() { client.Sh(t, "sysctl -qw "+name+"='"+before+"'") })
}

// establish returns a connection to each endpoint of the service, all on one pod. Afterwards no endpoint listens.
func (b *balanced) establish(t *testing.T, client, server *datapath.Pod) map[netip.AddrPort]datapath.Stream {
	t.Helper()
	accepted := make(chan net.Conn)
	var accepting sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), establishTime)
	for _, e := range b.endpoints {
		l := server.ListenTCP(t, e.Port())
		accepting.Go(func() {
			for {
				conn, err := await.Accept(ctx, l)
				if err != nil {
					l.Close() // it only listens
					return
				}
				select {
				case accepted <- conn:
				case <-ctx.Done():
					conn.Close() // the test has failed
				}
			}
		})
	}
	defer accepting.Wait()
	defer cancel()
	all := map[netip.AddrPort]datapath.Stream{}
	for len(all) < len(b.endpoints) {
		var s datapath.Stream
		err := client.NS.Do(func(ns.NetNS) (err error) {
			s.Client, err = new(net.Dialer).DialContext(ctx, "tcp4", vip(80).String())
			return err
		})
		if err != nil {
			t.Fatalf("%d of %d endpoints have a connection: %v", len(all), len(b.endpoints), err)
		}
		t.Cleanup(func() { s.Client.Close() })
		select {
		case s.Server = <-accepted:
		case <-ctx.Done():
			t.Fatal("a connection was not accepted")
		}
		t.Cleanup(func() { s.Server.Close() })
		all[s.Server.LocalAddr().(*net.TCPAddr).AddrPort()] = s
	}
	return all
}

// establishTime is the limit of establish, many times what it takes.
const establishTime = time.Minute

// spreads opens connections, which the endpoints refuse, and compares how many each endpoint got.
func (b *balanced) spreads(t *testing.T, step string, client *datapath.Pod, connections int) {
	t.Helper()
	node := b.Nodes[0]
	translated := func() map[netip.AddrPort]int {
		t.Helper()
		node.Revalidate(t) // updates the counters
		counters := map[netip.AddrPort]int{}
		for _, e := range b.endpoints {
			counters[e] = packetsOf(t, node, fmt.Sprintf("table=67,tcp,reg9=%#x", e.Port()))
		}
		return counters
	}
	before := translated()
	if refused := connect(t, client, connections); refused != connections {
		t.Errorf("%s: got %d refused connections of %d, want all: no endpoint listens", step, refused, connections)
	}
	total, got := 0, translated()
	for e := range got {
		if got[e] -= before[e]; got[e] == 0 {
			t.Errorf("%s: endpoint %s: got no connection of %d", step, e, connections)
		}
		total += got[e]
	}
	t.Logf("%s: %d connections, %d translated", step, connections, total)
	t.Run(step, func(t *testing.T) {
		if testing.Short() {
			t.Skip("complete tier: ratios")
		}
		share := connections / len(got)
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
