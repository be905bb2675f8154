package datapath_test

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// testStolenNode sends packets with VNI 0 and any inner source from the first node, as an attacker with that node's root rights does. The admitted packets
// resolve the tunnel's neighbours, so that each spoofed one is sent once, and counted once.
func (p *product) testStolenNode(t *testing.T) {
	receiver := p.free().UDP(t, podPort)
	defer receiver.Close()
	stolen, target, third := p.Nodes[0], p.Nodes[1], p.Nodes[2]
	for name, source := range map[string]netip.Addr{
		"a pod of its own":                stolen.Pods[0].Addr,
		"its gateway":                     stolen.Addr,
		"a host outside":                  p.Outside.Addr,
		"an unknown host":                 netip.MustParseAddr("198.51.100.7"),
		"a source outside, first address": netip.MustParseAddr("10.132.0.0"), // the first behind the cluster network
	} {
		if !p.tunnelled(t, stolen, source, receiver) {
			t.Errorf("no packet from %s (%s) arrived", name, source)
		}
	}
	spoofed := map[string]netip.Addr{
		"a pod of a third node":              third.Addr.Next(),
		"a third node's gateway":             third.Addr,
		"a pod of the receiving node":        p.isolated().Addr,
		"the receiving node's gateway":       target.Addr,
		"a pod of a subnet that no node has": netip.MustParseAddr("10.128.99.7"),
	}
	before, sent := spoofedPackets(t, target, stolen), 0
	for name, source := range spoofed {
		message := p.tunnel(t, stolen, source, receiver)
		sent++
		await.OK(t, soon, func(context.Context) error { // the target's switch may not have run yet
			target.Revalidate(t)
			if got := spoofedPackets(t, target, stolen) - before; got != sent {
				return fmt.Errorf("after a packet from %s (%s) the flow of spoofed sources counted %d packets, want %d", name, source, got, sent)
			}
			return nil
		})
		if _, arrived := receiver.Receive(t, message, 100*time.Millisecond); arrived {
			t.Errorf("a packet from %s (%s) arrived, want none", name, source)
		}
	}
	target.Revalidate(t)
	if got := spoofedPackets(t, target, stolen) - before; got != len(spoofed) {
		t.Errorf("the flow of spoofed sources counted %d packets, want %d", got, len(spoofed))
	}
}

// tunnelled sends UDP from a node's switch to a pod of another node until a packet arrives.
func (p *product) tunnelled(t *testing.T, from *datapath.Node, source netip.Addr, receiver *datapath.Socket) bool {
	t.Helper()
	for end := time.Now().Add(soon); time.Now().Before(end); {
		if _, ok := receiver.Receive(t, p.tunnel(t, from, source, receiver), 200*time.Millisecond); ok {
			return true
		}
	}
	return false
}

// tunnel sends UDP once from a node's switch to a pod of another node, and returns the message.
func (p *product) tunnel(t *testing.T, from *datapath.Node, source netip.Addr, receiver *datapath.Socket) (message []byte) {
	t.Helper()
	to := receiver.Addr()
	var vtep netip.Addr
	for _, node := range p.Nodes {
		if node.Subnet.Contains(to.Addr()) {
			vtep = node.VTEP
		}
	}
	message = receiver.Message()
	datagram := wire.UDP(netip.AddrPortFrom(source, 40000), to, message)
	packet := wire.IPv4{Src: source, Dst: to.Addr(), Protocol: wire.ProtocolUDP}.Packet(datagram)
	inject(t, from, vtep, wire.Ethernet(config.MAC(to.Addr()), config.NodeMAC(from.Addr), wire.TypeIPv4, packet))
	return message
}

// inject sends a frame with VNI 0 from a node's switch into the tunnel to a VTEP.
func inject(t *testing.T, from *datapath.Node, vtep netip.Addr, frame []byte) {
	t.Helper()
	from.Switch.OFCtl(t, "packet-out", ovstest.Bridge,
		fmt.Sprintf("in_port=controller packet=%x actions=load:0->NXM_NX_TUN_ID[],set_field:%s->tun_dst,output:%d", frame, vtep, datapath.PortVXLAN))
}

// spoofedPackets returns how many packets a node has dropped whose source is not that of the peer.
func spoofedPackets(t *testing.T, at, peer *datapath.Node) int {
	t.Helper()
	dump := at.Switch.OFCtl(t, "dump-flows", ovstest.Bridge, "table=10")
	m := regexp.MustCompile(`n_packets=(\d+),[^\n]* priority=50,tun_src=` + regexp.QuoteMeta(peer.VTEP.String()) + ` `).FindStringSubmatch(dump)
	if m == nil {
		t.Fatalf("no flow counts spoofed sources of %s:\n%s", peer.VTEP, dump)
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}
