package egressaddress

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/linkmtu"
	"github.com/ovsdn/ovsdn/test/tier"
)

// A packet from tun0 with the egress IP as its source leaves by the uplink unchanged, also on a host that masquerades all that it forwards and validates sources
// strictly. The other host resolves the egress IP, and its reply arrives on tun0. The host's conntrack tracks neither.
func TestAddresses_packets(t *testing.T) {
	tier.Parallel(t)
	n := newNode(t)
	n.syncFirewall(t)
	sh(t, "sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.tun0.rp_filter=1 net.ipv4.conf.eth0.rp_filter=1 net.ipv4.conf.eth0.forwarding=0")
	n.start(t, n.options(), egressIP)
	wantState(t, placed())
	n.wantReport(t, egressIP, "<nil>")
	n.in(t, n.outside, "ip neigh flush dev eth0")

	pod, server := udp(t, n.bridge, egressIP+":5000"), udp(t, n.outside, "192.0.2.1:53")
	for range 2 {
		send(t, pod, "192.0.2.1:53")
		if got, want := sender(t, server), egressIP+":5000"; got != want {
			t.Fatalf("other host: got a packet from %q, want %s", got, want)
		}
		send(t, server, egressIP+":5000")
		if got := sender(t, pod); got != "192.0.2.1:53" {
			t.Fatalf("tun0: got a reply from %q, want 192.0.2.1:53", got)
		}
	}
	if got := sh(t, "conntrack -L 2>/dev/null | grep -c "+egressIP+" || true"); strings.TrimSpace(got) != "0" {
		t.Errorf("got %s conntrack entries of the egress IP, want 0:\n%s", got, sh(t, "conntrack -L"))
	}
	uplink, err := net.InterfaceByName("eth0")
	must(t, err)
	if got := n.in(t, n.outside, "ip neigh show "+egressIP); !strings.Contains(got, uplink.HardwareAddr.String()) {
		t.Errorf("neighbour of the other host: got %q, want the uplink's MAC %s", got, uplink.HardwareAddr)
	}
	if got := strings.Fields(sh(t, "sysctl -n net.ipv4.neigh.eth0.proxy_delay net.ipv4.conf.eth0.forwarding")); !cmp.Equal(got, []string{"0", "1"}) {
		t.Errorf("proxy_delay and forwarding of the uplink: got %q, want 0 and 1", got)
	}
}

// An egress IP that is no longer desired leaves nothing; others, and entries of other programs, remain.
func TestAddresses_removed(t *testing.T) {
	n := newNode(t)
	sh(t, "ip route add 192.0.2.77 dev eth0 proto static; ip neigh add proxy 192.0.2.77 dev eth0")
	a, _ := n.start(t, n.options(), egressIP, "192.0.2.51")
	n.wantReport(t, "192.0.2.51", "<nil>")
	a.Set(addrs(egressIP))
	eventually(t, func() error {
		if got := stateOf(t); strings.Contains(fmt.Sprint(got), "192.0.2.51") || got.Routes != placed().Routes || !strings.Contains(got.Proxies, placed().Proxies) {
			return fmt.Errorf("state: got %+v, want %+v and the other program's entries", got, placed())
		}
		return nil
	})
	a.Set(nil)
	wantState(t, hostState{Proxies: "192.0.2.77 dev eth0 proxy"})
	if got := sh(t, "ip route show 192.0.2.77"); !strings.Contains(got, "proto static") {
		t.Errorf("route of another program: got %q, want it unchanged", got)
	}
}

