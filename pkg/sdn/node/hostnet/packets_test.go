package hostnet

import (
	"context"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/await"
)

// network is a node with address 192.0.2.10 after Sync, pods 10.128.0.2 and 10.128.0.3, and another host,
// 192.0.2.1. tun0 is a veth here, and the pods share one namespace: the test has no bridge.
type network struct {
	pods, outside ns.NetNS
	firewall      *iptablesFirewall
}

func newNetwork(t *testing.T, c FirewallConfig) network {
	inNetNS(t)
	return newNetworkHere(t, c)
}

// newNetworkHere is newNetwork in the current network namespace, which can have rules of the host.
func newNetworkHere(t *testing.T, c FirewallConfig) network {
	n := newHosts(t)
	// The host drops by default.
	sh(t, "iptables -P FORWARD DROP; iptables -P INPUT DROP")
	n.firewall = newFirewall(t, c)
	n.firewall.vteps.Allow(t.Context(), "outside", netip.MustParseAddr("192.0.2.1"))
	syncFirewall(t, n.firewall)
	return n
}

// newHosts is newNetworkHere without a firewall.
func newHosts(t *testing.T) network {
	t.Helper()
	n := network{pods: newNetNS(t), outside: newNetNS(t)}
	veth := func(name string, mac net.HardwareAddr, peer ns.NetNS) {
		link := &netlink.Veth{
			LinkAttrs:     netlink.LinkAttrs{Name: name, HardwareAddr: mac},
			PeerName:      "eth0",
			PeerNamespace: netlink.NsFd(int(peer.Fd())),
		}
		must(t, netlink.LinkAdd(link))
	}
	veth(Tun0Name, config.MAC(netip.MustParseAddr("10.128.0.1")), n.pods)
	veth("eth0", nil, n.outside)
	sh(t, "ip addr add 192.0.2.10/24 dev eth0; ip link set eth0 up")
	must(t, n.outside.Do(func(ns.NetNS) error {
		sh(t, "ip addr add 192.0.2.1/24 dev eth0; ip link set eth0 up")
		return nil
	}))
	must(t, n.pods.Do(func(ns.NetNS) error {
		sh(t, "ip addr add 10.128.0.2/14 dev eth0; ip addr add 10.128.0.3/32 dev eth0; ip link set eth0 up; ip route add default via 10.128.0.1")
		return nil
	}))
	syncTun0(t, node1())
	return n
}

// udp opens a socket in the namespace. A process that a parallel test forks has a closed socket of this one, and so its port, until it executes its program.
func udp(t *testing.T, netns ns.NetNS, addr string) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	await.OK(t, await.SyncTime, func(context.Context) error {
		return netns.Do(func(ns.NetNS) (err error) {
			conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr)))
			return err
		})
	})
	t.Cleanup(func() { conn.Close() })
	must(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	return conn
}

func send(t *testing.T, from *net.UDPConn, to string) {
	t.Helper()
	_, err := from.WriteToUDPAddrPort([]byte("hello"), netip.MustParseAddrPort(to))
	must(t, err)
}

// sender waits for a packet and returns its source.
func sender(t *testing.T, conn *net.UDPConn) netip.AddrPort {
	t.Helper()
	_, from, err := conn.ReadFromUDPAddrPort(make([]byte, 100))
	must(t, err)
	return from
}

func TestPodToOtherHostIsMasqueraded(t *testing.T) {
	n := newNetwork(t, openShift())
	pod, server := udp(t, n.pods, "10.128.0.2:5000"), udp(t, n.outside, "192.0.2.1:53")
	send(t, pod, "192.0.2.1:53")
	from := sender(t, server)
	if from.Addr() != netip.MustParseAddr("192.0.2.10") {
		t.Errorf("other host: got a packet from %s, want 192.0.2.10", from)
	}
	send(t, server, from.String())
	if from := sender(t, pod); from != netip.MustParseAddrPort("192.0.2.1:53") {
		t.Errorf("pod: got a reply from %s", from)
	}
}

func TestPodReachesItsNode(t *testing.T) {
	n := newNetwork(t, openShift())
	here, err := ns.GetCurrentNS()
	must(t, err)
	defer here.Close()
	pod, kubelet := udp(t, n.pods, "10.128.0.2:5000"), udp(t, here, "192.0.2.10:10250")
	send(t, pod, "192.0.2.10:10250")
	if from := sender(t, kubelet); from.Addr() != netip.MustParseAddr("10.128.0.2") {
		t.Errorf("node: got a packet from %s, want 10.128.0.2", from)
	}
}

