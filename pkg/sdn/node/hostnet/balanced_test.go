package hostnet

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/coreos/go-iptables/iptables"
)

const nextHop = "169.254.0.11"

// newBalancedNetwork is a network whose bridge has the next hop's MAC, and sends packets with the next hop's address. All rp_filters are strict, but tun0's.
func newBalancedNetwork(t *testing.T, c FirewallConfig) (n network, here ns.NetNS) {
	n = newNetwork(t, c)
	syncTun0(t, balanced())
	sh(t, "sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.eth0.rp_filter=1")
	must(t, n.pods.Do(func(ns.NetNS) error {
		sh(t, "ip link set eth0 address 0a:58:a9:fe:00:0b; ip addr add "+nextHop+"/32 dev eth0")
		return nil
	}))
	here, err := ns.GetCurrentNS()
	must(t, err)
	t.Cleanup(func() { here.Close() })
	return n, here
}

// The node reaches another host through a service, and no host opens a connection to the next hop.
func TestBalancedServices_nodeToOtherHost(t *testing.T) {
	n, _ := newBalancedNetwork(t, balancedServices())
	must(t, n.outside.Do(func(ns.NetNS) error { sh(t, "ip route add "+nextHop+" via 192.0.2.10"); return nil }))
	node, server := udp(t, n.pods, nextHop+":6000"), udp(t, n.outside, "192.0.2.1:53")
	send(t, node, "192.0.2.1:53")
	from := sender(t, server)
	if from.Addr() != netip.MustParseAddr("192.0.2.10") {
		t.Errorf("other host: got a packet from %s, want 192.0.2.10", from)
	}
	send(t, udp(t, n.outside, "192.0.2.1:54"), nextHop+":6000")
	send(t, server, from.String())
	if from := sender(t, node); from != netip.MustParseAddrPort("192.0.2.1:53") {
		t.Errorf("node: got a packet from %s, want the reply from 192.0.2.1:53 only", from)
	}
}

// The node reaches itself through a service in each mode. A pod's packet that the switch translated is the same as a direct one.
func TestBalancedServices_hostAccess(t *testing.T) {
	for mode, accepted := range map[HostAccess]bool{HostAccessAll: true, HostAccessServices: false, HostAccessReplies: false} {
		t.Run(string(mode), func(t *testing.T) {
			c := balancedServices()
			c.HostAccess, c.NodeNetworks = mode, accessible(mode).NodeNetworks
			n, here := newBalancedNetwork(t, c)
			server, pod, node := udp(t, here, "192.0.2.10:6443"), udp(t, n.pods, "10.128.0.2:5000"), udp(t, n.pods, nextHop+":6000")
			const fromPod, fromNode = "10.128.0.2:5000", nextHop + ":6000"
			exchange := func(want ...string) {
				t.Helper()
				send(t, pod, "192.0.2.10:6443")
				send(t, node, "192.0.2.10:6443") // arrives after the pod's
				for _, w := range want {
					if got := sender(t, server); got != netip.MustParseAddrPort(w) {
						t.Fatalf("node: got a packet from %s, want one from %s", got, w)
					}
				}
				send(t, server, fromNode)
				if got := sender(t, node); got != netip.MustParseAddrPort("192.0.2.10:6443") {
					t.Errorf("got a reply from %s, want one from 192.0.2.10:6443", got)
				}
			}
			if accepted {
				exchange(fromPod, fromNode)
				return
			}
			exchange(fromNode)
			sh(t, "iptables -I INPUT -i tun0 -p udp --dport 6443 -j ACCEPT") // the node's own rule
			exchange(fromPod, fromNode)
		})
	}
}

// connects returns why TCP or UDP from an address can't reach another one.
func connects(t *testing.T, netns ns.NetNS, network, from, to string) error {
	t.Helper()
	return netns.Do(func(ns.NetNS) error {
		local := map[string]net.Addr{"tcp4": &net.TCPAddr{IP: net.ParseIP(from)}, "udp4": &net.UDPAddr{IP: net.ParseIP(from)}}[network]
		conn, err := (&net.Dialer{LocalAddr: local, Timeout: 30 * time.Second}).DialContext(t.Context(), network, to)
		if err != nil {
			return err
		}
		defer conn.Close()
		must(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
		if _, err := conn.Write([]byte("hello")); err != nil {
			return err
		}
		_, err = conn.Read(make([]byte, 100))
		return err
	})
}

// Connections of pods and of the node to a service without endpoints are refused at once. Packets of other hosts are dropped.
func TestBalancedServices_withoutEndpoints(t *testing.T) {
	n, _ := newBalancedNetwork(t, balancedServices())
	for _, client := range []string{"10.128.0.2", nextHop} {
		for _, network := range []string{"tcp4", "udp4"} {
			if err := connects(t, n.pods, network, client, "172.30.0.20:80"); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s from %s: got %v, want %v", network, client, err, syscall.ECONNREFUSED)
			}
		}
	}
	must(t, n.outside.Do(func(ns.NetNS) error { sh(t, "ip route add 172.30.0.0/16 via 192.0.2.10"); return nil }))
	rejected := icmp(t, "OutDestUnreachs")
	send(t, udp(t, n.outside, "192.0.2.1:5000"), "172.30.0.20:80")
	eventually(t, "the other host's packet is dropped", func() bool {
		return strings.TrimSpace(sh(t, `iptables -nvxL OVSDN-FORWARD | awk '$3 == "DROP" { print $1 }'`)) == "1"
	})
	if got := icmp(t, "OutDestUnreachs"); got != rejected {
		t.Errorf("got %s ICMP errors after the other host's packet, want %s", got, rejected)
	}
}

