package hostnet

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/linkmtu"
)

func TestTun0_nextHop(t *testing.T) {
	inNetNS(t)
	addInterface(t, Tun0Name, config.MAC(netip.MustParseAddr("10.128.0.1")))
	syncTun0(t, balanced())
	wantState(t, balancedState())
	if got := sh(t, "ip route get 172.30.0.1"); !strings.Contains(got, "via 169.254.0.11 dev tun0 src 10.128.0.1") {
		t.Errorf("route to a service: got %s", got)
	}
	c := balanced()
	c.MTU = linkmtu.MTU{Link: 1450, Routes: 1400}
	syncTun0(t, c)
	want := balancedState()
	for i := range want.Routes {
		want.Routes[i] += " mtu 1400"
	}
	wantState(t, want)
}

func TestTun0_nextHopSync(t *testing.T) {
	for _, test := range []struct{ name, before string }{
		{"gateway that is not on-link", "ip addr add 169.254.0.1/16 dev tun0; ip route add 172.30.0.0/16 via 169.254.0.11 dev tun0"},
		{"another gateway", "ip route add 172.30.0.0/16 via 169.254.0.12 dev tun0 onlink"},
		{"another metric", "ip route add 172.30.0.0/16 via 169.254.0.11 dev tun0 onlink metric 7"},
		{"route of the next hop with another scope", "ip route add 169.254.0.11 dev tun0 scope global"},
		{"another next hop", "ip route add 169.254.0.12 dev tun0; ip neigh add 169.254.0.12 lladdr 0a:58:a9:fe:00:0c dev tun0"},
		{"another MAC", "ip neigh add 169.254.0.11 lladdr 0a:58:a9:fe:00:0c dev tun0"},
		{"failed neighbour", "ip neigh add 169.254.0.11 dev tun0 nud failed"},
		{"another interface has the route", "ip route add 169.254.0.0/16 dev eth0; ip route add 169.254.0.11 dev eth0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			inNetNS(t)
			addInterface(t, "eth0", nil, "192.0.2.10/24")
			addInterface(t, Tun0Name, config.MAC(netip.MustParseAddr("10.128.0.1")))
			sh(t, test.before)
			syncTun0(t, balanced())
			wantState(t, balancedState())
		})
	}
}

// Between both settings, the service network has a route to tun0 at any time: the kernel reports replaced routes, and no deleted one.
func TestTun0_nextHopChanged(t *testing.T) {
	inNetNS(t)
	addInterface(t, "eth0", nil, "192.0.2.10/24")
	addInterface(t, Tun0Name, config.MAC(netip.MustParseAddr("10.128.0.1")))
	sh(t, "ip route add default via 192.0.2.1 dev eth0")
	syncTun0(t, node1())

	updates, done := make(chan netlink.RouteUpdate, 100), make(chan struct{})
	defer func() {
		close(done)
		for range updates { // until the subscription ends
		}
	}()
	must(t, netlink.RouteSubscribe(updates, done))
	for _, test := range []struct {
		config Tun0Config
		want   tun0State
	}{{balanced(), balancedState()}, {node1(), node1State()}, {balanced(), balancedState()}} {
		changes := syncTun0(t, test.config)
		wantState(t, test.want)
		if hop := "neighbour 169.254.0.11 "; !strings.Contains(strings.Join(changes, "\n"), hop) {
			t.Errorf("got changes %q, want one with %q", changes, hop)
		}
	}
	last := netip.MustParsePrefix("198.51.100.0/24")
	sh(t, "ip route add "+last.String()+" dev eth0")
	var got []string
	for u := range updates {
		dst := fromIPNet(u.Dst)
		if dst == last {
			break
		}
		if dst != node1().ServiceNetwork {
			continue
		}
		switch {
		case u.Type == unix.RTM_DELROUTE:
			got = append(got, "deleted")
		case u.NlFlags&unix.NLM_F_REPLACE != 0:
			got = append(got, "replaced, next hop "+u.Gw.String())
		default:
			got = append(got, "added")
		}
	}
	want := []string{"replaced, next hop 169.254.0.11", "replaced, next hop <nil>", "replaced, next hop 169.254.0.11"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("changes of the route to the service network (-want +got):\n%s", diff)
	}
}

// Permanent neighbours of a previous agent are removed at first only: Sync does not list the neighbours of all pods again.
func TestTun0_neighboursListedOnce(t *testing.T) {
	inNetNS(t)
	addInterface(t, Tun0Name, config.MAC(netip.MustParseAddr("10.128.0.1")))
	syncTun0(t, balanced())
	tun0 := NewTun0(node1())
	for range 2 {
		_, err := tun0.Sync(t.Context())
		must(t, err)
		wantState(t, node1State())
	}
	sh(t, "ip neigh add 10.128.0.9 lladdr 0a:58:0a:80:00:09 dev tun0")
	changes, err := tun0.Sync(t.Context())
	must(t, err)
	if len(changes) > 0 {
		t.Errorf("Sync with a neighbour of the user: got changes %q, want none", changes)
	}
}

// The host resolves no service: it sends packets to all services to the next hop's MAC.
func TestServicesThroughTheNextHop(t *testing.T) {
	n := newNetwork(t, openShift())
	syncTun0(t, balanced())
	must(t, n.pods.Do(func(ns.NetNS) error {
		sh(t, "ip link set eth0 address 0a:58:a9:fe:00:0b; ip addr add 172.30.0.10/32 dev eth0; ip addr add 172.30.7.7/32 dev eth0; sysctl -qw net.ipv4.conf.eth0.arp_ignore=8")
		return nil
	}))
	here, err := ns.GetCurrentNS()
	must(t, err)
	defer here.Close()
	for _, service := range []string{"172.30.0.10:53", "172.30.7.7:53"} {
		server, client := udp(t, n.pods, service), udp(t, here, "0.0.0.0:0")
		send(t, client, service)
		if from := sender(t, server); from.Addr() != netip.MustParseAddr("10.128.0.1") {
			t.Errorf("service %s: got a packet from %s, want 10.128.0.1", service, from)
		}
	}
	if got, want := sh(t, "ip -4 neigh show dev tun0 nud all | grep -v NOARP | cut -d' ' -f1"), "169.254.0.11\n"; got != want {
		t.Errorf("neighbours: got %q, want %q", got, want)
	}
}
