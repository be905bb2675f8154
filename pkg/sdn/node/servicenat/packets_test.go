package servicenat

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"k8s.io/klog/v2/ktesting"

	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/tier"
)

const (
	nodeIP    = "192.0.2.10" // the VTEP
	otherIP   = "198.51.100.10"
	gatewayIP = "10.128.0.1"
	clientIP  = "192.0.2.1"
)

// host is a node's network namespace, a client's, and one in place of the switch, behind tun0: it has the cluster IP.
type host struct {
	*Translator
	node, client, switched ns.NetNS
}

// newHost moves the test into the node's namespace. Run starts with the frontends of one service.
func newHost(t *testing.T, frontends ...Frontend) *host {
	t.Helper()
	return newHostWith(t, testOptions(), frontends...)
}

func newHostWith(t *testing.T, o Options, frontends ...Frontend) *host {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	tier.Parallel(t)
	h := &host{node: newNetNS(t), client: newNetNS(t), switched: newNetNS(t)}
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	must(t, h.node.Set())
	veth(t, "tun0", h.switched)
	veth(t, "eth0", h.client)
	sh(t, `ip addr add 192.0.2.10/24 dev eth0; ip addr add 198.51.100.10/32 dev eth0; ip addr add 10.128.0.1/14 dev tun0
		ip link set eth0 up; ip link set tun0 up; ip route add 172.30.0.0/16 via 10.128.0.2; ip route add default via 192.0.2.1
		sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.tun0.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0`)
	h.in(t, h.client, "ip addr add 192.0.2.1/24 dev eth0; ip addr add 192.0.2.5/24 dev eth0; ip link set eth0 up; ip route add default via 192.0.2.10")
	// It drops packets of other hosts without the mark, those of the node with it, and those of unknown sources.
	h.in(t, h.switched, `ip addr add 10.128.0.2/14 dev eth0; ip addr add 172.30.0.10/32 dev eth0; ip link set eth0 up; ip route add default via 10.128.0.1
		nft add table ip test; nft add chain ip test check '{ type filter hook prerouting priority 0; }'
		nft add rule ip test check ip saddr '{ 192.0.2.10, 10.128.0.1 }' ip dscp 0 accept
		nft add rule ip test check ip saddr '{ 192.0.2.1, 192.0.2.5 }' ip dscp 62 accept
		nft add rule ip test check drop`)
	serve(t, h.switched, "172.30.0.10:80")
	must(t, Supported(t.Context()))
	o.WarnNode = func(reason, message string) { t.Log(reason, message) }
	h.Translator = New(o)
	h.Set("a/web", frontends)
	h.run(t)
	h.awaitWritten(t)
	return h
}

func (h *host) run(t *testing.T) {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := h.node.Set()
		if err == nil {
			h.Run(ctx)
		}
		done <- err
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// awaitWritten waits until the first rules are written.
func (h *host) awaitWritten(t *testing.T) {
	t.Helper()
	await.OK(t, await.SyncTime, func(context.Context) error {
		if !h.Synced() {
			return errors.New("the rules are not written")
		}
		return nil
	})
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

func veth(t *testing.T, name string, peer ns.NetNS) {
	t.Helper()
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(peer.Fd()))}))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func sh(t *testing.T, command string) string {
	t.Helper()
	out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "sh", "-ec", command).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}

func (h *host) in(t *testing.T, netns ns.NetNS, command string) {
	t.Helper()
	must(t, netns.Do(func(ns.NetNS) error {
		sh(t, command)
		return nil
	}))
}

// serve answers each connection with the client's address, until the test ends.
func serve(t *testing.T, netns ns.NetNS, addr string) {
	t.Helper()
	var l net.Listener
	must(t, netns.Do(func(ns.NetNS) (err error) {
		l, err = net.Listen("tcp4", addr)
		return err
	}))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, netip.MustParseAddrPort(conn.RemoteAddr().String()).Addr().String()) // the client reports the error
			conn.Close()
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
}

// dial returns the address that the server has seen.
func dial(t *testing.T, netns ns.NetNS, from, to string, timeout time.Duration) (seen string, err error) {
	t.Helper()
	err = netns.Do(func(ns.NetNS) error {
		d := net.Dialer{Timeout: timeout}
		if from != "" {
			d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
		}
		conn, err := d.DialContext(t.Context(), "tcp4", to)
		if err != nil {
			return err
		}
		defer conn.Close()
		must(t, conn.SetDeadline(time.Now().Add(await.PacketTime)))
		b, err := io.ReadAll(conn)
		seen = string(b)
		return err
	})
	return seen, err
}

