package hostnet

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
)

// VXLAN of other addresses than the VTEPs is dropped, before any rule accepts it.
func TestVXLANFromUnknownVTEPsIsDropped(t *testing.T) {
	n := newNetwork(t, openShift())
	sh(t, "iptables -I INPUT -j ACCEPT")
	must(t, n.outside.Do(func(ns.NetNS) error { sh(t, "ip addr add 192.0.2.66/24 dev eth0"); return nil }))
	here, err := ns.GetCurrentNS()
	must(t, err)
	defer here.Close()
	vtep := udp(t, here, "192.0.2.10:4789")
	send(t, udp(t, n.outside, "192.0.2.66:5000"), "192.0.2.10:4789")
	send(t, udp(t, n.pods, "10.128.0.2:5000"), "192.0.2.10:4789")
	send(t, udp(t, n.outside, "192.0.2.1:5000"), "192.0.2.10:4789")
	if from := sender(t, vtep); from.String() != "192.0.2.1:5000" {
		t.Errorf("VTEP: got a packet from %s, want one of node 192.0.2.1 only", from)
	}
	if got := droppedIn(t, "OVSDN-GUARD-VXLAN"); got != "2" {
		t.Errorf("got %s dropped packets, want 2", got)
	}
	drops, err := n.firewall.Drops(t.Context())
	must(t, err)
	drops = slices.DeleteFunc(drops, func(d RuleDrops) bool { return d.Packets == 0 })
	if len(drops) != 1 || drops[0].Comment != "VXLAN of an unknown VTEP" || drops[0].Packets != 2 {
		t.Errorf("got drops %v, want 2 of unknown VTEPs", drops)
	}
}

// Packets that are translated to a VTEP are dropped, for any kind of service, and no service translates the tunnel's own packets. The rules are
// those of kube-proxy and portmap.
func TestServicesDoNotReachVTEPs(t *testing.T) {
	const (
		own     = "-j DNAT --to-destination 192.0.2.10:4789"
		peer    = "-j DNAT --to-destination 192.0.2.1:4789"
		hijack  = "-j DNAT --to-destination 10.128.0.3:5353"
		masq    = "iptables -t nat -A PREROUTING -d 198.51.100.0/24 -j MARK --set-xmark 0x4000/0x4000; iptables -t nat -A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE; "
		accept  = "iptables -I INPUT -j ACCEPT; iptables -I FORWARD -j ACCEPT; "
		dnat    = "iptables -t nat -A PREROUTING -p udp "
		address = "ip addr add 198.51.100.7/32 dev lo; "
	)
	for _, test := range []struct{ name, rules, to string }{
		{"external IP, own VTEP", dnat + "-d 198.51.100.7 --dport 53 " + own, "198.51.100.7:53"},
		{"external IP, VTEP of a peer", dnat + "-d 198.51.100.7 --dport 53 " + peer, "198.51.100.7:53"},
		{"external IP on the VXLAN port, own VTEP", dnat + "-d 198.51.100.7 --dport 4789 " + own, "198.51.100.7:4789"},
		{"load balancer's address on the node, own VTEP", address + dnat + "-d 198.51.100.7 --dport 53 " + own, "198.51.100.7:53"},
		{"load balancer's address, masqueraded", masq + dnat + "-d 198.51.100.7 --dport 53 " + own, "198.51.100.7:53"},
		{"host port, own VTEP", dnat + "-m addrtype --dst-type LOCAL --dport 53 " + own, "192.0.2.10:53"},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newNetwork(t, openShift())
			sh(t, accept+test.rules)
			must(t, n.outside.Do(func(ns.NetNS) error { sh(t, "ip route add 198.51.100.0/24 via 192.0.2.10"); return nil }))
			here, err := ns.GetCurrentNS()
			must(t, err)
			defer here.Close()
			vtep, peerVTEP := udp(t, here, "192.0.2.10:4789"), udp(t, n.outside, "192.0.2.1:4789")
			send(t, udp(t, n.outside, "192.0.2.1:5000"), test.to)
			send(t, udp(t, n.pods, "10.128.0.2:5000"), test.to)
			// The arrival of an accepted packet shows that the others were dropped.
			send(t, peerVTEP, "192.0.2.10:4789")
			if from := sender(t, vtep); from.Port() != 4789 {
				t.Errorf("VTEP of the node: got a packet from %s", from)
			}
			send(t, vtep, "192.0.2.1:4789")
			if from := sender(t, peerVTEP); from.String() != "192.0.2.10:4789" {
				t.Errorf("VTEP of the peer: got a packet from %s", from)
			}
		})
	}
	// A host port or an external IP on the VXLAN port of the node's address.
	for _, match := range []string{"-m addrtype --dst-type LOCAL", "-d 192.0.2.10"} {
		t.Run("tunnel taken by "+match, func(t *testing.T) {
			n := newNetwork(t, openShift())
			sh(t, accept+dnat+match+" --dport 4789 "+hijack)
			here, err := ns.GetCurrentNS()
			must(t, err)
			defer here.Close()
			vtep := udp(t, here, "192.0.2.10:4789")
			send(t, udp(t, n.outside, "192.0.2.1:5000"), "192.0.2.10:4789")
			if from := sender(t, vtep); from.String() != "192.0.2.1:5000" {
				t.Errorf("VTEP: got a packet from %s", from)
			}
		})
	}
}