func TestServiceAnswersThroughTheNode(t *testing.T) {
	c := openShift()
	c.MasqueradeServices = true
	n := newNetwork(t, c)
	sh(t, "iptables -t nat -A PREROUTING -d 172.30.0.10 -p udp --dport 53 -j DNAT --to-destination 10.128.0.3:5353")
	pod, endpoint := udp(t, n.pods, "10.128.0.2:5000"), udp(t, n.pods, "10.128.0.3:5353")
	send(t, pod, "172.30.0.10:53")
	from := sender(t, endpoint)
	if from.Addr() != netip.MustParseAddr("10.128.0.1") {
		t.Errorf("endpoint: got a packet from %s, want 10.128.0.1", from)
	}
	send(t, endpoint, from.String())
	if from := sender(t, pod); from != netip.MustParseAddrPort("172.30.0.10:53") {
		t.Errorf("pod: got a reply from %s", from)
	}
	// The packet enters and leaves by tun0, for which the kernel could send a redirect.
	if got := icmp(t, "OutRedirects"); got != "0" {
		t.Errorf("got %s ICMP redirects, want 0", got)
	}
}

func TestServiceWithVTEPAsEndpointIsDropped(t *testing.T) {
	n := newNetwork(t, openShift())
	// A service and a node port have a peer's VTEP as their endpoint. Table filter accepts everything, as after rules of kube-proxy.
	sh(t, `iptables -t nat -A PREROUTING -d 172.30.0.10 -p udp --dport 53 -j DNAT --to-destination 192.0.2.1:4789
		iptables -t nat -A PREROUTING -d 192.0.2.10 -p udp --dport 30053 -j DNAT --to-destination 192.0.2.1:4789
		iptables -t nat -A POSTROUTING -d 192.0.2.1 -p udp --dport 4789 -j MASQUERADE
		iptables -I FORWARD -j ACCEPT`)
	pod, outside := udp(t, n.pods, "10.128.0.2:5000"), udp(t, n.outside, "192.0.2.1:5000")
	send(t, pod, "172.30.0.10:53")
	eventually(t, "the pod's packet is dropped", func() bool { return dropped(t) == "1 0 0 0" })
	send(t, outside, "192.0.2.10:30053")
	eventually(t, "the other host's packet is dropped", func() bool { return dropped(t) == "1 1 0 0" })
}

// A node port's endpoint is this node's own VTEP: Open vSwitch would receive the translated packet with the client's node as the tunnel
// source.
func TestTranslatedVXLANDoesNotReachOwnVTEP(t *testing.T) {
	n := newNetwork(t, openShift())
	sh(t, `iptables -t nat -A PREROUTING -d 192.0.2.10 -p udp --dport 30053 -j DNAT --to-destination 192.0.2.10:4789
		iptables -t nat -A PREROUTING -d 192.0.2.10 -p udp --dport 30054 -j REDIRECT --to-ports 4789
		iptables -I INPUT -j ACCEPT`)
	here, err := ns.GetCurrentNS()
	must(t, err)
	defer here.Close()
	vtep, peer := udp(t, here, "192.0.2.10:4789"), udp(t, n.outside, "192.0.2.1:5000")
	for _, port := range []string{"30053", "30054"} {
		send(t, peer, "192.0.2.10:"+port)
	}
	eventually(t, "both translated packets are dropped", func() bool { return droppedIn(t, "OVSDN-GUARD-INPUT") == "0 2 0" })
	send(t, udp(t, n.outside, "192.0.2.1:5001"), "192.0.2.10:4789") // a peer's own VXLAN
	if from := sender(t, vtep); from.Port() != 5001 {
		t.Errorf("VTEP: got a packet from %s, want one from port 5001 only", from)
	}
}

// dropped returns the packet counters of the DROP rules of the guard chain.
func dropped(t *testing.T) string {
	t.Helper()
	return droppedIn(t, "OVSDN-GUARD")
}

// droppedIn returns the packet counters of the DROP rules of a mangle chain.
func droppedIn(t *testing.T, chain string) string {
	t.Helper()
	return strings.Join(strings.Fields(sh(t, `iptables -t mangle -nvxL `+chain+` | awk '$3 == "DROP" { print $1 }'`)), " ")
}

