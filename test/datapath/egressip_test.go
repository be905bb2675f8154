package datapath_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	sdn "github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/tier"
)

// egressIPs are two nodes with egress IPs: the pods have their VNID in common.
type egressIPs struct {
	*product
	of       map[*datapath.Pod]netip.Addr
	hosts    map[netip.Addr]*datapath.Node
	vnid     config.VNID
	balanced *sdn.BalancedService
}

// The egress IPs. The zones of first and collides are equal.
func firstIP() netip.Addr    { return netip.MustParseAddr("192.0.2.50") }
func secondIP() netip.Addr   { return netip.MustParseAddr("192.0.2.51") }
func unhostedIP() netip.Addr { return netip.MustParseAddr("192.0.2.52") }
func collidesIP() netip.Addr { return netip.MustParseAddr("192.0.18.50") }

// firstZone is the zone of firstIP.
const firstZone = 0x1232

// TestEgressIPs tests docs/decisions/0019-egress-ips.md with packets.
func TestEgressIPs(t *testing.T) {
	tier.Parallel(t)
	e := &egressIPs{product: &product{Network: datapath.New(t, 2)}}
	for i, count := range []int{3, 2} {
		for range count {
			e.Nodes[i].AddPod(t)
		}
		e.protect(t, e.Nodes[i])
	}
	for _, mode := range []config.Mode{config.ModeNetworkPolicy, config.ModeMultitenant} {
		for _, test := range []struct {
			name string
			run  func(*testing.T, *egressIPs)
			both bool // in the short tier
		}{
			{"both directions", testEgressIPDirections, true},
			{"equal ports", testEgressIPPorts, false},
			{"unhosted", testEgressIPUnhosted, true},
			{"unsolicited", testEgressIPUnsolicited, true},
			{"move", testEgressIPMove, false},
			{"no translation", testEgressIPNoTranslation, false},
			{"another egress IP with the same zone", testEgressIPCollision, false},
			{"Ethernet destination", testEgressIPEthernet, false},
			{"outside client", testEgressIPOutsideClient, true},
			{"balanced service", testEgressIPBalanced, false},
		} {
			t.Run(mode.String()+"/"+test.name, func(t *testing.T) {
				if testing.Short() && mode == config.ModeMultitenant && !test.both {
					t.Skip("complete tier: another mode")
				}
				e.mode = mode
				e.reset(t)
				test.run(t, e)
			})
		}
	}
}

// pod is a pod by the numbers of its node and of itself there, from 0.
func (e *egressIPs) pod(node, pod int) *datapath.Pod { return e.Nodes[node].Pods[pod] }

// reset gives the first two pods of the first node and the first one of the second node an egress IP, which the first node hosts.
func (e *egressIPs) reset(t *testing.T) {
	t.Helper()
	e.of = map[*datapath.Pod]netip.Addr{e.pod(0, 0): firstIP(), e.pod(0, 1): firstIP(), e.pod(1, 0): firstIP()}
	e.hosts, e.vnid, e.balanced = map[netip.Addr]*datapath.Node{}, 0x20, nil
	e.host(t, firstIP(), e.Nodes[0])
	for _, node := range e.Nodes {
		node.AppCtl(t, "dpctl/flush-conntrack")
	}
}

// host makes the node host the egress IP, and installs the flows of all nodes.
func (e *egressIPs) host(t *testing.T, ip netip.Addr, node *datapath.Node) {
	t.Helper()
	e.hosts[ip] = node
	for _, other := range e.Nodes {
		other.Sh(t, fmt.Sprintf("ip route del %s 2>/dev/null || true", ip))
	}
	node.Sh(t, fmt.Sprintf("ip route add %s dev tun0", ip), fmt.Sprintf("ip neigh replace %s lladdr %s dev tun0", ip, datapath.MAC(ip)))
	e.Outside.Sh(t, fmt.Sprintf("ip route replace %s via %s", ip, node.VTEP))
	e.apply(t)
}

