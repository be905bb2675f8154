package hostnet

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// sysctlValues returns the values of sysctls by name.
func sysctlValues(t *testing.T, names ...string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, name := range names {
		all[name] = strings.TrimSpace(sh(t, "sysctl -n "+name))
	}
	return all
}

// The path of packets depends on sysctls of tun0, of the uplinks and of all interfaces, which other programs change while the agent runs, such as
// networkd, `sysctl --system` and hardening rules. The kernel reports some of the changes; Run finds the others at the interval.
func TestTun0_runRestoresSysctls(t *testing.T) {
	const conf = "net.ipv4.conf."
	for _, test := range []struct {
		name, change string
		polled       bool // the kernel does not report the change
		want         map[string]string
	}{
		{"forwarding of tun0", "sysctl -qw net.ipv4.conf.tun0.forwarding=0", false, map[string]string{conf + "tun0.forwarding": "1"}},
		{"forwarding of all", "sysctl -qw net.ipv4.conf.all.forwarding=0", false,
			map[string]string{"net.ipv4.ip_forward": "1", conf + "tun0.forwarding": "1", conf + "eth0.forwarding": "1"}},
		{"forwarding of the interface with the node's address", "sysctl -qw net.ipv4.conf.eth0.forwarding=0", false, map[string]string{conf + "eth0.forwarding": "1"}},
		{"forwarding of the interface of a default route", "sysctl -qw net.ipv4.conf.eth1.forwarding=0", false, map[string]string{conf + "eth1.forwarding": "1"}},
		{"rp_filter of tun0", "sysctl -qw net.ipv4.conf.tun0.rp_filter=1", false, map[string]string{conf + "tun0.rp_filter": "2"}},
		{"a new tun0 with other defaults",
			"sysctl -qw net.ipv4.conf.default.forwarding=0 net.ipv4.conf.default.rp_filter=1 net.ipv4.conf.default.send_redirects=1 net.ipv4.conf.default.arp_announce=0; " +
				"ip tuntap del tun0 mode tap; ip tuntap add tun0 mode tap; ip link set tun0 address 0a:58:0a:80:00:01", false,
			map[string]string{conf + "tun0.forwarding": "1", conf + "tun0.rp_filter": "2", conf + "tun0.send_redirects": "0", conf + "tun0.arp_announce": "2",
				conf + "default.forwarding": "0", conf + "default.rp_filter": "1"}},
		{"arp_announce of tun0", "sysctl -qw net.ipv4.conf.tun0.arp_announce=0", true, map[string]string{conf + "tun0.arp_announce": "2"}},
		{"redirects", "sysctl -qw net.ipv4.conf.all.send_redirects=1 net.ipv4.conf.tun0.send_redirects=1", true,
			map[string]string{conf + "all.send_redirects": "0", conf + "tun0.send_redirects": "0"}},
		{"IPv6 of all", "sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.all.disable_ipv6=0", true, map[string]string{"net.ipv6.conf.tun0.disable_ipv6": "1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			netns := inNetNS(t)
			addInterface(t, "eth0", nil, "192.0.2.10/24")
			addInterface(t, "eth1", nil, "198.51.100.10/24")
			sh(t, "ip route add default via 198.51.100.1 dev eth1")
			addInterface(t, Tun0Name, config.MAC(netip.MustParseAddr("10.128.0.1")))
			c := node1()
			c.Uplink = "eth0"
			inSync := func() bool {
				return sh(t, "ip link show") != "" && strings.Contains(sh(t, "ip link show"), "tun0") && cmp.Equal(node1State(), stateOfTun0(t))
			}
			interval := time.Hour // too long for a poll
			if test.polled {
				interval = 50 * time.Millisecond
			}
			background(t, netns, func(ctx context.Context) { NewTun0(c).Run(ctx, interval) })
			eventually(t, "Run sets tun0 up", inSync)
			sh(t, test.change)
			names := make([]string, 0, len(test.want))
			for name := range test.want {
				names = append(names, name)
			}
			eventually(t, fmt.Sprintf("Run restores %v", names), func() bool { return inSync() && cmp.Equal(test.want, sysctlValues(t, names...)) })
		})
	}
}