// icmp returns one of the namespace's ICMP counters.
func icmp(t *testing.T, name string) string {
	t.Helper()
	snmp, err := os.ReadFile("/proc/thread-self/net/snmp")
	must(t, err)
	var names []string
	for line := range strings.Lines(string(snmp)) {
		f := strings.Fields(line)
		if f[0] != "Icmp:" {
			continue
		}
		if names == nil {
			names = f
			continue
		}
		for i, n := range names {
			if n == name {
				return f[i]
			}
		}
	}
	t.Fatalf("no ICMP counter %s in %s", name, snmp)
	return ""
}

// A reply to a pod through a node port has the node's address as its source. It is marked, unlike packets of the node itself.
func TestNodePortReplyIsMarked(t *testing.T) {
	n := newNetwork(t, sourcesEvaluated())
	sh(t, `iptables -t nat -A PREROUTING -d 192.0.2.10 -p udp --dport 30053 -j DNAT --to-destination 10.128.0.3:5353
		iptables -t nat -I POSTROUTING -d 10.128.0.3 -p udp --dport 5353 -j MASQUERADE`)
	count := func(what string) (packets string) {
		must(t, n.pods.Do(func(ns.NetNS) error {
			packets = strings.TrimSpace(sh(t, `iptables -t mangle -nvxL PREROUTING | awk '/`+what+`/ { print $1 }'`))
			return nil
		}))
		return packets
	}
	must(t, n.pods.Do(func(ns.NetNS) error {
		sh(t, `iptables -t mangle -A PREROUTING -d 10.128.0.3 -m dscp ! --dscp 0x3e -m comment --comment request
			iptables -t mangle -A PREROUTING -d 10.128.0.2 -m dscp --dscp 0x3e -m comment --comment reply`)
		return nil
	}))
	pod, endpoint := udp(t, n.pods, "10.128.0.2:5000"), udp(t, n.pods, "10.128.0.3:5353")
	send(t, pod, "192.0.2.10:30053")
	from := sender(t, endpoint)
	send(t, endpoint, from.String())
	if from := sender(t, pod); from != netip.MustParseAddrPort("192.0.2.10:30053") {
		t.Errorf("pod: got a reply from %s", from)
	}
	if requests, replies := count("request"), count("reply"); requests != "1" || replies != "1" {
		t.Errorf("got %s requests without DSCP 62 and %s replies with it, want 1 and 1", requests, replies)
	}
}

// A packet of an egress IP to another address of the node than its VTEP is masqueraded by kube-proxy. Without a mark, it would be a packet of the node itself, which
// policies and VNIDs allow, or, with a DSCP that the pod has set, one of the target to itself.
func TestEgressIPThroughNodePortIsMarked(t *testing.T) {
	several := sourcesEvaluated()
	several.ClusterNetworks = prefixes("10.128.0.0/14", "10.64.0.0/16")
	for name, c := range map[string]FirewallConfig{"one network": sourcesEvaluated(), "several networks": several, "services balanced": balancedServices()} {
		t.Run(name, func(t *testing.T) {
			n, _ := newEgressNetwork(t, c)
			sh(t, `ip addr add 198.51.100.1/32 dev eth0
				iptables -t nat -A PREROUTING -d 198.51.100.1 -p udp --dport 30053 -j DNAT --to-destination 10.128.0.3:5353
				iptables -t nat -I POSTROUTING -d 10.128.0.3 -p udp --dport 5353 -j MASQUERADE`)
			must(t, n.pods.Do(func(ns.NetNS) error {
				sh(t, "iptables -t mangle -A PREROUTING -d 10.128.0.3 -p udp --dport 5353 -m dscp ! --dscp 0x3e -j DROP")
				return nil
			}))
			client, endpoint := udp(t, n.pods, egressIP+":5000"), udp(t, n.pods, "10.128.0.3:5353")
			for _, tos := range []int{0, 0x3d << 2, 0x3f << 2} {
				setTOS(t, client, tos)
				must(t, endpoint.SetDeadline(time.Now().Add(30*time.Second)))
				send(t, client, "198.51.100.1:30053")
				if from := sender(t, endpoint); from.Addr() != netip.MustParseAddr("10.128.0.1") {
					t.Errorf("TOS %#x: got a packet from %s, want 10.128.0.1", tos, from)
				}
			}
		})
	}
}

func setTOS(t *testing.T, conn *net.UDPConn, tos int) {
	t.Helper()
	raw, err := conn.SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TOS, tos) }))
	must(t, err)
}
