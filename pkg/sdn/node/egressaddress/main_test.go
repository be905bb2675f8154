package egressaddress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"k8s.io/klog/v2/ktesting"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/linkmtu"
	"github.com/ovsdn/ovsdn/test/await"
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

// egressIP is an egress IP in the node's network.
const egressIP = "192.0.2.50"

// node is a host with the address 192.0.2.10, in the network namespace of the test. tun0 is a veth: bridge is its other end, with egressIP as an address. outside
// is another host, 192.0.2.1.
type node struct {
	here, bridge, outside ns.NetNS
	tun0                  *hostnet.Tun0
	savedSysctls          string

	mu      sync.Mutex
	reports []string
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{here: inNetNS(t), bridge: newNetNS(t), outside: newNetNS(t), savedSysctls: filepath.Join(t.TempDir(), "sysctls.json")}
	n.addTun0(t)
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(n.outside.Fd()))}))
	sh(t, "ip addr add 192.0.2.10/24 dev eth0; ip link set eth0 up; ip route add default via 192.0.2.1")
	n.in(t, n.outside, "ip addr add 192.0.2.1/24 dev eth0; ip link set eth0 up")
	n.tun0 = hostnet.NewTun0(hostnet.Tun0Config{
		Subnets:         []netip.Prefix{netip.MustParsePrefix("10.128.0.0/23")},
		ClusterNetworks: clusterNetworks(),
		MTU:             linkmtu.MTU{Link: 1450},
		Sysctls:         hostnet.Sysctls{SavedFile: n.savedSysctls},
	})
	n.syncTun0(t)
	return n
}

func clusterNetworks() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14")} }

func (n *node) addTun0(t *testing.T) {
	t.Helper()
	must(t, netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: "tun0", HardwareAddr: config.MAC(netip.MustParseAddr("10.128.0.1"))},
		PeerName:  "eth0", PeerNamespace: netlink.NsFd(int(n.bridge.Fd())),
	}))
	n.in(t, n.bridge, fmt.Sprintf("ip link set eth0 address %s; ip addr add %s/32 dev eth0; ip link set eth0 up; ip route add default via 10.128.0.1 dev eth0 onlink",
		config.MAC(netip.MustParseAddr(egressIP)), egressIP))
}

func (n *node) syncTun0(t *testing.T) {
	t.Helper()
	_, err := n.tun0.Sync(t.Context())
	must(t, err)
}

// syncFirewall adds the rules of the agent to a host that drops by default, and masquerades what it forwards.
func (n *node) syncFirewall(t *testing.T) {
	t.Helper()
	sh(t, "iptables -P FORWARD DROP; iptables -t nat -A POSTROUTING -o eth0 -j MASQUERADE")
	f, err := hostnet.NewFirewall(t.Context(), hostnet.FirewallConfig{
		ClusterNetworks: clusterNetworks(), Subnets: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/23")}, VXLANPort: 4789, IPMasq: true,
	})
	must(t, err)
	_, err = f.Sync(t.Context())
	must(t, err)
}

func (n *node) options() Options {
	return Options{
		Uplink: "eth0", Reserved: clusterNetworks(), SetUplink: n.tun0.SetEgressUplink,
		Interval: time.Hour, // too long for a poll
		Report: func(ip netip.Addr, err error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.reports = append(n.reports, fmt.Sprintf("%s: %v", ip, err))
		},
	}
}

// report returns the last report about the address; "": none.
func (n *node) report(addr string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range slices.Backward(n.reports) {
		if text, ok := strings.CutPrefix(r, addr+": "); ok {
			return text
		}
	}
	return ""
}

// start runs Addresses with the egress IPs until the returned function is called, or the test ends.
func (n *node) start(t *testing.T, o Options, ips ...string) (a *Addresses, stop func()) {
	t.Helper()
	a = New(o)
	a.announceInterval = 50 * time.Millisecond
	a.Set(addrs(ips...))
	return a, n.run(t, a)
}