// apply installs the flows of all nodes.
func (e *egressIPs) apply(t *testing.T) {
	t.Helper()
	for _, node := range e.Nodes {
		n := e.compiler(node)
		n.BalancesServices = e.balanced != nil
		static, err := n.Static()
		if err != nil {
			t.Fatal(err)
		}
		states := []sdn.State{static}
		if e.balanced != nil {
			states = append(states, n.BalancedService(*e.balanced))
		}
		for _, pod := range node.Pods {
			states = append(states, n.Pod(sdn.Pod{OFPort: pod.OFPort, MAC: pod.MAC, Addrs: []netip.Addr{pod.Addr}, VNID: e.vnid, EgressIP: e.of[pod]}))
		}
		for _, peer := range e.Nodes {
			if peer != node {
				states = append(states, n.Peer(sdn.Peer{VTEP: peer.VTEP, Subnets: []netip.Prefix{peer.Subnet}, IsNode: true}))
			}
		}
		for ip, host := range e.hosts {
			hosted := sdn.EgressIP{IP: ip}
			if host != node {
				hosted.VTEP = host.VTEP
			}
			states = append(states, n.EgressIP(hosted))
		}
		node.Switch.OFCtl(t, "set-frags", "br0", "nx-match") // as the agent does
		replace(t, node, numbered(states))
	}
}

// mustTalk sends packets from the socket to the host outside, which must have the source, and back.
func (e *egressIPs) mustTalk(t *testing.T, from, world *datapath.Socket, source netip.Addr) netip.AddrPort {
	t.Helper()
	got := from.MustReach(t, world.Addr(), world)
	if got.Addr() != source {
		t.Errorf("packets of %s have the source %s, want %s", from.LocalAddr(), got, source)
	}
	world.MustReach(t, got, from)
	return got
}

// testEgressIPDirections: UDP, TCP and ICMP, and ICMP errors, from pods of the node that hosts the IP and of another one. A pod without an egress IP has
// the source of its node.
func testEgressIPDirections(t *testing.T, e *egressIPs) {
	world, ping := e.Outside.UDP(t, 0), e.Outside.Listen(t, icmp, 0)
	const port = 8080
	listener := e.Outside.ListenTCP(t, port)
	for _, pod := range []*datapath.Pod{e.pod(0, 0), e.pod(1, 0)} {
		e.mustTalk(t, pod.UDP(t, 0), world, firstIP())
		s := pod.Dial(t, netip.AddrPortFrom(e.Outside.Addr, port), listener)
		if got := netip.MustParseAddrPort(s.Server.RemoteAddr().String()).Addr(); got != firstIP() {
			t.Errorf("a TCP connection of %s has the source %s, want %s", pod.Addr, got, firstIP())
		}
		s.MustPass(t)

		// The userspace datapath does not translate the identifiers of echoes, which are equal here.
		e.Nodes[0].AppCtl(t, "dpctl/flush-conntrack")
		messages := pod.Listen(t, icmp, 0)
		echo := func() []byte { return wire.ICMPEcho(messages.Message()) }
		if got := messages.MustReachWith(t, ping.Addr(), ping, echo).Addr(); got != firstIP() {
			t.Errorf("an ICMP echo of %s has the source %s, want %s", pod.Addr, got, firstIP())
		}
		await.OK(t, 30*time.Second, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			return wireOf(pod).Ping(ctx, e.Outside.Addr, wire.Echo{})
		})
		pod.UDP(t, 0).MustReach(t, netip.AddrPortFrom(e.Outside.Addr, 99), messages)
		large := pod.UDP(t, 0)
		if got := large.MustReachWith(t, world.Addr(), world, large.Large).Addr(); got != firstIP() {
			t.Errorf("fragments of %s have the source %s, want %s", pod.Addr, got, firstIP())
		}
	}
	for i, node := range e.Nodes {
		e.mustTalk(t, e.pod(i, len(node.Pods)-1).UDP(t, 0), world, node.VTEP)
	}
}

