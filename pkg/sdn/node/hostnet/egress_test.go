package hostnet

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// egressIP is an egress IP that the node of newEgressNetwork hosts.
const egressIP = "192.0.2.50"

// newEgressNetwork is newNetwork with an egress IP in the namespace of pods, where the switch would translate to it.
func newEgressNetwork(t *testing.T, c FirewallConfig) (n network, here ns.NetNS) {
	t.Helper()
	n = newNetwork(t, c)
	here, err := ns.GetCurrentNS()
	must(t, err)
	t.Cleanup(func() { here.Close() })
	addr := netip.MustParseAddr(egressIP)
	must(t, EgressSet{}.Add(t.Context(), addr))
	sh(t, fmt.Sprintf("ip route add %s dev tun0 proto %d; ip neigh add proxy %[1]s dev eth0; sysctl -qw net.ipv4.neigh.eth0.proxy_delay=0", egressIP, EgressRouteProtocol))
	must(t, n.pods.Do(func(ns.NetNS) error { sh(t, "ip addr add "+egressIP+"/32 dev eth0"); return nil }))
	return n, here
}

// Packets of an egress IP are forwarded unchanged, and replies to it. Only new connections to an egress IP that the host does not host are dropped.
func TestEgressIPs_packets(t *testing.T) {
	for name, c := range map[string]FirewallConfig{
		"sources not evaluated": openShift(), "sources evaluated": sourcesEvaluated(), "services balanced": balancedServices(), "restricted": accessible(HostAccessReplies),
	} {
		t.Run(name, func(t *testing.T) {
			n, _ := newEgressNetwork(t, c)
			// kube-proxy drops packets that conntrack does not know, and another program masquerades.
			sh(t, "iptables -I FORWARD -m conntrack --ctstate INVALID -j DROP; iptables -t nat -A POSTROUTING -o eth0 -j MASQUERADE; conntrack -F 2>/dev/null")
			pod, server := udp(t, n.pods, egressIP+":5000"), udp(t, n.outside, "192.0.2.1:53")
			for range 2 {
				send(t, pod, "192.0.2.1:53")
				if from := sender(t, server); from.String() != egressIP+":5000" {
					t.Errorf("other host: got a packet from %s, want %s:5000", from, egressIP)
				}
				send(t, server, egressIP+":5000")
				if from := sender(t, pod); from.String() != "192.0.2.1:53" {
					t.Errorf("egress IP: got a reply from %s", from)
				}
			}
			if got := sh(t, "conntrack -L 2>/dev/null"); strings.Contains(got, egressIP) {
				t.Errorf("conntrack entries: got\n%s\nwant none of %s", got, egressIP)
			}
		})
	}
}

// On a kernel without sets, conntrack tracks the packets of egress IPs, and replies are accepted by their state.
func TestEgressIPs_withoutSets(t *testing.T) {
	n := newNetwork(t, openShift())
	sh(t, fmt.Sprintf("ip route add %s dev tun0 proto %d; ip neigh add proxy %[1]s dev eth0", egressIP, EgressRouteProtocol))
	must(t, n.pods.Do(func(ns.NetNS) error { sh(t, "ip addr add "+egressIP+"/32 dev eth0"); return nil }))
	for _, c := range egressChains() {
		sh(t, fmt.Sprintf("iptables -t %s -F %s", c.Table, c.Name))
		if c.Table == tableFilter {
			for _, r := range c.Fallbacks[0] {
				sh(t, "iptables -A "+c.Name+" "+r.String())
			}
		}
	}
	pod, server := udp(t, n.pods, egressIP+":5000"), udp(t, n.outside, "192.0.2.1:53")
	send(t, udp(t, n.outside, "192.0.2.1:54"), egressIP+":5000") // not a reply
	send(t, pod, "192.0.2.1:53")
	if from := sender(t, server); from.String() != egressIP+":5000" {
		t.Errorf("other host: got a packet from %s, want %s:5000", from, egressIP)
	}
	_, err := server.WriteToUDPAddrPort([]byte("reply"), netip.MustParseAddrPort(egressIP+":5000"))
	must(t, err)
	b := make([]byte, 100)
	length, _, err := pod.ReadFromUDPAddrPort(b)
	must(t, err)
	if got := string(b[:length]); got != "reply" {
		t.Errorf("egress IP: got %q, want only the reply", got)
	}
}