// wantSource checks the source with which the switch gets the connection.
func wantSource(t *testing.T, netns ns.NetNS, from, to, want string) {
	t.Helper()
	if got, err := dial(t, netns, from, to, await.PacketTime); got != want || err != nil {
		t.Errorf("from %q to %s: got a connection from %q (%v), want one from %s", from, to, got, err, want)
	}
}

func wantRefused(t *testing.T, netns ns.NetNS, to string) {
	t.Helper()
	if _, err := dial(t, netns, "", to, await.PacketTime); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("to %s: got %v, want %v", to, err, syscall.ECONNREFUSED)
	}
}

func wantDropped(t *testing.T, netns ns.NetNS, from, to string) {
	t.Helper()
	var timeout net.Error
	if _, err := dial(t, netns, from, to, 2*time.Second); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("from %q to %s: got %v, want a timeout", from, to, err)
	}
}

func TestRules(t *testing.T) {
	h := newHost(t, nodePort(30080, forward), nodePort(30081, reject), nodePort(30082, drop), external("203.0.113.5", forward), external("203.0.113.6", reject),
		external("203.0.113.7", drop), external("203.0.113.8", forward, "10.0.0.0/8", "192.0.2.1/32", nodeIP+"/32"), external(otherIP, reject))
	serve(t, h.node, "0.0.0.0:30081") // would accept
	serve(t, h.node, "0.0.0.0:30082")
	serve(t, h.node, "0.0.0.0:80")
	for _, to := range []string{nodeIP + ":30080", otherIP + ":30080", gatewayIP + ":30080", "203.0.113.5:80", "203.0.113.8:80"} {
		wantSource(t, h.client, clientIP, to, clientIP)
	}
	wantSource(t, h.client, "", nodeIP+":80", clientIP) // the node's own port
	for _, to := range []string{nodeIP + ":30081", "203.0.113.6:80", otherIP + ":80"} {
		wantRefused(t, h.client, to)
		wantRefused(t, h.node, to)
	}
	for _, to := range []string{nodeIP + ":30082", "203.0.113.7:80"} {
		wantDropped(t, h.client, "", to)
		wantDropped(t, h.node, "", to)
	}
	wantDropped(t, h.client, "192.0.2.5", "203.0.113.8:80")
	wantDropped(t, h.node, otherIP, "203.0.113.8:80")

	// The node's own programs.
	wantSource(t, h.node, "", nodeIP+":30080", gatewayIP)
	wantSource(t, h.node, "", otherIP+":30080", gatewayIP)
	wantSource(t, h.node, otherIP, "203.0.113.5:80", gatewayIP)
	wantSource(t, h.node, "", "203.0.113.8:80", gatewayIP)
	wantRefused(t, h.node, "127.0.0.1:30080")
	wantSource(t, h.node, "", "127.0.0.1:30081", "127.0.0.1") // the program's own port
	wantSource(t, h.node, gatewayIP, "172.30.0.10:80", gatewayIP)
	wantSource(t, h.node, nodeIP, "172.30.0.10:80", gatewayIP)
	wantSource(t, h.node, otherIP, "172.30.0.10:80", gatewayIP)
}

// Packets from the switch pass, whatever the verdict: it has evaluated them.
func TestRules_fromSwitch(t *testing.T) {
	h := newHost(t, nodePort(30080, forward), external("203.0.113.5", forward, "192.0.2.1/32"), external("203.0.113.6", reject), external("203.0.113.7", drop))
	h.in(t, h.switched, "nft flush ruleset")
	for _, addr := range []string{"203.0.113.5", "203.0.113.6", "203.0.113.7"} {
		h.in(t, h.client, "ip addr add "+addr+"/32 dev lo")
		serve(t, h.client, addr+":80")
		wantSource(t, h.switched, "10.128.0.2", addr+":80", "10.128.0.2")
	}
	wantRefused(t, h.switched, nodeIP+":30080") // no program of the node listens
}

