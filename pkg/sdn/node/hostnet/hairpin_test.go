package hostnet

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/ovsdn/ovsdn/test/kubeproxy"
)

// TestHairpinIsMarked: of the packets that pods send through services and node ports, those that return to their pod, masqueraded, have the DSCP of hairpins
// from the first one on. Their replies, and packets to other pods, have not.
func TestHairpinIsMarked(t *testing.T) {
	n := newNetwork(t, sourcesEvaluated())
	// As kube-proxy: it masquerades packets of a pod to itself, and those through a node port.
	sh(t, `iptables -t nat -A PREROUTING -s 10.128.0.2 -d 172.30.0.10 -p udp --dport 53 -j MARK --or-mark 0x4000
		iptables -t nat -A PREROUTING -d 172.30.0.10 -p udp --dport 53 -j DNAT --to-destination 10.128.0.2:5353
		iptables -t nat -A PREROUTING -d 192.0.2.10 -p udp --dport 30053 -j MARK --or-mark 0x4000
		iptables -t nat -A PREROUTING -d 192.0.2.10 -p udp --dport 30053 -j DNAT --to-destination 10.128.0.2:5353
		iptables -t nat -I POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE --random-fully`)
	testHairpinIsMarked(t, n, "172.30.0.10:53")
}

// TestHairpinIsMarked_nftables: kube-proxy in mode nftables masquerades hairpins without its mark, also those through a node port.
func TestHairpinIsMarked_nftables(t *testing.T) {
	for name, address := range map[string]string{"cluster IP": "172.30.0.10:53", "node port": "192.0.2.10:30053"} {
		t.Run(name, func(t *testing.T) {
			n := newNetwork(t, sourcesEvaluated())
			kubeProxyNFTables(t)
			testHairpinIsMarked(t, n, address)
		})
	}
}

// kubeProxyNFTables creates the rules of kube-proxy in mode nftables, at 172.30.0.10:53 and at node port 30053.
func kubeProxyNFTables(t *testing.T) {
	t.Helper()
	endpoint := netip.MustParseAddrPort("10.128.0.2:5353")
	sh(t, "nft -f - <<'EOF'\n"+kubeproxy.NFTables(
		kubeproxy.Port{Protocol: "udp", At: netip.MustParseAddrPort("172.30.0.10:53"), Endpoint: endpoint},
		kubeproxy.Port{Protocol: "udp", At: netip.MustParseAddrPort("192.0.2.10:30053"), Endpoint: endpoint, Masqueraded: true},
	)+"EOF")
}

// testHairpinIsMarked sends from a pod to an address that leads back to it, and from another pod.
func testHairpinIsMarked(t *testing.T, n network, address string) {
	// Counted before routing: all pods share a namespace, which drops packets from its own addresses.
	counters := []string{"-s 10.128.0.1 -m dscp --dscp 0x3d", "-s 10.128.0.1 -m dscp ! --dscp 0x3d", "-m dscp --dscp 0x3d", "-m dscp ! --dscp 0x3d"}
	must(t, n.pods.Do(func(ns.NetNS) error {
		for _, c := range counters {
			sh(t, "iptables -t mangle -A PREROUTING -p udp "+c)
		}
		return nil
	}))
	counts := func() (packets string) {
		t.Helper()
		must(t, n.pods.Do(func(ns.NetNS) error {
			packets = strings.Join(strings.Fields(sh(t, "iptables -t mangle -nvxL PREROUTING | awk '/DSCP/ { print $1 }'")), " ")
			return nil
		}))
		return packets
	}
	pod, endpoint := udp(t, n.pods, "10.128.0.2:5000"), udp(t, n.pods, "10.128.0.2:5353")
	var from netip.AddrPort
	for range 2 {
		send(t, pod, address)
		if from = sender(t, endpoint); from.Addr() != netip.MustParseAddr("10.128.0.1") {
			t.Errorf("endpoint: got a packet from %s, want 10.128.0.1", from)
		}
	}
	send(t, endpoint, from.String())
	if from := sender(t, pod); from != netip.MustParseAddrPort(address) {
		t.Errorf("pod: got a reply from %s, want %s", from, address)
	}
	// From tun0's address with the DSCP and without, then from any address.
	if got, want := counts(), "2 0 2 1"; got != want {
		t.Errorf("packets of the pod to itself: got %q, want %q", got, want)
	}
	for port, to := range map[string]string{"5000": "172.30.0.10:53", "5001": "192.0.2.10:30053"} {
		other := udp(t, n.pods, "10.128.0.3:"+port)
		send(t, other, to)
		send(t, other, to)
	}
	eventually(t, "four packets of another pod arrive, unmarked", func() bool { return counts() == "2 0 2 5" })
}

// TestFirewall_fallbackWithoutMatchBPF: a kernel without the match bpf has the other rules, by kube-proxy's mark and conntrack's state.
func TestFirewall_fallbackWithoutMatchBPF(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend, _ ns.NetNS) {
		f, r := b.firewall(t, sourcesEvaluated())
		client := &lacking{iptablesClient: r, word: "--bytecode", err: exits(t, 4)}
		f.iptables = client
		syncFirewall(t, f)
		const exact, byMark = "-A OVSDN-ITSELF", "-m mark --mark 0x4000/0x4000 -m comment --comment \"pod to itself through a service\""
		if rules := b.save(t); strings.Contains(rules, exact) || !strings.Contains(rules, byMark) {
			t.Errorf("without the match: got rules\n%s\nwant no %q and %q", rules, exact, byMark)
		}
		if changes := syncFirewall(t, f); len(changes) > 0 {
			t.Errorf("second Sync: got changes %q, want none", changes)
		}
		client.err = nil
		syncFirewall(t, f)
		if rules := b.save(t); !strings.Contains(rules, exact) {
			t.Errorf("with the match: got rules\n%s\nwant %q", rules, exact)
		}
	})
}