// testEgressIPPorts: three pods have the same source port.
func testEgressIPPorts(t *testing.T, e *egressIPs) {
	const port = 5000
	world := e.Outside.UDP(t, 0)
	seen := map[netip.AddrPort]*datapath.Socket{}
	for pod := range e.of {
		s := pod.UDP(t, port)
		from := e.mustTalk(t, s, world, firstIP())
		if seen[from] != nil {
			t.Errorf("two pods have the source %s", from)
		}
		seen[from] = s
	}
	for from, s := range seen {
		world.MustReach(t, from, s)
	}
}

// testEgressIPUnhosted: packets to outside are dropped. Nodes are reached, also the pod's own.
func testEgressIPUnhosted(t *testing.T, e *egressIPs) {
	world, pod := e.Outside.UDP(t, 0), e.pod(0, 0)
	for _, wanted := range []string{unhostedIP().String(), "0.0.0.0", "10.128.0.9", "fd00::1"} {
		e.of[pod] = netip.MustParseAddr(wanted)
		e.apply(t)
		client := pod.UDP(t, 0)
		client.MustNotReach(t, world.Addr(), world)
		for _, node := range e.Nodes {
			daemon := (&datapath.Host{NS: node.NS, Addr: node.VTEP}).UDP(t, 0)
			from := client.MustReach(t, daemon.Addr(), daemon)
			if want := e.Nodes[0].VTEP; node != e.Nodes[0] && from.Addr() != want {
				t.Errorf("another node sees the source %s, want %s", from.Addr(), want)
			}
			daemon.MustReach(t, from, client)
			daemon.Close()
		}
		client.Close()
	}
}

// testEgressIPUnsolicited: no host outside opens connections to an egress IP, also not to a port that a pod uses.
func testEgressIPUnsolicited(t *testing.T, e *egressIPs) {
	world, stranger := e.Outside.UDP(t, 0), e.Outside.UDP(t, 0)
	for _, pod := range []*datapath.Pod{e.pod(0, 0), e.pod(1, 0)} {
		client := pod.UDP(t, 0)
		from := e.mustTalk(t, client, world, firstIP())
		stranger.MustNotReach(t, from, client)
		stranger.MustNotReach(t, netip.AddrPortFrom(firstIP(), 53), client)
	}
}

// testEgressIPMove: conversations continue after another node has become the host of the egress IP.
func testEgressIPMove(t *testing.T, e *egressIPs) {
	const port = 8080
	listener, world := e.Outside.ListenTCP(t, port), e.Outside.UDP(t, 0)
	for _, pod := range []*datapath.Pod{e.pod(0, 0), e.pod(1, 0)} {
		e.host(t, firstIP(), e.Nodes[0])
		s, client := pod.Dial(t, netip.AddrPortFrom(e.Outside.Addr, port), listener), pod.UDP(t, 0)
		s.MustPass(t)
		before := e.mustTalk(t, client, world, firstIP())
		e.host(t, firstIP(), e.Nodes[1])
		s.MustPass(t)
		if after := e.mustTalk(t, client, world, firstIP()); after != before {
			t.Errorf("after the move the source is %s, want %s", after, before)
		}
	}
}

// testEgressIPNoTranslation: packets for which the zone has no room do not leave. The userspace datapath passes them with their own source.
func testEgressIPNoTranslation(t *testing.T, e *egressIPs) {
	world, node := e.Outside.UDP(t, 0), e.Nodes[0]
	e.Outside.RouteTo(t, node)
	node.AppCtl(t, "dpctl/ct-set-limits", fmt.Sprintf("zone=%d,limit=1", firstZone))
	t.Cleanup(func() { node.AppCtl(t, "dpctl/ct-del-limits", fmt.Sprintf("zone=%d", firstZone)) })
	first := e.pod(0, 0).UDP(t, 0)
	e.mustTalk(t, first, world, firstIP())
	for _, pod := range []*datapath.Pod{e.pod(0, 0), e.pod(1, 0)} {
		pod.UDP(t, 0).MustNotReach(t, world.Addr(), world)
	}
	e.mustTalk(t, first, world, firstIP())
}

