package hostnet

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

// An ICMP error about a masqueraded connection through a service reaches the pod that opened it if it comes from outside, and not if another pod sends it.
func TestICMPErrorAboutMasqueradedConnection(t *testing.T) {
	n := newNetwork(t, sourcesEvaluated())
	sh(t, "iptables -t nat -A PREROUTING -d 172.30.0.10 -p udp --dport 53 -j DNAT --to-destination 192.0.2.1:53; iptables -I FORWARD -j ACCEPT")
	opener, server := udp(t, n.pods, "10.128.0.2:5000"), udp(t, n.outside, "192.0.2.1:53")
	send(t, opener, "172.30.0.10:53")
	masqueraded := sender(t, server)

	raw := func(netns ns.NetNS, addr string) (conn net.PacketConn) {
		must(t, netns.Do(func(ns.NetNS) (err error) { conn, err = net.ListenPacket("ip4:icmp", addr); return err }))
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	received, pod, router := raw(n.pods, "10.128.0.2"), raw(n.pods, "10.128.0.3"), raw(n.outside, "192.0.2.1")
	fail := func(from net.PacketConn, code byte) {
		quoted := wire.UDPPacket(masqueraded, netip.MustParseAddrPort("192.0.2.1:53"), []byte("hello"))
		_, err := from.WriteTo(wire.ICMPError(3, code, quoted), &net.IPAddr{IP: net.ParseIP("192.0.2.10")})
		must(t, err)
	}
	const unreachableHost, unreachablePort = 1, 3
	fail(pod, unreachableHost)
	fail(router, unreachablePort)
	must(t, received.SetReadDeadline(time.Now().Add(time.Minute)))
	for buf := make([]byte, 1500); buf[1] != unreachablePort; {
		_, _, err := received.ReadFrom(buf)
		must(t, err)
		if buf[1] == unreachableHost {
			t.Error("the pod that opened the connection got another pod's error")
		}
	}
	eventually(t, "the pod's error is dropped", func() bool { return dropped(t) == "1 0 0 0 0 0" })
}
