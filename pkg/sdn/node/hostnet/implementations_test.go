package hostnet

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"
)

// implementation is one of the two Firewalls, and the commands by which the administrator of the node or another program changes the host's rules.
type implementation struct {
	name      string
	new       func(t *testing.T, c FirewallConfig) Firewall
	permit    string // accepts UDP port 10250 from tun0
	flush     string // deletes rules of the agent
	foreign   string // creates rules of another program
	isForeign string // prints them
	rules     string // prints all rules
}

func implementations() []implementation {
	return []implementation{
		{
			name: "iptables", new: func(t *testing.T, c FirewallConfig) Firewall { return newFirewall(t, c) },
			permit:    "iptables -I INPUT -i tun0 -p udp --dport 10250 -j ACCEPT",
			flush:     "iptables -t mangle -F OVSDN-GUARD; iptables -t nat -F OVSDN-MASQUERADE; iptables -D FORWARD -m comment --comment 'ovsdn: from and to pods' -j OVSDN-FORWARD",
			foreign:   "iptables -N OTHER; iptables -A OTHER -s 10.6.6.6 -j DROP; iptables -A FORWARD -j OTHER; iptables -t nat -A POSTROUTING -s 10.6.6.6 -j MASQUERADE",
			isForeign: "iptables-save | grep 10.6.6.6",
			rules:     "iptables-save; iptables-legacy-save",
		},
		{
			name: "nftables", new: func(t *testing.T, c FirewallConfig) Firewall { return newNFT(t, c) },
			permit: "nft add rule ip ovsdn-host node-input udp dport 10250 accept",
			flush: "nft flush chain ip ovsdn-host OVSDN-GUARD; nft flush chain ip ovsdn-host OVSDN-MASQUERADE;" +
				"nft delete rule ip ovsdn-host filter-forward handle $(nft -a list chain ip ovsdn-host filter-forward | sed -n 's/.*jump OVSDN-FORWARD .*handle //p')",
			foreign: "nft add table ip other; nft add chain ip other forward '{ type filter hook forward priority 0; }'; nft add rule ip other forward ip saddr 10.6.6.6 drop;" +
				"nft add rule ip ovsdn-host node-input ip saddr 10.6.6.6 accept",
			isForeign: "nft list ruleset | grep 10.6.6.6",
			rules:     "nft list ruleset; iptables-save",
		},
	}
}

// nftCounters are the counters that nft prints, and the dates that iptables-save does.
var nftCounters = regexp.MustCompile(`packets \d+ bytes \d+|(?m)^# .*$`)

func newNFT(t *testing.T, c FirewallConfig) *nftFirewall {
	t.Helper()
	f, err := newNFTFirewall(t.Context(), c)
	must(t, err)
	f.vteps.setComplete()
	return f
}

// onImplementations runs the test with each Firewall in a new network, in which 192.0.2.1 is another node.
func onImplementations(t *testing.T, c FirewallConfig, test func(*testing.T, implementation, network, Firewall)) {
	for _, i := range implementations() {
		t.Run(i.name, func(t *testing.T) {
			inNetNS(t)
			n := newHosts(t)
			f := i.new(t, c)
			f.VTEPs().Allow(t.Context(), "outside", netip.MustParseAddr("192.0.2.1"))
			syncFirewall(t, f)
			test(t, i, n, f)
		})
	}
}

// dropsOf returns the packets that the rules with the comment have dropped.
func dropsOf(t *testing.T, f Firewall, comment string) (packets uint64) {
	t.Helper()
	all, err := f.Drops(t.Context())
	must(t, err)
	found := false
	for _, d := range all {
		if d.Comment == comment {
			found, packets = true, packets+d.Packets
		}
	}
	if !found {
		t.Fatalf("got no rule %q that drops packets", comment)
	}
	return packets
}

func wantDrops(t *testing.T, f Firewall, comment string, want uint64) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d packets dropped: %s", want, comment), func() bool { return dropsOf(t, f, comment) == want })
}