// Translations of kube-proxy, whose rules may be older or newer, precede.
func TestRules_behindOtherTranslations(t *testing.T) {
	h := newHost(t, nodePort(30080, forward), external("203.0.113.5", forward))
	h.in(t, h.switched, "nft flush ruleset; nft add table ip test; nft add chain ip test check '{ type filter hook prerouting priority 0; policy drop; }'")
	serve(t, h.node, nodeIP+":8081")
	sh(t, `nft add table ip proxy
		for hook in prerouting output; do
			nft add chain ip proxy $hook "{ type nat hook $hook priority -100; }"
			nft add rule ip proxy $hook ip daddr 203.0.113.5 tcp dport 80 dnat to `+nodeIP+`:8081
			nft add rule ip proxy $hook fib daddr type local tcp dport 30080 dnat to `+nodeIP+`:8081
		done`)
	for _, order := range []string{"newer", "older"} {
		for _, to := range []string{"203.0.113.5:80", nodeIP + ":30080"} {
			wantSource(t, h.client, clientIP, to, clientIP)
			wantSource(t, h.node, nodeIP, to, nodeIP)
		}
		if t.Failed() {
			t.Fatalf("the other program's table is %s", order)
		}
		sh(t, `(echo delete table ip `+tableName+`; nft list table ip `+tableName+`) | nft -f -`)
	}
}

// A tenant's external IP takes no packets of the node's programs, and none to an address of the node.
func TestRules_tenantAddress(t *testing.T) {
	frontends := []Frontend{atNode(6443, forward), atNode(6444, forward, "198.51.100.1/32"), atNode(6445, reject), atNode(6446, drop), external("203.0.113.6", reject)}
	for i := range frontends {
		frontends[i].TenantAddress = true
	}
	h := newHost(t, append(frontends, nodePort(30080, forward))...)
	h.in(t, h.switched, "nft flush ruleset; nft add table ip test; nft add chain ip test check '{ type filter hook prerouting priority 0; policy drop; }'")
	for _, port := range []string{"6443", "6444", "6445", "6446"} {
		serve(t, h.node, nodeIP+":"+port)
		wantSource(t, h.node, nodeIP, nodeIP+":"+port, nodeIP)
		wantSource(t, h.client, clientIP, nodeIP+":"+port, clientIP)
	}
	h.in(t, h.client, "ip addr add 203.0.113.6/32 dev lo")
	serve(t, h.client, "203.0.113.6:80")
	wantSource(t, h.node, nodeIP, "203.0.113.6:80", nodeIP)
}

// Changes and the restoration of a deleted table leave connections intact.
func TestRules_changes(t *testing.T) {
	h := newHost(t, nodePort(30080, forward), external("203.0.113.8", forward, "192.0.2.0/30"))
	wantDropped(t, h.client, "192.0.2.5", "203.0.113.8:80")
	awaitSource := func(from, to string) {
		t.Helper()
		await.OK(t, await.SyncTime, func(context.Context) error {
			_, err := dial(t, h.client, from, to, time.Second)
			return err
		})
	}
	h.Set("a/web", []Frontend{nodePort(30080, forward), external("203.0.113.8", forward, "192.0.2.0/24")})
	awaitSource("192.0.2.5", "203.0.113.8:80")
	h.Set("a/web", []Frontend{nodePort(30080, forward), external("203.0.113.8", forward, "192.0.2.0/31", "192.0.2.4/30")})
	h.Set("b/web", []Frontend{nodePort(30090, forward)})
	awaitSource("", nodeIP+":30090")
	awaitSource("192.0.2.5", "203.0.113.8:80")
	before := sh(t, "nft list table ip ovsdn-services")
	sh(t, "nft delete table ip ovsdn-services")
	h.Set("b/web", []Frontend{nodePort(30091, forward)})
	awaitSource("", nodeIP+":30091")
	awaitSource("", nodeIP+":30080")
	h.Set("b/web", []Frontend{nodePort(30090, forward)})
	awaitSource("", nodeIP+":30090")
	if got := sh(t, "nft list table ip ovsdn-services"); len(got) != len(before) {
		t.Errorf("got rules\n%s\nwant\n%s", got, before)
	}
}

// A check finds a flushed chain.
func TestRules_missing(t *testing.T) {
	h := newHost(t)
	nft, err := newNFT()
	must(t, err)
	w := &writer{Translator: h.Translator, nft: nft, count: map[string]int{}, unflushed: changedKeys{}}
	if lost, err := w.missing(t.Context()); lost != "" || err != nil {
		t.Errorf("got missing %q (%v), want nothing", lost, err)
	}
	sh(t, "nft flush chain ip ovsdn-services output")
	if lost, err := w.missing(t.Context()); lost != "chain output" || err != nil {
		t.Errorf("got missing %q (%v), want the chain", lost, err)
	}
}

func TestRemove(t *testing.T) {
	newHost(t, nodePort(30080, forward))
	for range 2 {
		must(t, Remove(t.Context()))
		if got := sh(t, "nft list tables"); strings.Contains(got, tableName) {
			t.Errorf("got tables %q, want none of services", got)
		}
	}
}