// testEgressIPCollision: a namespace gets another egress IP with the same zone. Packets of known connections have neither the earlier IP nor the node's as their source.
func testEgressIPCollision(t *testing.T, e *egressIPs) {
	world := e.Outside.UDP(t, 0)
	for _, pod := range []*datapath.Pod{e.pod(0, 0), e.pod(1, 0)} {
		client := pod.UDP(t, 0)
		e.mustTalk(t, client, world, firstIP())
		e.of[pod] = collidesIP()
		e.host(t, collidesIP(), e.Nodes[0])
		client.MustNotReach(t, world.Addr(), world)
		e.mustTalk(t, pod.UDP(t, 0), world, collidesIP())
	}
}

// testEgressIPEthernet: the Ethernet destination of a pod's frame selects no egress IP. The namespaces of two egress IPs have one VNID.
func testEgressIPEthernet(t *testing.T, e *egressIPs) {
	world := e.Outside.UDP(t, 0)
	for i, pod := range []*datapath.Pod{e.pod(0, 0), e.pod(1, 0)} {
		e.of[pod] = secondIP()
		e.host(t, secondIP(), e.Nodes[i])
		e.mustTalk(t, pod.UDP(t, 0), world, secondIP())
		without := e.pod(i, len(e.Nodes[i].Pods)-1)
		for _, sender := range []*datapath.Pod{pod, without} {
			tag := []byte(fmt.Sprintf("<%s in %d>", sender.Addr, i))
			send(t, sender, datapath.MAC(firstIP()), wire.TypeIPv4, wire.UDPPacket(netip.AddrPortFrom(sender.Addr, 5000), world.Addr(), tag))
			from, ok := world.Receive(t, tag, 500*time.Millisecond)
			if sender == pod && !ok || ok && from.Addr() != secondIP() {
				t.Errorf("a frame of %s has the source %s (it arrived: %t), want %s", sender.Addr, from.Addr(), ok, secondIP())
			}
		}
	}
}

// testEgressIPOutsideClient: a pod answers a client outside with its own address, and only that one.
func testEgressIPOutsideClient(t *testing.T, e *egressIPs) {
	e.vnid = 0 // in mode multitenant, hosts outside reach no other VNID
	e.apply(t)
	for i, node := range e.Nodes {
		e.Outside.RouteTo(t, node)
		client, other, server := e.Outside.UDP(t, 0), e.Outside.UDP(t, 0), e.pod(i, 0).UDP(t, 53)
		client.MustReach(t, server.Addr(), server)
		if from := server.MustReach(t, client.Addr(), client); from != server.Addr() {
			t.Errorf("the client is answered by %s, want %s", from, server.Addr())
		}
		listener := e.pod(i, 0).ListenTCP(t, 80)
		s := e.Outside.Dial(t, netip.AddrPortFrom(server.Addr().Addr(), 80), listener)
		for range 5 {
			s.MustPass(t)
		}
		e.mustTalk(t, server, other, firstIP())
		e.of[e.pod(i, 0)] = unhostedIP()
		e.apply(t)
		client.MustReach(t, server.Addr(), server)
		server.MustReach(t, client.Addr(), client)
		server.MustNotReach(t, other.Addr(), other)
		s.MustPass(t)
	}
}

// testEgressIPBalanced: with services in the switch, connections to an endpoint outside have the egress IP, and replies the service's address.
func testEgressIPBalanced(t *testing.T, e *egressIPs) {
	world := e.Outside.UDP(t, 0)
	e.balanced = &sdn.BalancedService{VNID: 0x20, Frontends: []sdn.Frontend{
		{Addr: vip(53).Addr(), Protocol: goovs.ProtocolUDPv4, Port: 53, Endpoints: []netip.AddrPort{world.Addr()}},
	}}
	e.apply(t)
	for _, pod := range []*datapath.Pod{e.pod(0, 0), e.pod(1, 0)} {
		client := pod.UDP(t, 0)
		from := client.MustReach(t, vip(53), world)
		if from.Addr() != firstIP() {
			t.Errorf("packets of %s have the source %s, want %s", pod.Addr, from, firstIP())
		}
		if from := world.MustReach(t, from, client); from != vip(53) {
			t.Errorf("%s is answered by %s, want %s", pod.Addr, from, vip(53))
		}
		e.mustTalk(t, client, world, firstIP())
	}
}