// On a kernel without REJECT these packets are dropped, until it has the target.
func TestBalancedServices_fallbackWithoutReject(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend, _ ns.NetNS) {
		f, r := b.firewall(t, balancedServices())
		client := &lacking{iptablesClient: r, word: "REJECT", err: exits(t, 2)}
		f.iptables = client
		const match = `-A OVSDN-FORWARD -d 172.30.0.0/16 -i tun0 -m comment --comment "to a service without endpoints" -j `
		for _, target := range []string{"DROP", "REJECT"} {
			syncFirewall(t, f)
			if rules := b.save(t); !strings.Contains(rules, match+target) || strings.Count(rules, match) != 1 {
				t.Errorf("got rules\n%s\nwant only %q", rules, match+target)
			}
			if changes := syncFirewall(t, f); len(changes) > 0 {
				t.Errorf("second Sync with %s: got changes %q, want none", target, changes)
			}
			client.err = nil
		}
	})
}

// No service leads to the VXLAN port of this node or another one.
func TestBalancedServices_VTEPAsEndpoint(t *testing.T) {
	n, here := newBalancedNetwork(t, balancedServices())
	sh(t, "iptables -t mangle -F OVSDN-GUARD-VXLAN; iptables -I INPUT -j ACCEPT; iptables -I FORWARD -j ACCEPT") // as on a kernel without sets
	vtep, node, pod := udp(t, here, "192.0.2.10:4789"), udp(t, n.pods, nextHop+":6000"), udp(t, n.pods, "10.128.0.2:5000")
	send(t, node, "192.0.2.1:4789")
	send(t, pod, "192.0.2.1:4789")
	eventually(t, "packets to another node's VTEP are dropped", func() bool { return dropped(t) == "0 0 1 0 1 0 0 0" })
	send(t, node, "192.0.2.10:4789")
	send(t, pod, "192.0.2.10:4789")
	send(t, udp(t, n.outside, "192.0.2.1:5001"), "192.0.2.10:4789") // a peer's own VXLAN
	if from := sender(t, vtep); from.Port() != 5001 {
		t.Errorf("VTEP: got a packet from %s, want one from port 5001 only", from)
	}
	eventually(t, "packets to the node's own VTEP are dropped", func() bool { return droppedIn(t, "OVSDN-GUARD-INPUT") == "2 0 0" })
}

// The limit of a pod does not apply to the node itself.
func TestBalancedServices_podLimit(t *testing.T) {
	const limit, packets = 20, 60
	c := balancedServices()
	c.PodConnections = limited(limit).PodConnections
	n, _ := newBalancedNetwork(t, c)
	if got := sendFromManyPorts(t, n, nextHop, packets); got <= limit {
		t.Errorf("got %d entries of the node, want more than %d", got, limit)
	}
	if got := sendFromManyPorts(t, n, "10.128.0.2", packets); got > limit {
		t.Errorf("got %d entries of the pod, want at most %d", got, limit)
	}
}

// A change between a service proxy on the host and the switch does not interrupt connections: after each run of iptables, those of the node and of a pod
// exchange packets.
func TestBalancedServices_change(t *testing.T) {
	for _, program := range []string{"iptables-nft", "iptables-legacy"} {
		t.Run(program, func(t *testing.T) {
			n, here := newBalancedNetwork(t, sourcesEvaluated()) // in nft's backend
			if program == "iptables-legacy" {
				sh(t, "nft flush ruleset; iptables-legacy --wait=60 -P FORWARD DROP")
			}
			ipt, err := iptables.New(iptables.Path(program), iptables.Timeout(lockWait))
			must(t, err)
			r := &recorder{iptablesClient: ipt}
			change := func(c FirewallConfig, tun0 Tun0Config) {
				f := &iptablesFirewall{iptables: r, firewallState: firewallState{rules: Rules(c), vteps: completeVTEPs()}}
				f.vteps.Allow(t.Context(), "outside", netip.MustParseAddr("192.0.2.1"))
				syncTun0(t, tun0)
				syncFirewall(t, f)
				if changes := syncFirewall(t, f); len(changes) > 0 {
					t.Errorf("second Sync: got changes %q, want none", changes)
				}
			}
			change(sourcesEvaluated(), node1())
			node, server := udp(t, here, "10.128.0.1:6000"), udp(t, n.pods, "10.128.0.3:8080")
			pod, outside := udp(t, n.pods, "10.128.0.2:5000"), udp(t, n.outside, "192.0.2.1:53")
			r.after = func() {
				send(t, node, "10.128.0.3:8080")
				send(t, server, sender(t, server).String())
				sender(t, node)
				send(t, pod, "192.0.2.1:53")
				send(t, outside, sender(t, outside).String())
				sender(t, pod)
			}
			for range 2 {
				r.writes = nil
				change(balancedServices(), balanced())
				r.after()
				wantState(t, balancedState())
				change(sourcesEvaluated(), node1())
				r.after()
				wantState(t, node1State())
				if len(r.writes) == 0 {
					t.Error("got no writes")
				}
			}
		})
	}
}
