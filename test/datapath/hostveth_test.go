package datapath_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/veth"
	sdn "github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// The addresses of the node's daemons.
const (
	daemonPort = 7000
	dhcpPort   = 67
	nodeIPv6   = "fd00::1"
)

// protocolICMPv6 is IANA's.
const protocolICMPv6 = 58

// attach makes a pod's veth pair as the agent does, and returns the MAC of the host's end.
func attach(t *testing.T, p *product, node *datapath.Node) (*datapath.Pod, net.HardwareAddr) {
	t.Helper()
	netns, err := ns.TempNetNS()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netns.Close() })
	const name, ofport = "veth0123456789a", 9
	addr := node.Addr.Next()
	pod := &datapath.Pod{Host: datapath.Host{NS: netns, Addr: addr}, MAC: config.MAC(addr), OFPort: ofport}
	var mac net.HardwareAddr
	err = node.NS.Do(func(ns.NetNS) error {
		var links veth.Links
		i := veth.Interface{
			Name: "eth0", MAC: pod.MAC, MTU: 1450, NoChecksums: p.Type == ovstest.DatapathNetdev, HostAlias: "test",
			Addrs:  []netip.Prefix{netip.PrefixFrom(addr, node.Subnet.Bits())},
			Routes: []veth.Route{{To: netip.MustParsePrefix(datapath.ClusterNetwork)}, {To: netip.MustParsePrefix("0.0.0.0/0"), Via: node.Addr}},
		}
		if err := links.Create(t.Context(), netns, name, i); err != nil {
			return err
		}
		if err := links.Configure(t.Context(), netns, i); err != nil {
			return err
		}
		link, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		mac = link.HardwareAddr
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	node.Switch.VSCtl(t, "add-port", ovstest.Bridge, name, "--", "set", "interface", name, fmt.Sprintf("ofport_request=%d", ofport))
	return pod, mac
}

// TestHostStackIgnoresPods: the kernel's stack of a node processes no packet that a pod sends to the host's end of its veth pair. With the userspace datapath
// it gets a copy of each packet, and would answer, deliver and route it past the flows of br0.
func TestHostStackIgnoresPods(t *testing.T) {
	tier.Parallel(t)
	p := &product{Network: datapath.New(t, 1), mode: config.ModeNetworkPolicy}
	node := p.Nodes[0]
	pod, veth := attach(t, p, node)
	p.install(t, node, []sdn.State{p.compiler(node).Pod(sdn.Pod{OFPort: pod.OFPort, MAC: pod.MAC, Addrs: []netip.Addr{pod.Addr}})}, nil)
	p.protect(t, node)
	node.Sh(t, "ip -6 addr add "+nodeIPv6+"/128 dev lo nodad") // a busy kernel leaves it tentative for a while

	// Daemons on all addresses of the node, and a host behind it.
	own := datapath.Host{NS: node.NS, Addr: netip.IPv4Unspecified()}
	daemons := map[string]*datapath.Socket{"UDP": own.UDP(t, daemonPort), "DHCP": own.UDP(t, dhcpPort)}
	six := datapath.Host{NS: node.NS, Addr: netip.MustParseAddr(nodeIPv6)}
	daemons["UDP over IPv6"] = six.Listen(t, "udp6", daemonPort)
	daemons["a host outside"] = p.Outside.UDP(t, daemonPort)
	(&datapath.Host{NS: node.NS, Addr: node.VTEP}).ListenTCP(t, daemonPort)
	pod.UDP(t, 0).MustReach(t, netip.AddrPortFrom(node.VTEP, daemonPort), daemons["UDP"])

	answers, err := wireOf(pod).Capture("eth0", nil)
	if err != nil {
		t.Fatal(err)
	}
	outside := netip.AddrPortFrom(p.Outside.Addr, daemonPort)
	source := netip.AddrPortFrom(pod.Addr, 5000)
	at := func(a netip.Addr) netip.AddrPort { return netip.AddrPortFrom(a, daemonPort) }
	udp := func(src, dst netip.AddrPort, tag []byte) []byte { return wire.UDPPacket(src, dst, tag) }
	everybody, all := wire.Broadcast(), net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}
	for i, sent := range []struct {
		name      string
		dst       net.HardwareAddr
		etherType uint16
		packet    func(tag []byte) []byte
	}{
		{"UDP to the node's IP", veth, wire.TypeIPv4, func(tag []byte) []byte { return udp(source, at(node.VTEP), tag) }},
		{"UDP to tun0", veth, wire.TypeIPv4, func(tag []byte) []byte { return udp(source, at(node.Addr), tag) }},
		{"UDP from another's address", veth, wire.TypeIPv4, func(tag []byte) []byte { return udp(netip.MustParseAddrPort("198.51.100.7:5000"), at(node.VTEP), tag) }},
		{"tagged UDP", veth, wire.TypeVLAN, func(tag []byte) []byte { return wire.VLAN(0, wire.TypeIPv4, udp(source, at(node.VTEP), tag)) }},
		{"UDP to be routed", veth, wire.TypeIPv4, func(tag []byte) []byte { return udp(source, outside, tag) }},
		{"UDP to be routed, from another's address", veth, wire.TypeIPv4, func(tag []byte) []byte { return udp(netip.MustParseAddrPort("198.51.100.7:5000"), outside, tag) }},
		{"DHCP", everybody, wire.TypeIPv4, func(tag []byte) []byte {
			return udp(netip.MustParseAddrPort("0.0.0.0:68"), netip.MustParseAddrPort("255.255.255.255:67"), tag)
		}},
		{"ICMP", veth, wire.TypeIPv4, func(tag []byte) []byte {
			return wire.IPv4{Src: pod.Addr, Dst: node.VTEP, Protocol: wire.ProtocolICMP}.Packet(wire.ICMPEcho(tag))
		}},
		{"TCP", veth, wire.TypeIPv4, func([]byte) []byte {
			return wire.IPv4{Src: pod.Addr, Dst: node.VTEP, Protocol: wire.ProtocolTCP}.Packet(wire.TCP(source, at(node.VTEP), wire.TCPSYN))
		}},
		{"UDP over IPv6", veth, wire.TypeIPv6, func(tag []byte) []byte {
			return ipv6(netip.MustParseAddr("fd00::99"), six.Addr, wire.ProtocolUDP, udpOverIPv6(netip.MustParseAddrPort("[fd00::99]:5000"), at(six.Addr), tag))
		}},
		{"UDP over IPv6 in broadcast", everybody, wire.TypeIPv6, func(tag []byte) []byte {
			return ipv6(netip.MustParseAddr("fd00::99"), six.Addr, wire.ProtocolUDP, udpOverIPv6(netip.MustParseAddrPort("[fd00::99]:5000"), at(six.Addr), tag))
		}},
		{"router advertisement", all, wire.TypeIPv6, func([]byte) []byte {
			return ipv6(netip.MustParseAddr("fe80::1"), netip.MustParseAddr("ff02::1"), protocolICMPv6, advertisement())
		}},
		{"ARP for the node's IP", everybody, wire.TypeARP, func([]byte) []byte {
			return wire.ARP{Operation: wire.ARPRequest, SenderMAC: pod.MAC, SenderIP: pod.Addr, TargetIP: node.VTEP}.Packet(nil)
		}},
	} {
		tag := []byte(fmt.Sprintf("<%d: %s>", i, sent.name))
		send(t, pod, sent.dst, sent.etherType, sent.packet(tag))
		for name, daemon := range daemons {
			if _, ok := daemon.Receive(t, tag, 50*time.Millisecond); ok {
				t.Errorf("%s: it arrived at %s", sent.name, name)
			}
		}
		for _, frame := range answers.Frames(nil) {
			if from := net.HardwareAddr(frame[6:12]); from.String() != pod.MAC.String() && isAnswer(frame, tag) {
				t.Errorf("%s: it was answered: %x", sent.name, frame)
			}
		}
	}
	if err := answers.Close(); err != nil {
		t.Error(err)
	}
	if routes := node.Sh(t, "ip -6 route show default; ip -6 neigh"); strings.Contains(routes, "veth") {
		t.Errorf("the node has learned of the pod over IPv6: %s", routes)
	}
	if neighbours := node.Sh(t, "ip neigh show"); strings.Contains(neighbours, "veth") {
		t.Errorf("the node has learned of the pod by ARP: %s", neighbours)
	}
	pod.UDP(t, 0).MustReach(t, netip.AddrPortFrom(node.VTEP, daemonPort), daemons["UDP"])
}

