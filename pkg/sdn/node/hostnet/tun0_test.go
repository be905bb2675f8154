package hostnet

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/linkmtu"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sysctl"
)

func node1() Tun0Config {
	return Tun0Config{
		Subnets:         prefixes("10.128.0.0/23"),
		ClusterNetworks: prefixes("10.128.0.0/14"),
		ServiceNetwork:  netip.MustParsePrefix("172.30.0.0/16"),
		MTU:             linkmtu.MTU{Link: 1450},
	}
}

// tun0State is the state of tun0 in the words of `ip`.
type tun0State struct {
	Link      string
	Addresses []string
	Routes    []string

	Neighbours string // the permanent ones
}

func stateOfTun0(t *testing.T) tun0State {
	t.Helper()
	var s tun0State
	for _, word := range []string{"mtu 1450", "UP"} {
		if strings.Contains(sh(t, "ip link show dev tun0"), word) {
			s.Link += word + " "
		}
	}
	for line := range strings.Lines(sh(t, "ip -o addr show dev tun0 | grep -v 'inet6 fe80' || true")) {
		f := strings.Fields(line) // 2: tun0 inet 10.128.0.1/23 …
		a := f[3]
		if strings.Contains(line, "noprefixroute") {
			a += " noprefixroute"
		}
		s.Addresses = append(s.Addresses, a)
	}
	for line := range strings.Lines(sh(t, "ip route show dev tun0; ip -6 route show dev tun0 | grep -v fe80 || true")) {
		s.Routes = append(s.Routes, strings.Join(strings.Fields(strings.ReplaceAll(line, "linkdown", "")), " "))
	}
	slices.Sort(s.Routes)
	s.Neighbours = sh(t, "ip neigh show dev tun0 nud permanent | sed 's/ *$//'")
	return s
}

func wantState(t *testing.T, want tun0State) {
	t.Helper()
	if diff := cmp.Diff(want, stateOfTun0(t)); diff != "" {
		t.Errorf("tun0 differs (-want +got):\n%s", diff)
	}
}

func node1State() tun0State {
	return tun0State{
		Link:      "mtu 1450 UP ",
		Addresses: []string{"10.128.0.1/23 noprefixroute"},
		Routes:    []string{"10.128.0.0/14 scope link", "172.30.0.0/16"},
	}
}

// balanced is node1 with a next hop to services.
func balanced() Tun0Config {
	c := node1()
	c.ServiceNextHop = netip.MustParseAddr("169.254.0.11")
	c.ServiceNextHopMAC = config.MAC(c.ServiceNextHop)
	c.ServiceOutside = netip.MustParseAddr("169.254.0.12")
	return c
}

func balancedState() tun0State {
	s := node1State()
	s.Routes = []string{"10.128.0.0/14 scope link", "169.254.0.11 scope link", "169.254.0.12 via 169.254.0.11 onlink", "172.30.0.0/16 via 169.254.0.11 onlink"}
	s.Neighbours = "169.254.0.11 lladdr 0a:58:a9:fe:00:0b PERMANENT\n"
	return s
}

// syncTun0 calls Sync twice, and checks that the second call changes nothing.
func syncTun0(t *testing.T, c Tun0Config) []string {
	t.Helper()
	tun0 := NewTun0(c)
	changes, err := tun0.Sync(t.Context())
	must(t, err)
	again, err := tun0.Sync(t.Context())
	must(t, err)
	if len(again) > 0 {
		t.Errorf("second Sync: got changes %q", again)
	}
	return changes
}