// On a kernel or an iptables without the match, the fallback rules are installed until it has the match.
func TestEgressIPs_fallback(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend, _ ns.NetNS) {
		f, r := b.firewall(t, openShift())
		client := &lacking{iptablesClient: r, word: egressSet, err: exits(t, 2)}
		f.iptables = client
		syncFirewall(t, f)
		if rules := b.save(t); strings.Contains(rules, "--match-set "+egressSet) || !strings.Contains(rules, "-A OVSDN-EGRESS -i tun0 ! -o tun0 -m comment") {
			t.Errorf("got rules\n%s\nwant those without the set", rules)
		}
		if changes := syncFirewall(t, f); len(changes) > 0 {
			t.Errorf("second Sync: got changes %q, want none", changes)
		}
		if got := f.Skipped(); len(got) != 1 || got[0].Feature != FeatureEgressNotrack {
			t.Errorf("Skipped: got %v, want %s", got, FeatureEgressNotrack)
		}
		client.err = nil
		syncFirewall(t, f)
		if rules := b.save(t); strings.Count(rules, "--match-set "+egressSet) != 4 || len(f.Skipped()) > 0 {
			t.Errorf("got rules\n%s\nand skipped %v, want four with the set, and none skipped", rules, f.Skipped())
		}
	})
}

// VXLAN with an egress IP as its source reaches no VTEP: neither another node's nor this node's, whole or in fragments, and also if table filter accepts all.
func TestEgressIPs_VXLAN(t *testing.T) {
	n, here := newEgressNetwork(t, openShift())
	sh(t, "iptables -t mangle -F OVSDN-GUARD-VXLAN; iptables -I INPUT -j ACCEPT; iptables -I FORWARD -j ACCEPT") // as on a kernel without sets
	vtep, peer := udp(t, here, "192.0.2.10:4789"), udp(t, n.outside, "192.0.2.1:4789")
	pod := udp(t, n.pods, egressIP+":5000")
	for _, size := range []int{100, 4000} {
		for _, to := range []string{"192.0.2.1:4789", "192.0.2.10:4789"} {
			_, err := pod.WriteToUDPAddrPort(make([]byte, size), netip.MustParseAddrPort(to))
			must(t, err)
		}
	}
	// Packets that follow show that these were dropped.
	send(t, udp(t, n.outside, "192.0.2.1:5001"), "192.0.2.10:4789")
	if from := sender(t, vtep); from.Port() != 5001 {
		t.Errorf("VTEP of the node: got a packet from %s, want one from port 5001 only", from)
	}
	send(t, vtep, "192.0.2.1:4789")
	if from := sender(t, peer); from.Port() != 4789 {
		t.Errorf("VTEP of the other node: got a packet from %s, want one from port 4789 only", from)
	}
}

// An ICMP error with an egress IP as its source does not change the routes of this node or of another one.
func TestEgressIPs_icmpErrors(t *testing.T) {
	n, _ := newEgressNetwork(t, openShift())
	sh(t, "iptables -I INPUT -i eth0 -p icmp -j ACCEPT")
	node, peer := netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("192.0.2.1")
	var seen net.PacketConn
	must(t, n.outside.Do(func(ns.NetNS) (err error) { seen, err = net.ListenPacket("ip4:icmp", peer.String()); return err }))
	defer seen.Close()
	must(t, n.pods.Do(func(ns.NetNS) error {
		conn, err := net.ListenPacket("ip4:icmp", egressIP)
		if err != nil {
			return err
		}
		defer conn.Close()
		for _, to := range []netip.Addr{node, peer} {
			if _, err := conn.WriteTo(packetTooBig(600, to, peer), &net.IPAddr{IP: to.AsSlice()}); err != nil {
				return err
			}
		}
		return nil
	}))
	eventually(t, "the error to the other node is dropped", func() bool { return dropped(t) == "0 0 0 1" })
	eventually(t, "the error to this node is dropped", func() bool { return droppedIn(t, "OVSDN-GUARD-INPUT") == "0 0 1" })
	if got := sh(t, "ip route get "+peer.String()); strings.Contains(got, "mtu 600") {
		t.Errorf("route to the other node: got %s, want no MTU", got)
	}
	// Echo requests pass, and their replies.
	must(t, n.pods.Do(func(ns.NetNS) error { sh(t, "ping -q -c1 -W5 -I "+egressIP+" 192.0.2.1"); return nil }))
}

