package hostnet

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"
)

// withHostPorts is mode multitenant with two pods with host ports.
func withHostPorts() FirewallConfig {
	c := sourcesEvaluated()
	c.MasqueradeHostPorts = true
	first, second := netip.MustParseAddr("10.128.0.2"), netip.MustParseAddr("10.128.0.3")
	c.HostPorts = func() []HostPort {
		return []HostPort{{first, "udp", 5353, 53}, {first, "tcp", 8080, 80}, {second, "sctp", 5000, 5000}}
	}
	return c
}

// The rules about pods follow the host ports, without a synchronization of the other rules.
func TestFirewall_hostPorts(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend, _ ns.NetNS) {
		c := withHostPorts()
		all := c.HostPorts()
		var ports []HostPort
		c.HostPorts = func() []HostPort { return ports }
		f, r := b.firewall(t, c)
		syncFirewall(t, f)
		for _, ports = range [][]HostPort{all, all[2:], nil, all[:1]} {
			r.reads = 0
			must(t, f.SyncHostPorts(t.Context()))
			if diff := cmp.Diff(sorted(Rules(c).String()), sorted(b.save(t))); diff != "" {
				t.Errorf("iptables-save differs (-want +got):\n%s", diff)
			}
			if r.reads > 6 {
				t.Errorf("got %d lists of chains, want those of the two chains only", r.reads)
			}
		}
		if changes := syncFirewall(t, f); len(changes) > 0 {
			t.Errorf("Sync: got changes %q", changes)
		}
	})
}

// hostPort translates a port of the node to the first pod, as portmap does, which masquerades packets of the pod to itself.
func hostPort(t *testing.T) {
	t.Helper()
	sh(t, `iptables -t nat -A PREROUTING -p udp --dport 5353 -m addrtype --dst-type LOCAL -j DNAT --to-destination 10.128.0.2:53
		iptables -t nat -I POSTROUTING -s 10.128.0.2 -d 10.128.0.2 -j MASQUERADE`)
}

// In mode multitenant other hosts' packets are masqueraded, since they have no VNID.
func TestHostPort_outsideIsMasqueraded(t *testing.T) {
	n := newNetwork(t, withHostPorts())
	hostPort(t)
	pod, outside, other := udp(t, n.pods, "10.128.0.2:53"), udp(t, n.outside, "192.0.2.1:5000"), udp(t, n.pods, "10.128.0.3:5000")
	send(t, outside, "192.0.2.10:5353")
	from := sender(t, pod)
	if from.Addr() != netip.MustParseAddr("10.128.0.1") {
		t.Errorf("from outside: got source %s, want 10.128.0.1", from)
	}
	send(t, pod, from.String())
	if from := sender(t, outside); from != netip.MustParseAddrPort("192.0.2.10:5353") {
		t.Errorf("outside: got a reply from %s", from)
	}
	// Counted before routing: all pods share a namespace, which drops packets from its own addresses.
	must(t, n.pods.Do(func(ns.NetNS) error {
		sh(t, "iptables -t mangle -A PREROUTING -s 10.128.0.3 -d 10.128.0.2 -p udp --sport 5000 --dport 53")
		return nil
	}))
	send(t, other, "192.0.2.10:5353")
	eventually(t, "a packet of a pod with its own source", func() (arrived bool) {
		must(t, n.pods.Do(func(ns.NetNS) error {
			arrived = strings.Contains(sh(t, "iptables -t mangle -nvxL PREROUTING | awk '/dpt:53/ { print $1 \"packet\" }'"), "1packet")
			return nil
		}))
		return arrived
	})
}