func TestTun0(t *testing.T) {
	inNetNS(t)
	mac := config.MAC(netip.MustParseAddr("10.128.0.1"))
	addInterface(t, Tun0Name, mac)
	sh(t, "ip link set tun0 down; sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.ip_forward=0")

	changes := syncTun0(t, node1())
	wantState(t, node1State())
	for _, want := range []string{"MTU 1450 (was 1500)", "up", "address 10.128.0.1/23 added", "route 10.128.0.0/14 added", "route 172.30.0.0/16 added",
		"sysctl net/ipv4/ip_forward=1 (was 0)", "sysctl net/ipv6/conf/tun0/disable_ipv6=1 (was 0)"} {
		if !slices.Contains(changes, want) {
			t.Errorf("got changes %q, want %q among them", changes, want)
		}
	}
	got := sh(t, "cd /proc/sys/net; cat ipv4/ip_forward ipv4/conf/tun0/rp_filter ipv4/conf/tun0/arp_announce ipv4/conf/all/send_redirects ipv4/conf/tun0/send_redirects")
	if want := "1\n2\n2\n0\n0\n"; got != want {
		t.Errorf("got sysctls %q, want %q", got, want)
	}
	// The kernel's route lookup must return tun0 and the gateway's address.
	if got := sh(t, "ip route get 10.131.2.3"); !strings.Contains(got, "dev tun0 src 10.128.0.1") {
		t.Errorf("route to a pod: got %s", got)
	}
	if got := sh(t, "ip route get 172.30.0.1"); !strings.Contains(got, "dev tun0 src 10.128.0.1") {
		t.Errorf("route to a service: got %s", got)
	}
}