// The agent sets forwarding of the interfaces by which packets arrive, not of those with a default route of a higher metric, such as one of a network for
// management. If such a route becomes the best, its interface is an uplink.
func TestTun0_uplinksOfBestDefaultRoutes(t *testing.T) {
	inNetNS(t)
	for i, name := range []string{"eth0", "eth1", "eth2", "eth3"} {
		addInterface(t, name, nil, fmt.Sprintf("192.0.%d.10/24", i))
	}
	sh(t, "sysctl -qw net.ipv4.ip_forward=1; for i in 0 1 2 3; do sysctl -qw net.ipv4.conf.eth$i.forwarding=0; done")
	sh(t, `ip route add default via 192.0.3.1 dev eth3 metric 200; ip route add default metric 100 nexthop via 192.0.1.1 dev eth1 nexthop via 192.0.2.1 dev eth2`)
	addInterface(t, Tun0Name, config.MAC(netip.MustParseAddr("10.128.0.1")))
	c := node1()
	c.Uplink = "eth0"
	forwarding := func() string {
		return strings.Join(strings.Fields(sh(t, "cat /proc/sys/net/ipv4/conf/eth[0-3]/forwarding")), "")
	}
	syncTun0(t, c)
	if got, want := forwarding(), "1110"; got != want {
		t.Errorf("forwarding of eth0 to eth3: got %s, want %s", got, want)
	}
	sh(t, "ip route del default metric 100")
	syncTun0(t, c)
	if got, want := forwarding(), "1111"; got != want {
		t.Errorf("forwarding of eth0 to eth3 after eth3's route became the best: got %s, want %s", got, want)
	}
}

// An uninstallation restores the previous value of an uplink's sysctl. An interface that was deleted in the meantime does not stop it.
func TestSysctls_restoreUplink(t *testing.T) {
	inNetNS(t)
	for _, name := range []string{"eth0", "eth1"} {
		addInterface(t, name, nil)
	}
	sh(t, "sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.eth0.forwarding=0 net.ipv4.conf.eth1.forwarding=0; ip addr add 192.0.2.10/24 dev eth1; ip route add default via 192.0.2.1 dev eth1")
	addInterface(t, Tun0Name, config.MAC(netip.MustParseAddr("10.128.0.1")))
	c := node1()
	c.Uplink, c.Sysctls.SavedFile = "eth0", t.TempDir()+"/sysctls.json"
	syncTun0(t, c)
	const conf = "net.ipv4.conf."
	if diff := cmp.Diff(map[string]string{conf + "eth0.forwarding": "1", conf + "eth1.forwarding": "1"}, sysctlValues(t, conf+"eth0.forwarding", conf+"eth1.forwarding")); diff != "" {
		t.Errorf("sysctls after Sync (-want +got):\n%s", diff)
	}
	sh(t, "ip link del eth1")
	if _, err := c.Sysctls.Restore(); err != nil {
		t.Errorf("Restore: %v", err)
	}
	if diff := cmp.Diff(map[string]string{conf + "eth0.forwarding": "0"}, sysctlValues(t, conf+"eth0.forwarding")); diff != "" {
		t.Errorf("sysctls after Restore (-want +got):\n%s", diff)
	}
}

// Packets of pods pass again after another program has changed forwarding: to other networks by tun0's, and back by the uplink's.
func TestForwarding_packets(t *testing.T) {
	n := newNetwork(t, openShift())
	pod, server := udp(t, n.pods, "10.128.0.2:5000"), udp(t, n.outside, "192.0.2.1:53")
	c := node1()
	c.Uplink = "eth0"
	// exchange sends a packet while the host does not forward, and another one after Sync: only that arrives.
	exchange := func(from, to *net.UDPConn, addr, sysctl string) netip.AddrPort {
		t.Helper()
		write := func(text string) {
			t.Helper()
			_, err := from.WriteToUDPAddrPort([]byte(text), netip.MustParseAddrPort(addr))
			must(t, err)
		}
		sh(t, "sysctl -qw "+sysctl+"=0")
		write("dropped")
		syncTun0(t, c)
		write("passed")
		b := make([]byte, 100)
		length, source, err := to.ReadFromUDPAddrPort(b)
		must(t, err)
		if got := string(b[:length]); got != "passed" {
			t.Errorf("%s=0: got packet %q, want it dropped until Sync", sysctl, got)
		}
		return source
	}
	masqueraded := exchange(pod, server, "192.0.2.1:53", "net.ipv4.conf.tun0.forwarding")
	if from := exchange(server, pod, masqueraded.String(), "net.ipv4.conf.eth0.forwarding"); from != netip.MustParseAddrPort("192.0.2.1:53") {
		t.Errorf("pod: got a reply from %s", from)
	}
}