// A pod reaches ports of the node that hosts its egress IP by the rules of HostAccess, which need the connection's state.
func TestEgressIPs_nodeItself(t *testing.T) {
	n, here := newEgressNetwork(t, accessible(HostAccessReplies))
	pod, program := udp(t, n.pods, egressIP+":5000"), udp(t, here, "192.0.2.10:9100")
	send(t, pod, "192.0.2.10:9100")
	send(t, program, egressIP+":5000") // the node opens a connection
	sender(t, pod)
	eventually(t, "the pod's connection is dropped", func() bool {
		return strings.TrimSpace(sh(t, "iptables -nvxL OVSDN-INPUT-LAST | awk '$3 == \"DROP\" { print $1 }'")) == "1"
	})
	_, err := pod.WriteToUDPAddrPort([]byte("reply"), netip.MustParseAddrPort("192.0.2.10:9100"))
	must(t, err)
	b := make([]byte, 100)
	length, _, err := program.ReadFromUDPAddrPort(b)
	must(t, err)
	if got := string(b[:length]); got != "reply" {
		t.Errorf("the node's program: got %q, want only the reply", got)
	}
}

// Tun0 changes no routes and neighbours of egress IPs, also at the first Sync of a process.
func TestTun0_egressIPsRemain(t *testing.T) {
	inNetNS(t)
	addInterface(t, Tun0Name, config.MAC(netip.MustParseAddr("10.128.0.1")))
	syncTun0(t, balanced())
	sh(t, fmt.Sprintf("ip route add %s dev tun0 proto %d; ip neigh add %[1]s lladdr 0a:58:c0:00:02:32 dev tun0", egressIP, EgressRouteProtocol))
	sh(t, "ip route add 192.0.2.51 dev tun0; ip neigh add 192.0.2.51 lladdr 0a:58:c0:00:02:33 dev tun0")
	syncTun0(t, balanced())
	want := balancedState()
	want.Routes = append(want.Routes, egressIP+" proto 87 scope link")
	want.Neighbours = egressIP + " lladdr 0a:58:c0:00:02:32 PERMANENT\n" + want.Neighbours
	got := stateOfTun0(t)
	if !strings.HasPrefix(got.Neighbours, egressIP) { // in any order
		want.Neighbours = balancedState().Neighbours + egressIP + " lladdr 0a:58:c0:00:02:32 PERMANENT\n"
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tun0 differs (-want +got):\n%s", diff)
	}
}

func TestEgressSet(t *testing.T) {
	inNetNS(t)
	list := func(want string) {
		t.Helper()
		got, err := EgressSet{}.List(t.Context())
		must(t, err)
		if fmt.Sprint(got) != want {
			t.Errorf("List: got %v, want %s", got, want)
		}
	}
	addr := netip.MustParseAddr(egressIP)
	must(t, EgressSet{}.Remove(t.Context(), addr)) // the set does not exist
	list("[]")
	for range 2 {
		must(t, EgressSet{}.Add(t.Context(), addr))
		list("[" + egressIP + "]")
	}
	for range 2 {
		must(t, EgressSet{}.Remove(t.Context(), addr))
		list("[]")
	}
	must(t, RemoveSets(t.Context()))
	must(t, RemoveSets(t.Context()))

	// Another program has a set of that name: it remains, and the firewall does not match it.
	must(t, netlink.IpsetCreate(egressSet, "hash:net", netlink.IpsetCreateOptions{Family: unix.AF_INET}))
	list("[]")
	must(t, RemoveSets(t.Context()))
	if set, err := netlink.IpsetList(egressSet); err != nil || set.TypeName != "hash:net" {
		t.Errorf("set of another program after RemoveSets: got %v, error %v, want it unchanged", set, err)
	}
	f := newFirewall(t, openShift())
	syncFirewall(t, f)
	if got := f.Skipped(); len(got) != 1 || got[0].Feature != FeatureEgressNotrack || !strings.Contains(got[0].Remedy, egressSet) {
		t.Errorf("Skipped: got %+v, want %s with the remedy for %s", got, FeatureEgressNotrack, egressSet)
	}
}