// A process that was killed leaves its entries. The next one retains them until the first Set, then removes those that are not desired.
func TestAddresses_leftovers(t *testing.T) {
	n := newNode(t)
	_, stop := n.start(t, n.options(), egressIP, "192.0.2.51")
	n.wantReport(t, "192.0.2.51", "<nil>")
	n.wantReport(t, egressIP, "<nil>")
	stop()
	next := hostnet.NewTun0(hostnet.Tun0Config{MTU: linkmtu.MTU{Link: 1450}, Subnets: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/23")}, ClusterNetworks: clusterNetworks()})
	_, err := next.Sync(t.Context())
	must(t, err)
	before := stateOf(t)
	if !strings.Contains(before.Routes, "192.0.2.51") || !strings.Contains(before.Neighbours, "192.0.2.51") {
		t.Fatalf("state after Tun0.Sync: got %+v, want both egress IPs", before)
	}

	a := New(n.options())
	must(t, a.reconcile(t.Context()))
	if diff := cmp.Diff(before, stateOf(t)); diff != "" {
		t.Errorf("state before the first Set (-want +got):\n%s", diff)
	}
	a.Set(addrs(egressIP))
	n.run(t, a)
	wantState(t, placed())
}

// Remove is for an uninstallation.
func TestRemove(t *testing.T) {
	n := newNode(t)
	_, stop := n.start(t, n.options(), egressIP, "192.0.2.51")
	n.wantReport(t, "192.0.2.51", "<nil>")
	stop()
	sh(t, "ip neigh add proxy 192.0.2.77 dev eth0")
	for range 2 {
		must(t, Remove(t.Context()))
		wantState(t, hostState{Proxies: "192.0.2.77 dev eth0 proxy"})
	}
	if _, err := (hostnet.Sysctls{SavedFile: n.savedSysctls}).Restore(); err != nil {
		t.Errorf("restore sysctls: %v", err)
	}
	if got := strings.TrimSpace(sh(t, "sysctl -n net.ipv4.neigh.eth0.proxy_delay")); got == "0" {
		t.Error("proxy_delay after Restore: got 0, want the previous value")
	}
}

// The host restores what another program deletes. The kernel reports most changes.
func TestAddresses_restored(t *testing.T) {
	tier.Parallel(t)
	for _, test := range []struct {
		name, change string
		polled       bool
	}{
		{"route", "ip route del " + egressIP, false},
		{"routes of tun0", "ip route flush dev tun0", false},
		{"neighbour", "ip neigh del " + egressIP + " dev tun0", false},
		{"neighbour with another MAC", "ip neigh replace " + egressIP + " dev tun0 lladdr 0a:00:00:00:00:01 nud permanent", false},
		{"proxy neighbour", "ip neigh del proxy " + egressIP + " dev eth0", true},
		{"link of the uplink", "ip link set eth0 down; ip link set eth0 up", false},
		{"tun0 down", "ip link set tun0 down; ip link set tun0 up", false},
		{"address of the uplink", "ip addr del 192.0.2.10/24 dev eth0; ip addr add 192.0.2.10/24 dev eth0", false},
		{"proxy_delay", "sysctl -qw net.ipv4.neigh.eth0.proxy_delay=80", true},
		{"forwarding", "sysctl -qw net.ipv4.conf.eth0.forwarding=0", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newNode(t)
			o := n.options()
			if test.polled {
				o.Interval = 50 * time.Millisecond
			}
			n.start(t, o, egressIP)
			wantState(t, placed())
			sh(t, test.change)
			eventually(t, func() error {
				got := strings.Fields(sh(t, "sysctl -n net.ipv4.neigh.eth0.proxy_delay net.ipv4.conf.eth0.forwarding"))
				if diff := cmp.Diff([]string{"0", "1"}, got); diff != "" {
					return fmt.Errorf("sysctls differ (-want +got):\n%s", diff)
				}
				return nil
			})
			wantState(t, placed())
		})
	}
}

// The kernel does not report changes of sets.
func TestAddresses_setRestored(t *testing.T) {
	n := newNode(t)
	o := n.options()
	o.Interval = 50 * time.Millisecond
	n.start(t, o, egressIP)
	wantState(t, placed())
	must(t, hostnet.EgressSet{}.Remove(t.Context(), netip.MustParseAddr(egressIP)))
	must(t, hostnet.EgressSet{}.Add(t.Context(), netip.MustParseAddr("192.0.2.51")))
	wantState(t, placed())
}

// Open vSwitch re-creates tun0, whose routes and neighbours the kernel deletes.
func TestAddresses_tun0Recreated(t *testing.T) {
	n := newNode(t)
	n.start(t, n.options(), egressIP)
	wantState(t, placed())
	sh(t, "ip link del tun0")
	n.wantReport(t, egressIP, "interface tun0 does not exist")
	n.addTun0(t)
	n.syncTun0(t)
	wantState(t, placed())
	n.wantReport(t, egressIP, "<nil>")
}

// The host refuses an egress IP that it can't place, and places it when the cause is removed.
func TestAddresses_refused(t *testing.T) {
	tier.Parallel(t)
	for _, test := range []struct {
		name, addr, before string
		want               string // the report
		after              string // "": no change makes the host accept the address
	}{
		{"other network", "198.51.100.5", "true", "in no network of the node's interfaces", "ip tuntap add eth1 mode tap; ip addr add 198.51.100.1/24 dev eth1; ip link set eth1 up"},
		{"interface that is down", "198.51.100.5", "ip tuntap add eth1 mode tap; ip addr add 198.51.100.1/24 dev eth1", "that are up", "ip link set eth1 up"},
		{"the node's address", "192.0.2.10", "true", "an address of the node's own interface eth0", ""},
		{"address on lo", egressIP, "ip addr add 192.0.2.50/32 dev lo", "an address of the node's own interface lo", "ip addr del 192.0.2.50/32 dev lo"},
		{"network address", "192.0.2.0", "true", "the network's or the broadcast address", ""},
		{"broadcast address", "192.0.2.255", "true", "the network's or the broadcast address", ""},
		{"router", "192.0.2.1", "ip route add 203.0.113.0/24 via 192.0.2.1", "the address of a router", ""},
		{"one of several routers", "192.0.2.3", "ip route add 203.0.113.0/24 nexthop via 192.0.2.2 nexthop via 192.0.2.3", "the address of a router", ""},
		{"pod", "10.128.0.5", "true", "network 10.128.0.0/14 of pods or services", ""},
		{"network of lo", "127.0.0.5", "true", "in no network", ""},
		{"IPv6", "2001:db8::5", "true", "not an IPv4 address", ""},
		{"no ARP", "198.51.100.5", "ip tuntap add eth1 mode tap; ip addr add 198.51.100.1/24 dev eth1; ip link set eth1 up arp off", "does not use ARP", "ip link set eth1 arp on"},
		{"route of another program", egressIP, "ip route add 192.0.2.50 dev eth0 proto static", "route to 192.0.2.50 of another program", "ip route del 192.0.2.50 dev eth0"},
		{"unreachable route", egressIP, "ip route add unreachable 192.0.2.50", "unreachable route", "ip route del unreachable 192.0.2.50"},
		{"routing rule", egressIP, "ip rule add to 192.0.2.0/24 lookup 100; ip route add 192.0.2.0/24 dev eth0 table 100", "a routing rule of the host", "ip rule del to 192.0.2.0/24 lookup 100; ip addr add 203.0.113.9/24 dev eth0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newNode(t)
			sh(t, test.before)
			n.start(t, n.options(), test.addr)
			n.wantReport(t, test.addr, test.want)
			if got := stateOf(t); got.Routes+got.Proxies+got.Set != "" {
				t.Errorf("state: got %+v, want none", got)
			}
			if test.after == "" {
				return
			}
			sh(t, test.after)
			n.wantReport(t, test.addr, "<nil>")
		})
	}
}

