package datapath_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	compiled "github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// testBalancedSamePort: a client has connections from one port to two services with the same endpoint. After translation both would have the same addresses and ports,
// so the second one has another source port at the endpoint.
func testBalancedSamePort(t *testing.T, b *balanced) {
	client, server := b.pod(0, 0), b.pod(1, 0)
	endpoint := netip.AddrPortFrom(server.Addr, 8080)
	b.endpoints = []netip.AddrPort{endpoint}
	b.addSecond(endpoint)
	b.install(t)

	asking, serving := client.UDP(t, 0), server.UDP(t, 8080)
	seen := map[netip.AddrPort]netip.AddrPort{}
	for _, to := range []netip.AddrPort{vip(53), second(53), vip(53)} {
		from := asking.MustReach(t, to, serving)
		if before, ok := seen[to]; ok && before != from {
			t.Errorf("source of a connection to %s at the endpoint: got %s, then %s", to, before, from)
		}
		seen[to] = from
		if from.Addr() != client.Addr {
			t.Errorf("source at the endpoint of %s: got %s, want the client's address %s", to, from, client.Addr)
		}
		if got := serving.MustReach(t, from, asking); got != to {
			t.Errorf("source of the reply: got %s, want %s", got, to)
		}
	}

	l := server.ListenTCP(t, 8080)
	var streams []datapath.Stream
	var port int
	for _, to := range []netip.AddrPort{vip(80), second(80)} {
		conn := dialFrom(t, client, port, to, 10*time.Second)
		if conn == nil {
			t.Fatalf("no connection from port %d to %s", port, to)
		}
		addr, ok := conn.LocalAddr().(*net.TCPAddr)
		if !ok {
			t.Fatalf("local address: got %T", conn.LocalAddr())
		}
		port = addr.Port
		streams = append(streams, datapath.Stream{Client: conn, Server: datapath.Accept(t, l)})
	}
	for _, s := range streams {
		s.MustPass(t)
	}
}

// second is a port of the second service's address.
func second(port uint16) netip.AddrPort { return netip.AddrPortFrom(vip(port).Addr().Next(), port) }

// addSecond adds a service with the same ports.
func (b *balanced) addSecond(endpoint netip.AddrPort) {
	for _, port := range []uint16{80, 53} {
		f := frontend(second(port).Addr(), port, endpoint)
		f.Kind = compiled.ClusterIP
		b.external = append(b.external, f)
	}
}

// testBalancedAfterProxy: after the change from kube-proxy and back, a connection that the switch translates may have the addresses and ports of one that kube-proxy has translated.
// Its replies do not leave to the host, which would give them the address of the service of that connection.
func testBalancedAfterProxy(t *testing.T, b *balanced) {
	for name, server := range map[string]*datapath.Pod{"same node": b.pod(0, 1), "other node": b.pod(1, 0)} {
		for _, evaluated := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, evaluated %t", name, evaluated), func(t *testing.T) { b.testAfterProxy(t, server, evaluated) })
		}
	}
}

func (b *balanced) testAfterProxy(t *testing.T, server *datapath.Pod, evaluated bool) {
	t.Helper()
	client, endpoint := b.pod(0, 0), netip.AddrPortFrom(server.Addr, 8080)
	asking, serving := client.UDP(t, 0), server.UDP(t, 8080)
	pods := []*datapath.Pod{client, server}
	for _, p := range pods {
		b.policies[p] = compiled.PodPolicies{Evaluated: evaluated}
	}
	if !evaluated {
		pods = nil
	}
	b.cluster.install(t, b.mode, pods...)
	proxy(t, b.Nodes[0], endpoint)
	asking.MustReach(t, vip(53), serving)
	serving.Send(t, asking.Addr(), serving.Message())

	b.endpoints, b.external = []netip.AddrPort{endpoint}, nil
	b.addSecond(endpoint)
	b.install(t)
	from := asking.MustReach(t, second(53), serving)
	if got := serving.MustReach(t, from, asking); got != second(53) {
		t.Errorf("source of the reply: got %s, want %s", got, second(53))
	}
	if b.mode == config.ModeSubnet {
		return // here the agent's rules masquerade what kube-proxy has translated, which these hosts lack
	}
	b.cluster.install(t, b.mode, pods...)
	asking.MustReach(t, vip(53), serving)
	if got := serving.MustReach(t, asking.Addr(), asking); got != vip(53) {
		t.Errorf("source of the reply after the change back: got %s, want %s", got, vip(53))
	}
}

// testBalancedSCTP: the endpoint and the client see translated ports. On the userspace datapath, whose conntrack can't translate SCTP, the service has no flow for it.
func testBalancedSCTP(t *testing.T, b *balanced) {
	client, server := b.pod(0, 0), b.pod(1, 0)
	f := frontend(vip(0).Addr(), 2000, netip.AddrPortFrom(server.Addr, 3000))
	f.Kind, f.Protocol = compiled.ClusterIP, compiled.ProtocolSCTP
	b.external = []compiled.Frontend{f}
	b.install(t)
	asking, serving := client.Listen(t, sctp, 0), server.Listen(t, sctp, 0)
	ask := func() []byte { return sctpInit(1000, 2000, asking.Message()) }
	if b.Type != ovstest.DatapathSystem {
		asking.MustNotReachWith(t, vip(0), serving, ask)
		return
	}
	if from := reachSCTP(t, asking, vip(0), 1000, 2000, serving); from.Addr() != client.Addr {
		t.Errorf("source at the endpoint: got %s, want the client's address %s", from, client.Addr)
	}
	// Only the connection's own reply is translated.
	if from := reachSCTP(t, serving, asking.Addr(), 3000, 1000, asking); from.Addr() != vip(0).Addr() {
		t.Errorf("source of the reply: got %s, want %s", from, vip(0).Addr())
	}
	if from := reachSCTP(t, serving, asking.Addr(), 3001, 1000, asking); from.Addr() != server.Addr {
		t.Errorf("source of another packet: got %s, want the endpoint's address %s", from, server.Addr)
	}
}

// reachSCTP sends SCTP from a port to another until a packet arrives.
func reachSCTP(t *testing.T, from *datapath.Socket, to netip.AddrPort, source, destination uint16, receiver *datapath.Socket) netip.AddrPort {
	t.Helper()
	return mustReachTranslated(t, from, to, receiver, func(message []byte) []byte { return sctpInit(source, destination, message) })
}

// mustReachTranslated is MustReachWith for packets whose headers a translation changes.
func mustReachTranslated(t *testing.T, from *datapath.Socket, to netip.AddrPort, receiver *datapath.Socket, packet func(message []byte) []byte) (seen netip.AddrPort) {
	t.Helper()
	await.OK(t, await.PacketTime, func(context.Context) error {
		var arrived bool
		if seen, arrived = reachesTranslated(t, from, to, receiver, packet); !arrived {
			ports := packet(nil)
			return fmt.Errorf("nothing sent from %s to %s, by ports %d to %d, has come in at %s", from.LocalAddr(), to.Addr(),
				binary.BigEndian.Uint16(ports), binary.BigEndian.Uint16(ports[2:]), receiver.LocalAddr())
		}
		return nil
	})
	return seen
}

// reachesTranslated sends one packet, and reports whether its message arrives.
func reachesTranslated(t *testing.T, from *datapath.Socket, to netip.AddrPort, receiver *datapath.Socket, packet func(message []byte) []byte) (netip.AddrPort, bool) {
	t.Helper()
	message := from.Message()
	from.Send(t, to, packet(message))
	return receiver.Receive(t, message, 200*time.Millisecond)
}