// packetTooBig returns an ICMP error (3/4) with the next hop's MTU in bytes, about a VXLAN packet.
func packetTooBig(mtu uint16, src, dst netip.Addr) []byte {
	about := make([]byte, 20+8+8)
	about[0], about[8], about[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(about[2:], 1450)
	copy(about[12:], src.AsSlice())
	copy(about[16:], dst.AsSlice())
	binary.BigEndian.PutUint16(about[10:], checksum(about[:20]))
	binary.BigEndian.PutUint16(about[20:], 50000)
	binary.BigEndian.PutUint16(about[22:], 4789)
	binary.BigEndian.PutUint16(about[24:], 1430)
	about[28] = 0x08 // a VNI follows
	packet := append([]byte{3, 4, 0, 0, 0, 0, byte(mtu >> 8), byte(mtu)}, about...)
	binary.BigEndian.PutUint16(packet[2:], checksum(packet))
	return packet
}

func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// ICMP errors of pods about the node's own VXLAN are dropped: they would lower the MTU of the tunnel for all pods, for ten minutes.
func TestPodsDoNotLowerTheTunnelsMTU(t *testing.T) {
	n := newNetwork(t, openShift())
	sh(t, "ip link add vx0 type vxlan external dstport 4789 && ip link set vx0 up && iptables -A INPUT -i eth0 -p icmp -j ACCEPT")
	node, peer := netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("192.0.2.1")
	tooBig := func(netns ns.NetNS, src string) {
		must(t, netns.Do(func(ns.NetNS) error {
			conn, err := net.ListenPacket("ip4:icmp", src)
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.WriteTo(packetTooBig(600, node, peer), &net.IPAddr{IP: node.AsSlice()})
			return err
		}))
	}
	lowered := func() bool { return strings.Contains(sh(t, "ip route get "+peer.String()), "mtu 600") }
	tooBig(n.pods, "10.128.0.2")
	eventually(t, "dropped", func() bool { return lowered() || droppedIn(t, "OVSDN-GUARD-INPUT") == "0 0 1" })
	if lowered() {
		t.Errorf("route to another node after the ICMP error of a pod: got %s", sh(t, "ip route get "+peer.String()))
	}
	tooBig(n.outside, "192.0.2.1")
	eventually(t, "a router's error is taken", lowered)
}

// An echo reply has no conntrack entry if the request came by another node. It is forwarded.
func TestEchoReplyWithoutConntrackEntry(t *testing.T) {
	n := newNetwork(t, openShift())
	var client net.PacketConn
	must(t, n.outside.Do(func(ns.NetNS) (err error) {
		client, err = net.ListenPacket("ip4:icmp", "192.0.2.1")
		return err
	}))
	defer client.Close()
	must(t, n.pods.Do(func(ns.NetNS) error {
		pod, err := net.ListenPacket("ip4:icmp", "10.128.0.2")
		if err != nil {
			return err
		}
		defer pod.Close()
		reply := make([]byte, 8) // RFC 792: type 0, identifier 0
		binary.BigEndian.PutUint16(reply[2:], checksum(reply))
		_, err = pod.WriteTo(reply, &net.IPAddr{IP: net.ParseIP("192.0.2.1")})
		return err
	}))
	must(t, client.SetReadDeadline(time.Now().Add(30*time.Second)))
	if _, _, err := client.ReadFrom(make([]byte, 100)); err != nil {
		t.Errorf("echo reply: got error %v, %s packets dropped", err, dropped(t))
	}
}