func (n *node) run(t *testing.T, a *Addresses) (stop func()) {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := n.here.Set(); err != nil {
			done <- err
			return
		}
		a.Run(ctx)
		done <- nil
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// hostState is what the host has of egress IPs, in the words of `ip`.
type hostState struct{ Routes, Proxies, Neighbours, Set string }

func stateOf(t *testing.T) hostState {
	t.Helper()
	set, err := hostnet.EgressSet{}.List(t.Context())
	must(t, err)
	slices.SortFunc(set, netip.Addr.Compare)
	words := func(command string) string { return strings.Join(strings.Fields(sh(t, command)), " ") }
	return hostState{
		Routes:     words("ip route show proto 87 | sed 's/linkdown//'"),
		Proxies:    words("ip neigh show proxy"),
		Neighbours: words("ip neigh show dev tun0 nud permanent 2>/dev/null || true"),
		Set:        strings.Trim(fmt.Sprint(set), "[]"),
	}
}

func placed() hostState {
	return hostState{
		Routes:     egressIP + " dev tun0 scope link",
		Proxies:    egressIP + " dev eth0 proxy proto 87",
		Neighbours: egressIP + " lladdr 0a:58:c0:00:02:32 PERMANENT",
		Set:        egressIP,
	}
}

// wantState waits until the host has the state.
func wantState(t *testing.T, want hostState) {
	t.Helper()
	eventually(t, func() error {
		if diff := cmp.Diff(want, stateOf(t)); diff != "" {
			return fmt.Errorf("state differs (-want +got):\n%s", diff)
		}
		return nil
	})
}

// wantReport waits until the last report about the address contains the text.
func (n *node) wantReport(t *testing.T, addr, want string) {
	t.Helper()
	eventually(t, func() error {
		if got := n.report(addr); !strings.Contains(got, want) {
			return fmt.Errorf("report about %s: got %q, want %q", addr, got, want)
		}
		return nil
	})
}

func eventually(t *testing.T, look func() error) {
	t.Helper()
	await.OK(t, 90*time.Second, func(context.Context) error { return look() })
}

func (n *node) in(t *testing.T, netns ns.NetNS, command string) (out string) {
	t.Helper()
	must(t, netns.Do(func(ns.NetNS) error { out = sh(t, command); return nil }))
	return out
}

func addrs(ips ...string) (all []netip.Addr) {
	for _, ip := range ips {
		all = append(all, netip.MustParseAddr(ip))
	}
	return all
}

// inNetNS moves the test into a new network namespace with lo up, until the test ends.
func inNetNS(t *testing.T) ns.NetNS {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	runtime.LockOSThread()
	before, err := ns.GetCurrentNS()
	must(t, err)
	netns := newNetNS(t)
	must(t, netns.Set())
	t.Cleanup(func() {
		if err := before.Set(); err != nil {
			t.Errorf("leave the network namespace: %v", err)
			return // the thread stays locked, and ends with the test
		}
		before.Close()
		runtime.UnlockOSThread()
	})
	return netns
}

func newNetNS(t *testing.T) ns.NetNS {
	t.Helper()
	netns, err := ns.TempNetNS()
	must(t, err)
	t.Cleanup(func() { netns.Close() })
	must(t, netns.Do(func(ns.NetNS) error {
		return netlink.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "lo"}})
	}))
	return netns
}

// sh runs a command and returns what it prints.
func sh(t *testing.T, command string) string {
	t.Helper()
	out, err := exec.Command("sh", "-ec", command).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// udp opens a socket in the namespace.
func udp(t *testing.T, netns ns.NetNS, addr string) *net.UDPConn {
	t.Helper()
	var conn *net.UDPConn
	must(t, netns.Do(func(ns.NetNS) (err error) {
		conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(addr)))
		return err
	}))
	t.Cleanup(func() { conn.Close() })
	must(t, conn.SetDeadline(time.Now().Add(90*time.Second)))
	return conn
}

func send(t *testing.T, from *net.UDPConn, to string) {
	t.Helper()
	_, err := from.WriteToUDPAddrPort([]byte("hello"), netip.MustParseAddrPort(to))
	must(t, err)
}

// sender waits for a packet and returns its source; "": none came.
func sender(t *testing.T, conn *net.UDPConn) string {
	t.Helper()
	_, from, err := conn.ReadFromUDPAddrPort(make([]byte, 100))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ""
	}
	must(t, err)
	return from.String()
}