// A placed egress IP that another program takes is removed, and the other program's route or address remains.
func TestAddresses_conflict(t *testing.T) {
	tier.Parallel(t)
	for name, test := range map[string]struct{ change, want, check string }{
		"route":   {"ip route replace 192.0.2.50 dev eth0 proto static", "of another program", "ip route show 192.0.2.50 dev eth0 proto static | grep -q 192"},
		"address": {"ip addr add 192.0.2.50/24 dev eth0", "an address of the node's own interface", "ip addr show dev eth0 | grep -q 192.0.2.50"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.start(t, n.options(), egressIP)
			wantState(t, placed())
			sh(t, test.change)
			n.wantReport(t, egressIP, test.want)
			eventually(t, func() error {
				if got := stateOf(t); got.Routes+got.Proxies+got.Set != "" {
					return fmt.Errorf("state: got %+v, want none", got)
				}
				return nil
			})
			sh(t, test.check)
		})
	}
}

// The most specific network decides, then the interface with the node's address.
func TestAddresses_uplink(t *testing.T) {
	for name, test := range map[string]struct{ before, want string }{
		"same network":          {"ip tuntap add eth1 mode tap; ip addr add 192.0.2.11/24 dev eth1; ip link set eth1 up", "eth0"},
		"more specific network": {"ip tuntap add eth1 mode tap; ip addr add 192.0.2.49/28 dev eth1; ip link set eth1 up", "eth1"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			sh(t, test.before)
			n.start(t, n.options(), egressIP)
			want := placed()
			want.Proxies = strings.Replace(want.Proxies, "eth0", test.want, 1)
			wantState(t, want)
		})
	}
}

// The proxy neighbour follows the network to another interface.
func TestAddresses_uplinkMoved(t *testing.T) {
	n := newNode(t)
	sh(t, "ip tuntap add eth1 mode tap; ip link set eth1 up")
	n.start(t, n.options(), egressIP)
	wantState(t, placed())
	sh(t, "ip addr add 192.0.2.49/28 dev eth1")
	want := placed()
	want.Proxies = strings.Replace(want.Proxies, "eth0", "eth1", 1)
	wantState(t, want)
}

// Failures that persist are reported, refused egress IPs are not.
func TestAddresses_healthy(t *testing.T) {
	n := newNode(t)
	o := n.options()
	o.Interval = 20 * time.Millisecond
	a, _ := n.start(t, o, "198.51.100.5", egressIP)
	n.wantReport(t, egressIP, "<nil>")
	if err := a.Healthy(); err != nil {
		t.Errorf("Healthy with a refused egress IP: got %v, want none", err)
	}
	sh(t, "ip link del tun0")
	eventually(t, func() error {
		if err := a.Healthy(); err == nil || !strings.Contains(err.Error(), "tun0") {
			return fmt.Errorf("got %w, want that of tun0", err)
		}
		return nil
	})
	n.addTun0(t)
	n.syncTun0(t)
	eventually(t, a.Healthy)
}

// Events of an interface are relevant once it is watched: those of the time between reading the host and then need another reconciliation.
func TestAddresses_newDevice(t *testing.T) {
	a := New(Options{})
	for _, test := range []struct {
		name    string
		devices []device
		again   bool
	}{
		{"first", []device{{index: 2, running: true}}, true},
		{"same", []device{{index: 2, running: true}}, false},
		{"new", []device{{index: 2, running: true}, {index: 3}}, true},
		{"deleted", []device{{index: 2, running: true}}, false},
	} {
		a.watchDevices(&host{tun0: 1, devices: test.devices})
		again := false
		select {
		case <-a.wake:
			again = true
		default:
		}
		if again != test.again {
			t.Errorf("%s: another reconciliation %t, want %t", test.name, again, test.again)
		}
	}
}
