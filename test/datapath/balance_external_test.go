package datapath_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	compiled "github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/datapath"
)

const (
	ownNodePort    = 30080
	ownNodePortUDP = 30053
)

// externalIP is an address outside of the cluster that a service has.
func externalIP() netip.Addr { return netip.MustParseAddr("198.51.100.10") }

// frontend returns a frontend of TCP, or of UDP for ports that end with 53. Without an address it is a node port.
func frontend(addr netip.Addr, port uint16, endpoints ...netip.AddrPort) compiled.Frontend {
	protocol := goovs.ProtocolTCPv4
	if port%100 == 53 {
		protocol = goovs.ProtocolUDPv4
	}
	kind := compiled.NodePort
	if addr.IsValid() {
		kind = compiled.ExternalIP
	}
	return compiled.Frontend{Kind: kind, Addr: addr, Protocol: protocol, Port: port, Endpoints: endpoints, Closed: true}
}

// testBalancedExternal: a pod reaches a service on an external IP and on node ports of its own node, and sees replies from these; the endpoint, here or on another node,
// sees the pod's address. In mode multitenant, another tenant's pod does not reach the service.
func testBalancedExternal(t *testing.T, b *balanced) {
	node, client, stranger := b.Nodes[0], b.pod(0, 0), b.pod(0, 2)
	for _, server := range []*datapath.Pod{client, b.pod(0, 1), b.pod(1, 0)} {
		endpoint := netip.AddrPortFrom(server.Addr, 8080)
		b.external = []compiled.Frontend{
			frontend(externalIP(), 80, endpoint), frontend(externalIP(), 53, endpoint),
			frontend(netip.Addr{}, ownNodePort, endpoint), frontend(netip.Addr{}, ownNodePortUDP, endpoint),
		}
		b.pods[stranger] = 11
		for _, evaluated := range []bool{false, true} {
			b.policies[client], b.policies[server] = compiled.PodPolicies{Evaluated: evaluated}, compiled.PodPolicies{Evaluated: evaluated}
			b.install(t)
			source := client.Addr
			if server == client {
				source = netip.MustParseAddr(hairpin)
			}
			l := server.ListenTCP(t, 8080)
			serving := server.UDP(t, 8080)
			for _, addr := range []netip.Addr{externalIP(), node.VTEP, node.Addr} {
				tcp, udp := uint16(ownNodePort), uint16(ownNodePortUDP)
				if addr == externalIP() {
					tcp, udp = 80, 53
				}
				s := client.Dial(t, netip.AddrPortFrom(addr, tcp), l)
				s.MustPass(t)
				asking, to := client.UDP(t, 0), netip.AddrPortFrom(addr, udp)
				for _, payload := range []func() []byte{asking.Message, asking.Message, asking.Large} { // of a new connection, and two of a known one
					from := asking.MustReachWith(t, to, serving, payload)
					if from.Addr() != source {
						t.Errorf("%s to %s: source at the endpoint: got %s, want %s", client.Addr, to, from, source)
					}
					if from := serving.MustReach(t, from, asking); from != to {
						t.Errorf("%s to %s: source of the reply: got %s, want %s", client.Addr, to, from, to)
					}
				}
				if b.mode == config.ModeMultitenant {
					asking := stranger.UDP(t, 0)
					asking.MustNotReach(t, to, serving)
				}
			}
			serving.Close()
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// testBalancedOutsideAffinity: with session affinity, clients outside reach the endpoints of the frontend for them, and pods those of the cluster IP.
func testBalancedOutsideAffinity(t *testing.T, b *balanced) {
	local, remote := b.pod(0, 1), b.pod(1, 0)
	b.open(t)
	b.opened, b.affinity = false, 60
	b.endpoints = []netip.AddrPort{netip.AddrPortFrom(remote.Addr, 8080)}
	outside := b.service().Frontends
	for i := range outside {
		outside[i].Kind, outside[i].Endpoints = compiled.FromOutside, []netip.AddrPort{netip.AddrPortFrom(local.Addr, 8080)}
	}
	b.external = outside
	b.install(t)
	toLocal, toRemote := local.ListenTCP(t, 8080), remote.ListenTCP(t, 8080)
	for range 3 {
		s := b.Outside.Dial(t, netip.AddrPortFrom(b.Nodes[0].VTEP, ownNodePort), toLocal)
		s.MustPass(t)
		s = b.pod(0, 0).Dial(t, vip(80), toRemote)
		s.MustPass(t)
	}
}

// testBalancedOtherPorts: another port of the node leads to the host, and clients that the sources do not include are dropped.
func testBalancedOtherPorts(t *testing.T, b *balanced) {
	node, client := b.Nodes[0], b.pod(0, 0)
	b.external = []compiled.Frontend{frontend(netip.Addr{}, ownNodePort, netip.AddrPortFrom(b.pod(0, 1).Addr, 8080))}
	b.install(t)
	host := datapath.Host{NS: node.NS, Addr: node.VTEP}
	s := client.Dial(t, netip.AddrPortFrom(node.VTEP, 8080), host.ListenTCP(t, 8080))
	s.MustPass(t)
	asking, serving := client.UDP(t, 0), host.UDP(t, 8080)
	asking.MustReach(t, serving.Addr(), serving)
	asking.MustReachWith(t, serving.Addr(), serving, asking.Large)
	limited := frontend(externalIP(), 80, netip.AddrPortFrom(b.pod(0, 1).Addr, 8080))
	limited.Sources = []netip.Prefix{netip.PrefixFrom(b.pod(0, 1).Addr, 32)}
	b.external = []compiled.Frontend{limited}
	b.install(t)
	err := dialError(t, &client.Host, netip.AddrPortFrom(externalIP(), 80), time.Second)
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("connection of a client that is no source: got %v, want a timeout", err)
	}
}

// testBalancedNodePortOfEndpoint: a packet that a node port has sent to an endpoint on the node is not translated again, although another service has that endpoint's
// port as its node port.
func testBalancedNodePortOfEndpoint(t *testing.T, b *balanced) {
	node, client, other := b.Nodes[0], b.pod(0, 0), b.pod(0, 1)
	host := datapath.Host{NS: node.NS, Addr: node.VTEP}
	const first = ownNodePort + 1
	b.external = []compiled.Frontend{
		frontend(netip.Addr{}, first, netip.AddrPortFrom(node.VTEP, ownNodePort)),
		frontend(netip.Addr{}, ownNodePort, netip.AddrPortFrom(other.Addr, 8080)),
	}
	b.install(t)
	onHost, onPod := host.ListenTCP(t, ownNodePort), other.ListenTCP(t, 8080)
	for _, to := range []netip.Addr{node.VTEP, node.Addr} {
		s := client.Dial(t, netip.AddrPortFrom(to, first), onHost)
		s.MustPass(t)
		s.MustPass(t)
		s = client.Dial(t, netip.AddrPortFrom(to, ownNodePort), onPod)
		s.MustPass(t)
	}
}

// routeServices gives the nodes the route to services that the agent sets.
func (c *cluster) routeServices(t *testing.T) {
	t.Helper()
	hop := compiled.HairpinNode().String()
	for _, node := range c.Nodes {
		node.Sh(t, "ip route add "+hop+" dev tun0", fmt.Sprintf("ip neigh add %s lladdr %s dev tun0", hop, config.MAC(compiled.HairpinNode())),
			"ip route replace "+datapath.ServiceNetwork+" via "+hop+" dev tun0 onlink",
			fmt.Sprintf("ip route replace %s via %s dev tun0 onlink", compiled.HairpinOutside(), hop),
			"nft add table ip leaving", "nft add chain ip leaving post '{ type nat hook postrouting priority srcnat; }'",
			fmt.Sprintf("nft add rule ip leaving post ip saddr '{ %s, %s, %s }' oifname != tun0 masquerade", hop, compiled.HairpinOutside(), datapath.ClusterNetwork),
			"nft add table ip refuse", "nft add chain ip refuse forward '{ type filter hook forward priority 0; }'",
			"nft add rule ip refuse forward ip daddr "+datapath.ServiceNetwork+" oifname tun0 reject")
	}
}

// translateOutside gives the nodes' hosts the rules by which they send node ports and external addresses to the service's cluster IP, as package servicenat does.
func (c *cluster) translateOutside(t *testing.T) {
	t.Helper()
	for _, node := range c.Nodes {
		node.Sh(t, "nft add table ip services", "nft add chain ip services pre '{ type nat hook prerouting priority dstnat; }'",
			"nft add chain ip services marks '{ type filter hook forward priority mangle; }'",
			fmt.Sprintf("nft add rule ip services pre iifname != tun0 ip daddr '{ %s, %s }' tcp dport '{ %d, 80 }' dnat to %s", node.VTEP, externalIP(), ownNodePort, vip(80)),
			fmt.Sprintf("nft add rule ip services pre iifname != tun0 ip daddr '{ %s, %s }' udp dport '{ %d, 53 }' dnat to %s", node.VTEP, externalIP(), ownNodePortUDP, vip(53)),
			fmt.Sprintf("nft add rule ip services marks iifname != tun0 oifname tun0 ct status dnat ip daddr %s ip dscp set %d", datapath.ServiceNetwork, compiled.ForwardedDSCP),
			"nft insert rule ip refuse forward ct status dnat accept")
	}
}

// open opens the service to hosts outside, until the test ends.
func (b *balanced) open(t *testing.T) {
	t.Helper()
	b.translateOutside(t)
	t.Cleanup(func() {
		for _, n := range b.Nodes {
			n.Sh(t, "nft delete table ip services")
		}
	})
	b.Outside.Sh(t, fmt.Sprintf("ip route replace %s via %s", externalIP(), b.Nodes[0].VTEP))
	b.opened = true
}

// testBalancedReplies: pods answer clients outside whatever egress firewall they have. The answer opens no connection, of which packets of the client to the pod's own
// address would be replies.
func testBalancedReplies(t *testing.T, b *balanced) {
	node, pod := b.Nodes[0], b.pod(0, 0)
	b.open(t)
	b.endpoints = []netip.AddrPort{netip.AddrPortFrom(pod.Addr, 8080)}
	for _, denied := range []bool{false, true} {
		b.denied = denied
		for _, evaluated := range []bool{false, true} {
			b.policies[pod] = compiled.PodPolicies{Evaluated: evaluated}
			b.install(t)
			asking, serving := b.Outside.UDP(t, 0), pod.UDP(t, 8080)
			from := asking.MustReach(t, netip.AddrPortFrom(node.VTEP, ownNodePortUDP), serving)
			for range 2 {
				serving.MustReach(t, from, asking)
			}
			opened := fmt.Sprintf("orig=(src=%s,dst=%s,", pod.Addr, b.Outside.Addr)
			if entries := node.AppCtl(t, "dpctl/dump-conntrack"); strings.Contains(entries, opened) {
				t.Errorf("firewall: %t, policies: %t: got a connection that the pod opened to the client:\n%s", denied, evaluated, entries)
			}
			if denied {
				other := b.Outside.UDP(t, 0)
				serving.MustNotReach(t, other.Addr(), other)
			}
			serving.Close()
		}
	}
}

// testBalancedICMPErrors: the sender of UDP through a service gets the ICMP error of the other end, at which no socket has the port: a client from an endpoint, and an
// endpoint from a client.
func testBalancedICMPErrors(t *testing.T, b *balanced) {
	node := b.Nodes[0]
	b.open(t)
	nodePort := netip.AddrPortFrom(node.VTEP, ownNodePortUDP)
	for name, server := range map[string]datapath.Host{
		"pod of the node": b.pod(0, 1).Host, "pod of another node": b.pod(1, 0).Host, "host network": {NS: node.NS, Addr: node.VTEP}, "tun0": node.Host,
	} {
		b.endpoints = []netip.AddrPort{netip.AddrPortFrom(server.Addr, 8080)}
		b.install(t)
		for from, client := range map[string]struct {
			host *datapath.Host
			to   netip.AddrPort
		}{"pod": {&b.pod(0, 0).Host, vip(53)}, "node": {&node.Host, vip(53)}, "host outside": {b.Outside, nodePort}} {
			if err := udpError(t, client.host, netip.AddrPort{}, client.to); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s to %s: got %v, want the endpoint's ICMP error", from, name, err)
			}
			asking, serving := client.host.UDP(t, 0), server.UDP(t, 8080)
			answered := asking.MustReach(t, client.to, serving)
			asking.Close()
			serving.Close()
			if err := udpError(t, &server, netip.AddrPortFrom(server.Addr, 8080), answered); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s to %s: got %v, want the client's ICMP error", from, name, err)
			}
		}
	}
}