// In other modes they are not.
func TestHostPort_outsideIsSeen(t *testing.T) {
	for name, c := range map[string]FirewallConfig{"networkpolicy": sourcesEvaluated(), "subnet": openShift()} {
		t.Run(name, func(t *testing.T) {
			c.HostPorts = withHostPorts().HostPorts
			n := newNetwork(t, c)
			hostPort(t)
			pod, outside := udp(t, n.pods, "10.128.0.2:53"), udp(t, n.outside, "192.0.2.1:5000")
			send(t, outside, "192.0.2.10:5353")
			if from := sender(t, pod); from != netip.MustParseAddrPort("192.0.2.1:5000") {
				t.Errorf("got source %s, want 192.0.2.1:5000", from)
			}
		})
	}
}

// All packets of a pod to itself through its host port have the DSCP of hairpins, from the first one on.
func TestHostPort_hairpinIsMarked(t *testing.T) {
	n := newNetwork(t, withHostPorts())
	hostPort(t)
	must(t, n.pods.Do(func(ns.NetNS) error {
		sh(t, "iptables -t mangle -A PREROUTING -s 10.128.0.1 -p udp -m dscp --dscp 0x3d; iptables -t mangle -A PREROUTING -s 10.128.0.1 -p udp -m dscp ! --dscp 0x3d")
		return nil
	}))
	asking, serving := udp(t, n.pods, "10.128.0.2:5000"), udp(t, n.pods, "10.128.0.2:53")
	for range 2 {
		send(t, asking, "192.0.2.10:5353")
		if from := sender(t, serving); from.Addr() != netip.MustParseAddr("10.128.0.1") {
			t.Errorf("got source %s, want 10.128.0.1", from)
		}
	}
	must(t, n.pods.Do(func(ns.NetNS) error {
		if got := strings.Join(strings.Fields(sh(t, "iptables -t mangle -nvxL PREROUTING | awk '/DSCP/ { print $1 }'")), " "); got != "2 0" {
			t.Errorf("packets with the DSCP and without: got %q, want %q", got, "2 0")
		}
		return nil
	}))
}

// Pods do not reach programs of the node that listen on its loopback, also with route_localnet.
func TestPodDoesNotReachLoopback(t *testing.T) {
	n := newNetwork(t, openShift())
	here, err := ns.GetCurrentNS()
	must(t, err)
	defer here.Close()
	sh(t, "sysctl -qw net.ipv4.conf.tun0.route_localnet=1; ip link set lo up")
	must(t, n.pods.Do(func(ns.NetNS) error {
		sh(t, "ip addr flush dev lo; sysctl -qw net.ipv4.conf.all.route_localnet=1; ip route del table local 127.0.0.0/8 dev lo 2>/dev/null || true; ip route add 127.0.0.1/32 via 10.128.0.1")
		return nil
	}))
	pod, loopback, node := udp(t, n.pods, "10.128.0.2:5000"), udp(t, here, "127.0.0.1:6000"), udp(t, here, "192.0.2.10:6000")
	send(t, pod, "127.0.0.1:6000")
	send(t, pod, "192.0.2.10:6000")
	if from := sender(t, node); from.Addr() != netip.MustParseAddr("10.128.0.2") {
		t.Errorf("node: got a packet from %s, want 10.128.0.2", from)
	}
	must(t, loopback.SetReadDeadline(time.Now().Add(100*time.Millisecond))) // a packet would have arrived before
	if _, from, err := loopback.ReadFrom(make([]byte, 100)); err == nil {
		t.Errorf("the node's loopback got a packet from %s", from)
	}
}

// A request that has ended does not write the remaining rules.
func TestFirewall_hostPortsCanceled(t *testing.T) {
	onBackends(t, func(t *testing.T, b backend, _ ns.NetNS) {
		c := withHostPorts()
		f, r := b.firewall(t, c)
		ctx, cancel := context.WithCancel(t.Context())
		inserts := 0
		r.after = func() {
			if strings.Contains(r.writes[len(r.writes)-1], "insert") {
				inserts++
				cancel()
			}
		}
		if err := f.SyncHostPorts(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got error %v, want that of the context", err)
		}
		if inserts != 1 {
			t.Errorf("got %d inserted rules, want 1", inserts)
		}
	})
}
