package datapath_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// vxlan returns a UDP payload: VXLAN of VNI 0 with a UDP packet for the pod.
func vxlan(from netip.Addr, to *datapath.Pod, port uint16, message []byte) []byte {
	udp := binary.BigEndian.AppendUint16(nil, 1024)
	udp = binary.BigEndian.AppendUint16(udp, port)
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(message)))
	udp = append(udp, 0, 0) // no checksum
	ip := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0}
	binary.BigEndian.PutUint16(ip[2:], uint16(20+len(udp)+len(message)))
	ip = slices.Concat(ip, from.AsSlice(), to.Addr.AsSlice())
	binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	return slices.Concat([]byte{0x08, 0, 0, 0, 0, 0, 0, 0}, to.MAC, datapath.MAC(from), []byte{0x08, 0}, ip, udp, message)
}

// droppedTunnels returns how many packets table 10 has dropped since no flow knows their VTEP.
func droppedTunnels(t *testing.T, node *datapath.Node) int {
	t.Helper()
	node.Revalidate(t)
	return dropped(t, node, "table=10,")
}

// TestVXLANOverIPv6: Open vSwitch also accepts VXLAN over IPv6, which the flows drop, since no HostSubnet has an IPv6 address.
func TestVXLANOverIPv6(t *testing.T) {
	tier.Parallel(t)
	p := &product{Network: datapath.New(t, 2), mode: config.ModeNetworkPolicy}
	for i, pods := range []int{1, 2} {
		for range pods {
			p.Nodes[i].AddPod(t)
		}
	}
	uplink := "eth0"
	if p.Type == ovstest.DatapathNetdev {
		uplink = "br-ex"
	}
	for i, node := range p.Nodes {
		p.apply(t, node)
		node.Sh(t, fmt.Sprintf("ip -6 addr add fd00::%d/64 dev %s nodad", i+1, uplink))
	}
	p.Outside.Sh(t, "ip -6 addr add fd00::100/64 dev eth0 nodad")
	target := p.Nodes[1]
	receiver, client := p.free().UDP(t, podPort), p.Nodes[0].Pods[0]
	client.UDP(t, 0).MustReach(t, receiver.Addr(), receiver)

	send := func(from datapath.Host, network string, to netip.Addr, wait time.Duration) bool {
		socket := from.Listen(t, network, 0)
		defer socket.Close()
		message := socket.Message()
		socket.Send(t, netip.AddrPortFrom(to, config.DefaultVXLANPort), vxlan(client.Addr, p.free(), podPort, message))
		_, ok := receiver.Receive(t, message, wait)
		return ok
	}
	node := datapath.Host{NS: p.Nodes[0].NS, Addr: p.Nodes[0].VTEP}
	arrived := false
	for range 30 {
		arrived = arrived || send(node, "udp4", target.VTEP, time.Second)
	}
	if !arrived {
		t.Error("the packet did not arrive in VXLAN of the other node: nothing was tried")
	}
	rounds := tier.Size(t, 2, 5, "each packet is waited for")
	for name, from := range map[string]datapath.Host{
		"the other node": {NS: p.Nodes[0].NS, Addr: netip.MustParseAddr("fd00::1")},
		"a host outside": {NS: p.Outside.NS, Addr: netip.MustParseAddr("fd00::100")},
	} {
		before := droppedTunnels(t, target)
		for range rounds {
			if send(from, "udp6", netip.MustParseAddr("fd00::2"), time.Second/2) {
				t.Errorf("VXLAN over IPv6 of %s arrived", name)
			}
		}
		t.Logf("%s: VXLAN packets that table 10 dropped: %d", name, droppedTunnels(t, target)-before)
	}
}