func TestImplementations_masquerade(t *testing.T) {
	c := openShift()
	c.NonMasqueradeCIDRs = prefixes("192.0.2.64/26")
	onImplementations(t, c, func(t *testing.T, _ implementation, n network, f Firewall) {
		must(t, n.outside.Do(func(ns.NetNS) error {
			sh(t, "ip addr add 192.0.2.66/24 dev eth0; ip addr add 192.0.2.67/24 dev eth0; ip route add 10.128.0.0/14 via 192.0.2.10")
			return nil
		}))
		f.VTEPs().Allow(t.Context(), "node3", netip.MustParseAddr("192.0.2.67"))
		pod := udp(t, n.pods, "10.128.0.2:5000")
		for server, want := range map[string]string{"192.0.2.1:53": "192.0.2.10", "192.0.2.66:53": "10.128.0.2", "192.0.2.67:53": "192.0.2.10"} {
			conn := udp(t, n.outside, server)
			send(t, pod, server)
			from := sender(t, conn)
			if from.Addr().String() != want {
				t.Errorf("%s: got a packet from %s, want %s", server, from, want)
			}
			send(t, conn, from.String())
			if from := sender(t, pod); from.String() != server {
				t.Errorf("%s: got a reply from %s", server, from)
			}
		}
	})
}

// The pods' side counts packets that the node marked.
func TestImplementations_dscp(t *testing.T) {
	onImplementations(t, sourcesEvaluated(), func(t *testing.T, _ implementation, n network, _ Firewall) {
		must(t, n.outside.Do(func(ns.NetNS) error { sh(t, "ip route add 10.128.0.0/14 via 192.0.2.10"); return nil }))
		must(t, n.pods.Do(func(ns.NetNS) error {
			sh(t, "nft add table ip count; nft add chain ip count input '{ type filter hook input priority 0; }'; nft add rule ip count input udp dport 5000 ip dscp 0x3f counter")
			return nil
		}))
		pod := udp(t, n.pods, "10.128.0.2:5000")
		send(t, udp(t, n.outside, "192.0.2.1:5001"), "10.128.0.2:5000")
		sender(t, pod)
		must(t, n.pods.Do(func(ns.NetNS) error {
			if out := sh(t, "nft list chain ip count input"); !strings.Contains(out, "packets 1 ") {
				t.Errorf("packets with the mark of forwarded ones: got\n%s\nwant 1", out)
			}
			return nil
		}))
	})
}

// TestImplementations_hairpin: each Firewall marks hairpins of kube-proxy in mode nftables, and only these.
func TestImplementations_hairpin(t *testing.T) {
	for _, address := range []string{"172.30.0.10:53", "192.0.2.10:30053"} {
		onImplementations(t, sourcesEvaluated(), func(t *testing.T, _ implementation, n network, _ Firewall) {
			kubeProxyNFTables(t)
			testHairpinIsMarked(t, n, address)
		})
	}
}

func TestImplementations_notrack(t *testing.T) {
	onImplementations(t, openShift(), func(t *testing.T, _ implementation, n network, _ Firewall) {
		here, err := ns.GetCurrentNS()
		must(t, err)
		defer here.Close()
		peer := udp(t, n.outside, "192.0.2.1:5001")
		for port, want := range map[int]int{4789: 0, 4790: 1} {
			node := udp(t, here, fmt.Sprintf("192.0.2.10:%d", port))
			send(t, peer, fmt.Sprintf("192.0.2.10:%d", port))
			send(t, node, sender(t, node).String())
			sender(t, peer)
			if got := tracked(t, port); got != want {
				t.Errorf("port %d: got %d conntrack entries, want %d", port, got, want)
			}
		}
	})
}

func TestImplementations_guard(t *testing.T) {
	onImplementations(t, openShift(), func(t *testing.T, i implementation, n network, f Firewall) {
		here, err := ns.GetCurrentNS()
		must(t, err)
		defer here.Close()
		must(t, n.outside.Do(func(ns.NetNS) error { sh(t, "ip addr add 192.0.2.66/24 dev eth0"); return nil }))
		vtep := udp(t, here, "192.0.2.10:4789")
		send(t, udp(t, n.pods, "10.128.0.2:5000"), "192.0.2.10:4789")
		wantDrops(t, f, "VXLAN of an unknown VTEP", 1)
		send(t, udp(t, n.outside, "192.0.2.66:5000"), "192.0.2.10:4789")
		wantDrops(t, f, "VXLAN of an unknown VTEP", 2)
		send(t, udp(t, n.pods, "10.128.0.2:5001"), "192.0.2.1:4789")
		wantDrops(t, f, "VXLAN made by a pod", 1)
		send(t, udp(t, n.outside, "192.0.2.1:5002"), "192.0.2.10:4789")
		if from := sender(t, vtep); from.String() != "192.0.2.1:5002" {
			t.Errorf("VTEP: got a packet from %s, want the other node's", from)
		}
		// A new agent retains the counters.
		syncFirewall(t, i.new(t, openShift()))
		if got := dropsOf(t, f, "VXLAN made by a pod"); got != 1 {
			t.Errorf("after a Sync of a new agent: got %d packets, want 1", got)
		}
	})
}