// isAnswer reports whether a frame answers what was sent: it has the tag, or is an answer of TCP or ARP.
func isAnswer(frame, tag []byte) bool {
	const typeAt, protocolAt, operationAt = 12, 23, 20
	switch binary.BigEndian.Uint16(frame[typeAt:]) {
	case wire.TypeARP:
		return binary.BigEndian.Uint16(frame[operationAt:]) == wire.ARPReply && frame[28] == 192 // the node's IP
	case wire.TypeIPv4:
		return frame[protocolAt] == wire.ProtocolTCP || strings.Contains(string(frame), string(tag))
	}
	return false
}

// ipv6 is a packet with the hop limit of neighbour discovery, and the checksum of what it contains.
func ipv6(src, dst netip.Addr, protocol byte, payload []byte) []byte {
	const checksumOfICMP, checksumOfUDP = 2, 6
	pseudo := append(src.AsSlice(), dst.AsSlice()...)
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(payload)))
	pseudo = append(append(pseudo, 0, 0, 0, protocol), payload...)
	at := checksumOfUDP
	if protocol == protocolICMPv6 {
		at = checksumOfICMP
	}
	binary.BigEndian.PutUint16(payload[at:], checksum(pseudo))
	p := []byte{0x60, 0, 0, 0}
	p = binary.BigEndian.AppendUint16(p, uint16(len(payload)))
	p = append(p, protocol, 255)
	return append(append(append(p, src.AsSlice()...), dst.AsSlice()...), payload...)
}

// udpOverIPv6 is a datagram without a checksum.
func udpOverIPv6(src, dst netip.AddrPort, payload []byte) []byte {
	d := binary.BigEndian.AppendUint16(nil, src.Port())
	d = binary.BigEndian.AppendUint16(d, dst.Port())
	d = binary.BigEndian.AppendUint16(d, uint16(8+len(payload)))
	return append(append(d, 0, 0), payload...)
}

// advertisement is a router advertisement: a default router for half an hour, and the prefix fd01::/64 (RFC 4861).
func advertisement() []byte {
	m := []byte{134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0}
	m = append(m, 3, 4, 64, 0xc0, 0, 0, 0x07, 0x08, 0, 0, 0x07, 0x08, 0, 0, 0, 0)
	return append(m, netip.MustParseAddr("fd01::").AsSlice()...)
}
