package datapath_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/tunnelneighbours"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// firstPacketLimit is the wait for a packet that is sent once.
const firstPacketLimit = 30 * time.Second

// TestFirstPacketToNode: the first packet to another node arrives, whatever happened to the tunnel's neighbour. The kernel's datapath queues it; with
// the userspace datapath the agent retains the neighbours.
func TestFirstPacketToNode(t *testing.T) {
	tier.Parallel(t)
	p := &product{Network: datapath.New(t, 2), mode: config.ModeNetworkPolicy}
	for i, pods := range []int{1, 2} {
		for range pods {
			p.Nodes[i].AddPod(t)
		}
		p.Nodes[i].Sh(t, "sysctl -qw net.ipv4.conf.default.arp_notify=1 net.ipv4.conf.all.arp_notify=1") // a changed MAC is announced
		if p.Type == ovstest.DatapathNetdev {
			p.Nodes[i].Sh(t, "sysctl -qw net.ipv4.conf.eth0.arp_ignore=8") // the kernel would answer for br-ex with the MAC of eth0, which does not change
		}
	}
	for _, node := range p.Nodes {
		p.apply(t, node)
	}
	rounds := tier.Size(t, 5, 100, "the complete tier counts lost packets")
	if p.Type == ovstest.DatapathSystem {
		p.firstPackets(t, "neighbour flushed", rounds, func(int) { p.flushNeighbours(t) })
		return
	}
	if p.firstPacket(t, time.Second/2) {
		t.Error("the first packet arrived without the agent: nothing was tested")
	}
	for i, node := range p.Nodes {
		retainNeighbours(t, node, p.Nodes[1-i])
	}
	p.firstPackets(t, "cache flushed", rounds, func(int) {
		p.Nodes[0].AppCtl(t, "tnl/neigh/flush")
		p.awaitNeighbours(t)
	})
	p.firstPackets(t, "host's neighbours flushed", rounds, func(int) {
		p.Nodes[0].Sh(t, "ip neigh flush dev br-ex")
		p.Nodes[0].AppCtl(t, "tnl/neigh/flush")
		p.awaitNeighbours(t)
	})
	p.firstPackets(t, "another MAC", rounds, func(i int) {
		mac := fmt.Sprintf("0a:00:00:00:01:%02x", i)
		p.Nodes[1].Switch.VSCtl(t, "set", "bridge", "br-ex", fmt.Sprintf("other-config:hwaddr=%q", mac))
		await.OK(t, firstPacketLimit, func(context.Context) error {
			if got := p.Nodes[0].AppCtl(t, "tnl/neigh/show"); !strings.Contains(got, mac) {
				return fmt.Errorf("got neighbours\n%s\nwant the MAC %s", got, mac)
			}
			return nil
		})
		p.Nodes[1].Revalidate(t)
	})
	silences := tier.Size(t, 1, 10, "each takes as long as neighbours expire")
	p.firstPackets(t, "silence", silences, func(int) { p.silence(t) })
}

// flushNeighbours deletes the nodes as neighbours of each other from the kernel's tables: the first packet has to wait for their resolution.
func (p *product) flushNeighbours(t *testing.T) {
	t.Helper()
	await.OK(t, firstPacketLimit, func(context.Context) error { // a node that verifies its own entry creates one on the other
		for i, node := range p.Nodes {
			node.Sh(t, "ip neigh flush dev eth0")
			if got := node.Sh(t, fmt.Sprintf("ip neigh show %s dev eth0", p.Nodes[1-i].VTEP)); strings.Contains(got, "lladdr") {
				return fmt.Errorf("got neighbour %s after a flush", got)
			}
		}
		return nil
	})
}

// retainNeighbours runs the agent's part for the node, with its peer, until the test ends.
func retainNeighbours(t *testing.T, node, peer *datapath.Node) {
	t.Helper()
	bridge := native.New(ovstest.Bridge, node.Switch.RunDir)
	neighbours := tunnelneighbours.New(bridge, 20*time.Millisecond)
	neighbours.SetRemoteNode("peer", &inputs.RemoteNode{VTEP: peer.VTEP, IsNode: true})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := node.NS.Set(); err != nil {
			done <- err
			return
		}
		neighbours.Run(ctx)
		done <- nil
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		bridge.Close()
	})
}

// awaitNeighbours waits until each node has the other as a tunnel neighbour, and uses it.
func (p *product) awaitNeighbours(t *testing.T) {
	t.Helper()
	for i, node := range p.Nodes {
		peer := p.Nodes[1-i].VTEP.String()
		await.OK(t, firstPacketLimit, func(context.Context) error {
			if got := node.AppCtl(t, "tnl/neigh/show"); !strings.Contains(got, peer+" ") {
				return fmt.Errorf("got neighbours\n%s\nwant %s", got, peer)
			}
			return nil
		})
	}
}

// silence shortens the expiry of neighbours, and waits until one has expired that the agent does not know. No packet uses the others.
func (p *product) silence(t *testing.T) {
	t.Helper()
	node := p.Nodes[0]
	before := strings.TrimSpace(node.AppCtl(t, "tnl/neigh/aging"))
	node.AppCtl(t, "tnl/neigh/aging", "3")
	t.Cleanup(func() { node.AppCtl(t, "tnl/neigh/aging", before) })
	p.awaitNeighbours(t)
	node.AppCtl(t, "tnl/neigh/flush") // entries remain as long as when they were set
	node.AppCtl(t, "tnl/neigh/set", "br-ex", "192.0.2.77", "0a:00:00:00:00:77")
	await.OK(t, await.SyncTime, func(context.Context) error {
		if got := node.AppCtl(t, "tnl/neigh/show"); strings.Contains(got, "192.0.2.77 ") && !strings.Contains(got, "STALE") {
			return fmt.Errorf("the unused neighbour has not expired:\n%s", got)
		}
		return nil
	})
}

// attemptsOfFirst is how often the short tier prepares and sends a first packet until one arrives: beside other tests the machine may lose some.
const attemptsOfFirst = 3

// firstPackets calls the function before each of the packets, none of which may be lost. In the short tier, which does not count losses, the machine may
// lose some, but not all in a row. There are no control packets between the nodes: they would resolve the neighbour.
func (p *product) firstPackets(t *testing.T, what string, rounds int, before func(round int)) {
	t.Helper()
	lost, row := 0, 0
	for i := 0; i < rounds || (testing.Short() && row > 0 && row < attemptsOfFirst); i++ {
		before(i)
		p.Nodes[0].Revalidate(t)
		if row++; p.firstPacket(t, firstPacketLimit) {
			row = 0
			continue
		}
		lost++
		if row == attemptsOfFirst {
			t.Errorf("%s: %d first packets in a row lost", what, row)
		}
	}
	t.Logf("%s: %d of %d first packets lost", what, lost, rounds)
	t.Run(what+", loss", func(t *testing.T) {
		if testing.Short() {
			t.Skip("complete tier: asserts that nothing is lost")
		}
		if lost > 0 {
			t.Errorf("%d of %d first packets lost, want 0", lost, rounds)
		}
	})
}

// firstPacket reports whether a packet between new sockets of pods on two nodes arrives, which is sent once.
func (p *product) firstPacket(t *testing.T, wait time.Duration) bool {
	t.Helper()
	client, server := p.Nodes[0].Pods[0].UDP(t, 0), p.free().UDP(t, 0)
	defer client.Close()
	defer server.Close()
	message := client.Message()
	client.Send(t, server.Addr(), message)
	_, arrived := server.Receive(t, message, wait)
	return arrived
}
