package hostnet

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/coreos/go-iptables/iptables"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

func accessible(a HostAccess) FirewallConfig {
	c := openShift()
	c.HostAccess = a
	c.NodeNetworks = []config.ClusterNetwork{{Prefix: netip.MustParsePrefix("10.128.0.0/14"), HostBits: 9}}
	return c
}

func TestGatewaysOf(t *testing.T) {
	for _, test := range []struct {
		prefix   string
		hostBits int
		want     string
	}{
		{"10.128.0.0/14", 9, "10.128.0.1/255.252.1.255"},
		{"10.128.0.0/16", 8, "10.128.0.1/255.255.0.255"},
		{"10.64.0.0/10", 10, "10.64.0.1/255.192.3.255"},
		{"10.128.0.0/24", 8, "10.128.0.1/32"},
	} {
		got := gatewaysOf(config.ClusterNetwork{Prefix: netip.MustParsePrefix(test.prefix), HostBits: test.hostBits})
		if got != test.want {
			t.Errorf("%s with %d host bits: got %s, want %s", test.prefix, test.hostBits, got, test.want)
		}
	}
}

// TestHostAccess checks the access of a pod to its node in each mode, on hosts with the policies ACCEPT and DROP.
func TestHostAccess(t *testing.T) {
	const (
		daemon  = "10250" // of the node, no rule accepts it
		allowed = "9100"  // a rule of the node accepts it
		service = "30443" // leads to the node's port 6443
	)
	for _, policy := range []string{"ACCEPT", "DROP"} {
		for _, test := range []struct {
			mode            HostAccess
			daemon, service bool
		}{
			{HostAccessReplies, false, false},
			{HostAccessServices, false, true},
			{HostAccessAll, true, true},
		} {
			t.Run(string(test.mode)+", policy "+policy, func(t *testing.T) {
				inNetNS(t)
				sh(t, "iptables -A INPUT -p udp --dport "+allowed+" -j ACCEPT")
				n := newNetworkHere(t, accessible(test.mode))
				sh(t, "iptables -P INPUT "+policy+"; iptables -t nat -A PREROUTING -d 172.30.0.10 -p udp --dport "+service+" -j DNAT --to-destination 192.0.2.10:6443")
				must(t, n.pods.Do(func(ns.NetNS) error { sh(t, "ip addr add 10.128.2.1/32 dev eth0"); return nil })) // another node's tun0
				here, err := ns.GetCurrentNS()
				must(t, err)
				defer here.Close()
				pod := udp(t, n.pods, "10.128.0.2:5000")
				reaches := func(port, to string) bool {
					server, last := udp(t, here, "192.0.2.10:"+port), udp(t, here, "192.0.2.10:"+allowed)
					defer server.Close()
					defer last.Close()
					send(t, pod, to)
					send(t, pod, "192.0.2.10:"+allowed) // arrives after the packet under test
					sender(t, last)
					must(t, server.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
					_, _, err := server.ReadFromUDPAddrPort(make([]byte, 100))
					return err == nil
				}
				if got := reaches(daemon, "192.0.2.10:"+daemon); got != test.daemon {
					t.Errorf("pod reaches a daemon of the node: got %t, want %t", got, test.daemon)
				}
				if got := reaches("6443", "172.30.0.10:"+service); got != test.service {
					t.Errorf("pod reaches the node through a service: got %t, want %t", got, test.service)
				}
				if test.mode != HostAccessAll {
					drops := strings.Fields(sh(t, `iptables -nvxL OVSDN-INPUT-LAST | awk '$3 == "DROP" { print $1 }'`))
					want := "2"
					if test.service {
						want = "1"
					}
					if len(drops) != 1 || drops[0] != want {
						t.Errorf("got %v dropped packets, want %s", drops, want)
					}
				}
				// Replies to what the node opens, such as kubelet's probes.
				probe, probed := udp(t, here, "10.128.0.1:0"), udp(t, n.pods, "10.128.0.3:8080")
				send(t, probe, "10.128.0.3:8080")
				send(t, probed, sender(t, probed).String())
				sender(t, probe)
				for _, ping := range []struct {
					from string
					want bool
				}{{"10.128.2.1", true}, {"10.128.0.2", test.daemon}} {
					if got := pings(t, n.pods, ping.from, "10.128.0.1", ping.want); got != ping.want {
						t.Errorf("ping from %s: got %t, want %t", ping.from, got, ping.want)
					}
				}
			})
		}
	}
}

// pings reports whether one of several echo requests is answered: an expected reply has more time.
func pings(t *testing.T, netns ns.NetNS, from, to string, want bool) (answered bool) {
	t.Helper()
	requests := 3
	if want {
		requests = 150
	}
	must(t, netns.Do(func(ns.NetNS) error {
		conn, err := net.ListenPacket("ip4:icmp", from)
		if err != nil {
			return err
		}
		defer conn.Close()
		for range requests {
			if _, err := conn.WriteTo([]byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0}, &net.IPAddr{IP: net.ParseIP(to)}); err != nil {
				return err
			}
			if err := conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
				return err
			}
			buf := make([]byte, 100)
			if n, _, err := conn.ReadFrom(buf); err == nil && n > 0 && buf[0] == 0 {
				answered = true
				return nil
			}
		}
		return nil
	}))
	return answered
}

// A change of the mode does not interrupt connections: after each run of iptables, those of the node and of a pod exchange packets.
func TestHostAccess_change(t *testing.T) {
	for _, program := range []string{"iptables-nft", "iptables-legacy"} {
		t.Run(program, func(t *testing.T) {
			inNetNS(t)
			n := newNetworkHere(t, accessible(HostAccessAll)) // in nft's backend
			here, err := ns.GetCurrentNS()
			must(t, err)
			defer here.Close()
			sh(t, program+" "+waitForLock+" -P INPUT DROP")
			if program == "iptables-legacy" {
				sh(t, "iptables-nft -P INPUT ACCEPT; iptables-nft -F INPUT")
			}
			ipt, err := iptables.New(iptables.Path(program), iptables.Timeout(lockWait))
			must(t, err)
			r := &recorder{iptablesClient: ipt}
			change := func(mode HostAccess) {
				f := &iptablesFirewall{iptables: r, firewallState: firewallState{rules: Rules(accessible(mode)), vteps: completeVTEPs()}}
				syncFirewall(t, f)
				if changes := syncFirewall(t, f); len(changes) > 0 {
					t.Errorf("second Sync to %s: got changes %q", mode, changes)
				}
			}
			change(HostAccessAll)
			node, server := udp(t, here, "10.128.0.1:6000"), udp(t, n.pods, "10.128.0.3:8080")
			pod, daemon := udp(t, n.pods, "10.128.0.2:5000"), udp(t, here, "192.0.2.10:10250")
			r.after = func() {
				send(t, node, "10.128.0.3:8080")
				send(t, server, sender(t, server).String())
				sender(t, node)
				send(t, pod, "192.0.2.10:10250")
				send(t, daemon, sender(t, daemon).String())
				sender(t, pod)
			}
			r.after()
			for _, mode := range []HostAccess{HostAccessReplies, HostAccessServices, HostAccessAll, HostAccessServices, HostAccessReplies, HostAccessAll} {
				r.writes = nil
				change(mode)
				r.after()
				if len(r.writes) == 0 {
					t.Errorf("change to mode %s: got no writes", mode)
				}
				if got, want := sh(t, program+" "+waitForLock+" -S OVSDN-INPUT-LAST"), mode != HostAccessAll; strings.Contains(got, "DROP") != want {
					t.Errorf("mode %s: got rules\n%s", mode, got)
				}
			}
		})
	}
}