func TestImplementations_podLimit(t *testing.T) {
	const limit = 20
	onImplementations(t, limited(limit), func(t *testing.T, _ implementation, n network, f Firewall) {
		udp(t, n.outside, "192.0.2.1:9")
		for _, pod := range []string{"10.128.0.2", "10.128.0.3"} {
			if got := sendFromManyPorts(t, n, pod, 3*limit); got == 0 || got > limit {
				t.Errorf("pod %s: got %d entries, want at most %d", pod, got, limit)
			}
		}
		if got := dropsOf(t, f, "pod with too many connections"); got < 2*limit {
			t.Errorf("got %d packets dropped, want at least %d", got, 2*limit)
		}
		changes := syncFirewall(t, f)
		if len(changes) > 0 {
			t.Errorf("second Sync: got changes %q, want none: the counts would restart", changes)
		}
	})
}

// A rule of the node's administrator permits a port.
func TestImplementations_hostAccess(t *testing.T) {
	onImplementations(t, accessible(HostAccessReplies), func(t *testing.T, i implementation, n network, f Firewall) {
		here, err := ns.GetCurrentNS()
		must(t, err)
		defer here.Close()
		pod, kubelet := udp(t, n.pods, "10.128.0.2:5000"), udp(t, here, "192.0.2.10:10250")
		send(t, pod, "192.0.2.10:10250")
		wantDrops(t, f, "pods without access", 1)
		sh(t, i.permit)
		syncFirewall(t, f)
		send(t, pod, "192.0.2.10:10250")
		if from := sender(t, kubelet); from.String() != "10.128.0.2:5000" {
			t.Errorf("node: got a packet from %s, want 10.128.0.2:5000", from)
		}
		send(t, pod, "192.0.2.10:10251")
		wantDrops(t, f, "pods without access", 2)
	})
}

// Packets of egress IPs are forwarded, and not tracked.
func TestImplementations_egressIPs(t *testing.T) {
	onImplementations(t, openShift(), func(t *testing.T, _ implementation, n network, f Firewall) {
		ctx, addr, set := t.Context(), netip.MustParseAddr(egressIP), f.EgressIPs()
		for range 2 {
			must(t, set.Add(ctx, addr))
		}
		if got, err := set.List(ctx); err != nil || fmt.Sprint(got) != "["+egressIP+"]" {
			t.Errorf("List: got %v, error %v, want %s", got, err, egressIP)
		}
		sh(t, fmt.Sprintf("ip route add %s dev tun0 proto %d; ip neigh add proxy %[1]s dev eth0; sysctl -qw net.ipv4.neigh.eth0.proxy_delay=0", egressIP, EgressRouteProtocol))
		must(t, n.pods.Do(func(ns.NetNS) error { sh(t, "ip addr add "+egressIP+"/32 dev eth0"); return nil }))
		client, server := udp(t, n.pods, egressIP+":5000"), udp(t, n.outside, "192.0.2.1:7777")
		send(t, client, "192.0.2.1:7777")
		if from := sender(t, server); from.String() != egressIP+":5000" {
			t.Errorf("got a packet from %s, want the egress IP", from)
		}
		send(t, server, egressIP+":5000")
		sender(t, client)
		if got := tracked(t, 7777); got != 0 {
			t.Errorf("got %d conntrack entries, want none", got)
		}
		for range 2 {
			must(t, set.Remove(ctx, addr))
		}
		if got, err := set.List(ctx); err != nil || len(got) > 0 {
			t.Errorf("List after Remove: got %v, error %v, want none", got, err)
		}
	})
}