func TestTun0_sync(t *testing.T) {
	for _, test := range []struct{ name, before string }{
		{"addresses", "ip addr add 10.99.0.1/24 dev tun0; ip addr add 10.128.0.1/24 dev tun0"},
		{"the wanted address is secondary to a stale one", "ip addr add 10.128.0.9/23 dev tun0; ip addr add 10.128.0.1/23 dev tun0 noprefixroute"},
		{"the kernel's route to the node's subnet", "ip addr add 10.128.0.1/23 dev tun0"},
		{"routes", `ip addr add 10.128.0.1/23 dev tun0 noprefixroute
			ip route add 10.99.0.0/16 dev tun0; ip route add default dev tun0; ip route add blackhole 10.98.0.0/16`},
		{"another metric", "ip route add 10.128.0.0/14 dev tun0 metric 50; ip route add 172.30.0.0/16 dev tun0 metric 7"},
		{"another scope", "ip route add 10.128.0.0/14 dev tun0 scope global; ip route add 172.30.0.0/16 dev tun0 scope link"},
		{"another source", `ip addr add 10.128.0.1/23 dev tun0; ip addr add 10.99.0.1/32 dev tun0
			ip route add 10.128.0.0/14 dev tun0 src 10.99.0.1`},
		{"a gateway", "ip addr add 10.128.0.1/23 dev tun0; ip route add 172.30.0.0/16 via 10.128.0.7 dev tun0"},
		{"another interface has the route", "ip route add 10.128.0.0/14 dev eth0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			inNetNS(t)
			addInterface(t, "eth0", nil, "192.0.2.10/24")
			addInterface(t, Tun0Name, config.MAC(netip.MustParseAddr("10.128.0.1")))
			sh(t, test.before)
			syncTun0(t, node1())
			got := stateOfTun0(t)
			// The flags of an existing address are not changed.
			for i, a := range got.Addresses {
				got.Addresses[i] = strings.TrimSuffix(a, " noprefixroute") + " noprefixroute"
			}
			if diff := cmp.Diff(node1State(), got); diff != "" {
				t.Errorf("tun0 differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestTun0_severalNetworks(t *testing.T) {
	inNetNS(t)
	addInterface(t, Tun0Name, config.MAC(netip.MustParseAddr("10.128.0.1")))
	c := node1()
	c.Subnets = prefixes("10.128.0.0/23", "10.64.3.0/24", "fd00:10:128::/64")
	c.ClusterNetworks = prefixes("10.128.0.0/14", "10.64.0.0/16", "fd00:10::/32")
	syncTun0(t, c)
	wantState(t, tun0State{
		Link:      "mtu 1450 UP ",
		Addresses: []string{"10.128.0.1/23 noprefixroute", "10.64.3.1/24 noprefixroute", "fd00:10:128::1/64 noprefixroute"},
		Routes:    []string{"10.128.0.0/14 scope link", "10.64.0.0/16 scope link", "172.30.0.0/16", "fd00:10::/32 metric 1024 pref medium"},
	})
	// The node's subnets change.
	c = node1()
	c.Subnets = prefixes("10.128.0.0/24")
	syncTun0(t, c)
	want := node1State()
	want.Addresses = []string{"10.128.0.1/24 noprefixroute"}
	wantState(t, want)
}

func TestTun0_errors(t *testing.T) {
	t.Run("missing", func(t *testing.T) {
		inNetNS(t)
		_, err := NewTun0(node1()).Sync(t.Context())
		wantError(t, err, "find tun0", "ovs-vsctl show")
	})
	t.Run("another program's", func(t *testing.T) {
		inNetNS(t)
		mac := config.MAC(netip.MustParseAddr("10.200.0.1"))
		addInterface(t, Tun0Name, mac, "10.8.0.1/24")
		before := stateOfTun0(t)
		_, err := NewTun0(node1()).Sync(t.Context())
		wantError(t, err, `MAC "0a:58:0a:c8:00:01"`, `"0a:58:0a:80:00:01"`)
		wantState(t, before)
	})
	t.Run("stopped", func(t *testing.T) {
		inNetNS(t)
		addInterface(t, Tun0Name, config.MAC(netip.MustParseAddr("10.128.0.1")))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if changes, err := NewTun0(node1()).Sync(ctx); !errors.Is(err, context.Canceled) || len(changes) > 0 {
			t.Errorf("Sync: got changes %q, error %v; want %v", changes, err, context.Canceled)
		}
	})
}

func TestSysctls_readOnly(t *testing.T) {
	inNetNS(t)
	addInterface(t, Tun0Name, config.MAC(netip.MustParseAddr("10.128.0.1")))
	syncTun0(t, node1())

	done, checked, changed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	netns, err := os.Open("/proc/thread-self/ns/net")
	must(t, err)
	defer netns.Close()
	go func() { // its thread gets another mount namespace, and ends with it
		defer close(done)
		if err := readOnlyProcSys(int(netns.Fd())); err != nil {
			t.Error(err)
			return
		}
		if changes, err := NewTun0(node1()).Sync(t.Context()); err != nil || len(changes) > 0 {
			t.Errorf("Sync without differences: got changes %q, error %v", changes, err)
		}
		_, err := Sysctls{}.ensure(sysctl.Setting{Key: "net/ipv4/ip_forward", Value: "0"}, "")
		if !errors.Is(err, fs.ErrPermission) && !errors.Is(err, unix.EROFS) {
			t.Errorf("ensure of a read-only sysctl: got %v", err)
			return
		}
		wantError(t, err, "set sysctl net.ipv4.ip_forward from 1 to 0: ", "/etc/sysctl.d")
		close(checked)
		<-changed
		changes, err := NewTun0(node1()).Sync(t.Context())
		if err == nil || !slices.Contains(changes, "address 10.128.0.1/23 added") {
			t.Errorf("Sync: got changes %q, error %v; want the address restored, and an error", changes, err)
			return
		}
		wantError(t, err, "set sysctl net.ipv4.conf.tun0.forwarding from 0 to 1: ", "--sysctl-dir")
		if !errors.As(err, new(*SysctlError)) {
			t.Errorf("Sync with all but a sysctl restored: got error %T, want *SysctlError, with which an agent starts", err)
		}
		foreign := node1()
		foreign.MTU.Link = 1 << 30 // no link has it
		if _, err := NewTun0(foreign).Sync(t.Context()); err == nil || errors.As(err, new(*SysctlError)) {
			t.Errorf("Sync with another failure: got %v, want an error other than *SysctlError", err)
		}
	}()
	select {
	case <-checked:
		sh(t, "sysctl -qw net.ipv4.conf.tun0.forwarding=0; ip addr flush dev tun0")
		close(changed)
		<-done
	case <-done: // failed
	}

	if _, err := (Sysctls{}).ensure(sysctl.Setting{Key: "net/ipv4/no_such_thing", Value: "1"}, ""); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ensure of a missing sysctl: got %v, want %v", err, fs.ErrNotExist)
	}
	if change, err := (Sysctls{}).ensure(sysctl.Setting{Key: "net/ipv7/no_such_thing", Value: "1", Optional: true}, ""); err != nil || change != "" {
		t.Errorf("ensure of a missing optional sysctl: got change %q, error %v", change, err)
	}
}

func TestTun0_run(t *testing.T) {
	const others = "ip link add eth0 type veth peer name eth1; ip addr add 192.0.2.10/24 dev eth0; ip link set eth0 up; ip link set eth1 up; "
	for _, test := range []struct{ name, change string }{
		{"address removed", "ip addr flush dev tun0"},
		{"address added", "ip addr add 10.7.7.7/24 dev tun0"},
		{"down", "ip link set tun0 down"},
		{"MTU", "ip link set tun0 mtu 1300"},
		{"MTU of a route", "ip route change 172.30.0.0/16 dev tun0 mtu 1300"},
		{"route removed", "ip route del 172.30.0.0/16"},
		{"route added", "ip route add 10.99.0.0/16 dev tun0"},
		{"route replaced", others + "ip route replace 10.128.0.0/14 dev eth0"},
		{"re-created", "ip tuntap del tun0 mode tap; ip tuntap add tun0 mode tap; ip link set tun0 address 0a:58:0a:80:00:01"},
		{"forwarding", "sysctl -qw net.ipv4.ip_forward=0"},
	} {
		t.Run(test.name, func(t *testing.T) { testRun(t, node1(), node1State(), test.change) })
		t.Run(test.name+", next hop", func(t *testing.T) { testRun(t, balanced(), balancedState(), test.change) })
	}
	const hop = "169.254.0.11"
	for _, test := range []struct{ name, change string }{
		{"neighbour removed", "ip neigh del " + hop + " dev tun0"},
		{"another MAC", "ip neigh replace " + hop + " lladdr 0a:58:0a:80:00:02 dev tun0"},
		{"not permanent", "ip neigh change " + hop + " lladdr 0a:58:a9:fe:00:0b nud stale dev tun0"},
		{"neighbours flushed", "ip neigh flush nud all dev tun0"},
		{"route removed", "ip route del " + hop},
		{"route replaced", others + "ip route replace " + hop + " dev eth0"},
	} {
		t.Run("next hop: "+test.name, func(t *testing.T) { testRun(t, balanced(), balancedState(), test.change) })
	}
}

// testRun checks that Run restores tun0 after the change. The interval is too long for a poll: Run must receive the event.
func testRun(t *testing.T, c Tun0Config, want tun0State, change string) {
	netns := inNetNS(t)
	addInterface(t, Tun0Name, config.MAC(netip.MustParseAddr("10.128.0.1")))
	inSync := func() bool {
		if !strings.Contains(sh(t, "ip link show"), "tun0") {
			return false
		}
		return cmp.Equal(want, stateOfTun0(t)) && sh(t, "cat /proc/sys/net/ipv4/ip_forward") == "1\n"
	}
	background(t, netns, func(ctx context.Context) { NewTun0(c).Run(ctx, time.Hour) })
	eventually(t, "Run sets tun0 up", inSync)
	sh(t, change)
	eventually(t, "Run restores tun0", inSync)
}

// readOnlyProcSys locks the calling goroutine to its thread, and makes /proc/sys read-only there, in the network namespace.
func readOnlyProcSys(netns int) error {
	runtime.LockOSThread() // and never unlock: the thread ends with the goroutine
	if err := unix.Setns(netns, unix.CLONE_NEWNET); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("/proc/sys", "/proc/sys", "", unix.MS_BIND, ""); err != nil {
		return err
	}
	return unix.Mount("", "/proc/sys", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
}