// testBalancedFromOutside: a host outside reaches a service on a node port and on an external IP that it routes to the node. A pod of the node sees the host's address,
// others another source of the node. In mode multitenant the service of a tenant is reached, too.
func testBalancedFromOutside(t *testing.T, b *balanced) {
	node := b.Nodes[0]
	b.open(t)
	for _, test := range []struct {
		name   string
		server datapath.Host
		source netip.Addr
	}{
		{"pod of the node", b.pod(0, 0).Host, b.Outside.Addr},
		{"pod of another node", b.pod(1, 0).Host, node.Addr},
		{"host network of the node", datapath.Host{NS: node.NS, Addr: node.VTEP}, compiled.HairpinOutside()},
		{"address of tun0", datapath.Host{NS: node.NS, Addr: node.Addr}, compiled.HairpinOutside()},
		{"host outside", datapath.Host{NS: b.Nodes[1].NS, Addr: b.Nodes[1].VTEP}, node.VTEP},
	} {
		t.Run(test.name, func(t *testing.T) {
			// A client that gets the port of one of a previous case would continue that one's connection to another endpoint.
			node.AppCtl(t, "dpctl/flush-conntrack")
			for _, evaluated := range []bool{false, true} {
				b.policies[b.pod(0, 0)], b.policies[b.pod(1, 0)] = compiled.PodPolicies{Evaluated: evaluated}, compiled.PodPolicies{Evaluated: evaluated}
				b.endpoints = []netip.AddrPort{netip.AddrPortFrom(test.server.Addr, 8080)}
				b.install(t)
				l, serving := test.server.ListenTCP(t, 8080), test.server.UDP(t, 8080)
				for _, to := range []netip.AddrPort{netip.AddrPortFrom(node.VTEP, ownNodePort), netip.AddrPortFrom(externalIP(), 80)} {
					s := b.Outside.Dial(t, to, l)
					s.MustPass(t)
					s.MustPass(t)
				}
				for _, to := range []netip.AddrPort{netip.AddrPortFrom(node.VTEP, ownNodePortUDP), netip.AddrPortFrom(externalIP(), 53)} {
					asking := b.Outside.UDP(t, 0)
					for _, payload := range []func() []byte{asking.Message, asking.Message, asking.Large} {
						from := asking.MustReachWith(t, to, serving, payload)
						if from.Addr() != test.source {
							t.Errorf("to %s: source at the endpoint: got %s, want %s", to, from, test.source)
						}
						if from := serving.MustReachWith(t, from, asking, payload); from != to {
							t.Errorf("to %s: source of the reply: got %s, want %s", to, from, to)
						}
					}
				}
				serving.Close()
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	// The node's own connections from ports below those of masqueraded ones pass the same tables.
	server := b.pod(1, 0)
	serving, asking := server.UDP(t, 8080), node.UDP(t, 5353)
	asking.MustReach(t, serving.Addr(), serving)
	serving.MustReach(t, netip.AddrPortFrom(node.Addr, 5353), asking)
}