// What another program changes is restored and reported, and its own rules remain, also after Remove, which removes all of the agent's.
func TestImplementations_foreignChanges(t *testing.T) {
	onImplementations(t, openShift(), func(t *testing.T, i implementation, _ network, f Firewall) {
		rules := func() string {
			return counters.ReplaceAllString(nftCounters.ReplaceAllString(sh(t, i.rules), ""), "[0:0]")
		}
		before := sorted(rules())
		sh(t, i.flush)
		if cmp.Equal(before, sorted(rules())) {
			t.Fatalf("%s had no effect", i.flush)
		}
		syncFirewall(t, f)
		if diff := cmp.Diff(before, sorted(rules())); diff != "" {
			t.Errorf("rules after the repair (-before +after):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"filter/OVSDN-FORWARD", "mangle/OVSDN-GUARD", "nat/OVSDN-MASQUERADE"}, takeForeign(f)); diff != "" {
			t.Errorf("changed chains (-want +got):\n%s", diff)
		}
		sh(t, i.foreign)
		foreign := sh(t, i.isForeign)
		if changes := syncFirewall(t, f); len(changes) > 0 {
			t.Errorf("after rules of another program: got changes %q, want none", changes)
		}
		if got := sh(t, i.isForeign); got != foreign {
			t.Errorf("rules of another program: got\n%s\nwant\n%s", got, foreign)
		}
		must(t, f.Remove(t.Context()))
		left := sh(t, i.rules)
		if strings.Contains(left, chainPrefix) || strings.Contains(left, nftTableName) {
			t.Errorf("after Remove: got\n%s", left)
		}
		if !strings.Contains(left, "10.6.6.6") {
			t.Errorf("after Remove: got no rules of another program:\n%s", left)
		}
		must(t, f.Remove(t.Context()))
	})
}

// takeForeign returns the restored chains.
func takeForeign(f Firewall) []string {
	switch f := f.(type) {
	case *iptablesFirewall:
		return f.foreign.take()
	case *nftFirewall:
		return f.foreign.take()
	}
	return nil
}

// Run restores the rules when another program deletes them, without a poll.
func TestImplementations_run(t *testing.T) {
	for _, i := range implementations() {
		t.Run(i.name, func(t *testing.T) {
			netns := inNetNS(t)
			restored := make(chan []string, 100)
			c := openShift()
			c.Restored = func(chains []string) { restored <- chains }
			f := i.new(t, c)
			has := func() bool { return strings.Count(sh(t, i.rules), "OVSDN-MASQUERADE") > 1 }
			background(t, netns, func(ctx context.Context) { f.Run(ctx, time.Hour) })
			eventually(t, "Run adds the rules", has)
			sh(t, "nft flush ruleset")
			eventually(t, "Run restores the rules", has)
			select {
			case <-restored:
			case <-time.After(90 * time.Second):
				t.Error("Run reported no chains")
			}
			if err := f.Healthy(); err != nil {
				t.Errorf("Healthy: got %v", err)
			}
		})
	}
}

// Both evaluate packets in the same way.
func TestImplementations_path(t *testing.T) {
	inNetNS(t)
	c := excepting(accessible(HostAccessReplies))
	paths := map[string][]string{}
	for _, i := range implementations() {
		must(t, newNetNS(t).Do(func(ns.NetNS) error {
			sh(t, "ip link add eth0 type veth peer name peer; ip addr add 192.0.2.10/24 dev eth0; ip link set eth0 up; ip link set peer up; ip route add default via 192.0.2.1")
			addInterface(t, Tun0Name, nil, "10.128.0.1/23")
			sh(t, "ip route add 10.128.0.0/14 dev tun0; sysctl -qw net.ipv4.ip_forward=1")
			f := i.new(t, c)
			syncFirewall(t, f)
			for _, to := range []string{"192.0.2.10", "192.0.2.1", "198.51.100.9", "203.0.113.7"} {
				path, err := f.Path(t.Context(), podTo(to))
				must(t, err)
				path.Route.index = 0
				paths[i.name] = append(paths[i.name], fmt.Sprintf("%+v", path))
			}
			return nil
		}))
	}
	if diff := cmp.Diff(paths["iptables"], paths["nftables"]); diff != "" {
		t.Errorf("paths (-iptables +nftables):\n%s", diff)
	}
	for i, want := range []string{"Drops:true", "Masqueraded:false", "Masqueraded:true", "Masqueraded:false"} {
		if got := paths["nftables"][i]; !strings.Contains(got, want) {
			t.Errorf("got path %s, want %s", got, want)
		}
	}
}
