package hostports

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
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/tier"
)

const (
	nodeIP    = "192.0.2.1"
	outsideIP = "192.0.2.2"
	gatewayIP = "10.128.2.1"
	podIP     = "10.128.2.5"
	otherIP   = "10.128.2.6"
)

// host is a node's network namespace, those of two pods and an outside host's, without a switch: tun0 is a veth to the pod with host ports.
type host struct {
	node, pod, other, outside ns.NetNS
	plugin                    *Portmap
	backend                   Backend
}

// portmapVariable names the environment variable with a program portmap; without it each test builds one.
const portmapVariable = "OVSDN_TEST_PORTMAP"

// newHost moves the test into the node's namespace.
func newHost(t *testing.T, backend Backend) *host {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	h := &host{node: newNetNS(t), pod: newNetNS(t), other: newNetNS(t), outside: newNetNS(t), backend: backend, plugin: &Portmap{
		Path: filepath.Join(t.TempDir(), PluginName), LegacyDir: t.TempDir(), Legacy: func() bool { return backend == BackendLegacy },
	}}
	if built := os.Getenv(portmapVariable); built != "" {
		h.plugin.Path = built
	} else {
		build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", h.plugin.Path, "github.com/containernetworking/plugins/plugins/meta/portmap")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	if legacy, err := exec.LookPath("iptables-legacy"); err == nil {
		must(t, os.Symlink(legacy, filepath.Join(h.plugin.LegacyDir, "iptables")))
	} else if backend == BackendLegacy {
		t.Fatal(err)
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	must(t, h.node.Set())
	h.veth(t, "tun0", h.pod, podIP, gatewayIP)
	h.veth(t, "uplink", h.outside, outsideIP, nodeIP)
	h.veth(t, "other", h.other, otherIP, gatewayIP)
	sh(t, "sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.tun0.proxy_arp=1 net.ipv4.conf.other.proxy_arp=1; ip route add "+otherIP+"/32 dev other")
	return h
}

func newNetNS(t *testing.T) ns.NetNS {
	t.Helper()
	netns, err := ns.TempNetNS()
	must(t, err)
	t.Cleanup(func() { netns.Close() })
	return netns
}

// path returns a path of the namespace: it has no name in the file system.
func path(netns ns.NetNS) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), netns.Fd()) }

// veth joins the node to another namespace. The node's address is the other's gateway.
func (h *host) veth(t *testing.T, name string, peer ns.NetNS, peerAddr, addr string) {
	t.Helper()
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(peer.Fd()))}))
	sh(t, fmt.Sprintf("ip link set lo up; ip addr add %s/24 dev %s; ip link set %s up", addr, name, name))
	must(t, peer.Do(func(ns.NetNS) error {
		sh(t, fmt.Sprintf("ip link set lo up; ip addr add %s/24 dev eth0; ip link set eth0 up; ip route add default via %s", peerAddr, addr))
		return nil
	}))
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

// agent returns a handler of requests with the plugin.
func (h *host) agent(t *testing.T, dir string) *Handler {
	t.Helper()
	pods := &fakePods{attached: map[Attachment]bool{}, addr: net.ParseIP(podIP)}
	ports, err := New(Options{
		Plugin: h.plugin, Dir: dir, VXLANPort: 4789, Attached: pods.known, Holder: func(Mapping, []netip.Addr) (string, error) { return "", nil },
		SyncFirewall: func(context.Context) error { return nil }, RouteLoopback: func(bool) error { return nil },
		WarnPod: func(_, _, _, reason, message string) { t.Log(reason, message) }, WarnNode: func(reason, message string) { t.Log(reason, message) },
	})
	must(t, err)
	pods.beforeRelease = ports.Release
	for _, c := range ports.claims() {
		pods.attached[c.attachment] = true
	}
	return ports.Handler(pods)
}

// serve answers UDP in the pod with the sender's address, until the test ends.
func (h *host) serve(t *testing.T, port int) {
	t.Helper()
	var conn net.PacketConn
	must(t, h.pod.Do(func(ns.NetNS) (err error) {
		conn, err = net.ListenPacket("udp4", fmt.Sprintf(":%d", port))
		return err
	}))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for b := make([]byte, 100); ; {
			_, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo([]byte(from.String()), from)
		}
	}()
	t.Cleanup(func() { conn.Close(); <-done })
}

// unansweredTime is how long packets are sent that must have no answer.
const unansweredTime = 2 * time.Second

// ask sends packets from a namespace to a port until one is answered, and returns the source that the pod sees; "" without an answer in time.
func ask(t *testing.T, from ns.NetNS, to string, within time.Duration) (source string) {
	t.Helper()
	must(t, from.Do(func(ns.NetNS) error {
		conn, err := net.Dial("udp4", to)
		if err != nil {
			return err
		}
		defer conn.Close()
		b := make([]byte, 100)
		for end := time.Now().Add(within); time.Now().Before(end); {
			if err := conn.SetDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
				return err
			}
			if _, err := conn.Write([]byte("?")); err != nil {
				return nil
			}
			n, err := conn.Read(b)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				continue
			}
			if err != nil {
				return nil // the port is closed
			}
			source, _, err = net.SplitHostPort(string(b[:n]))
			return err
		}
		return nil
	}))
	return source
}

// rules returns all rules about host ports.
func (h *host) rules(t *testing.T) string {
	t.Helper()
	if h.backend == BackendNFTables {
		return sh(t, "nft list ruleset | grep -E 'dnat|masquerade' || true")
	}
	return sh(t, h.program()+" -t nat -S | grep -E 'CNI-DN|to-destination' || true")
}

// program waits for the lock of the legacy backend, which all namespaces share.
func (h *host) program() string {
	if h.backend == BackendLegacy {
		return "iptables-legacy --wait=60"
	}
	return "iptables --wait=60"
}

// flushes returns the commands by which programs delete rules of the host.
func (h *host) flushes() []string {
	if h.backend == BackendNFTables {
		return []string{"nft flush ruleset", "nft delete table ip cni_hostport", "nft flush chain ip cni_hostport hostports", "nft flush chain ip cni_hostport prerouting",
			"nft flush chain ip cni_hostport hostports_all", "nft flush chain ip cni_hostport masquerading"}
	}
	all := []string{h.program() + " -t nat -F; " + h.program() + " -t nat -X", h.program() + " -t nat -F $(" + h.program() + " -t nat -S | awk '/^-N CNI-DN/ { print $2 }')"}
	for _, chain := range []string{"", "PREROUTING", "POSTROUTING", "CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-MASQ", "CNI-HOSTPORT-SETMARK"} {
		all = append(all, h.program()+" -t nat -F "+chain)
	}
	return all
}

// TestPortmap runs the real portmap, with each backend: pods answer at host ports, also their own, after flushes and restarts; nothing remains after DEL.
func TestPortmap(t *testing.T) {
	for _, backend := range []Backend{BackendNFTables, BackendIPTables, BackendLegacy} {
		t.Run(string(backend), func(t *testing.T) {
			tier.Parallel(t)
			h := newHost(t, backend)
			if got, err := h.plugin.Backend(t.Context()); err != nil || backend == BackendNFTables && got != backend {
				t.Errorf("backend: got %q (%v), want %q", got, err, BackendNFTables)
			}
			testPortmap(t, &forced{h.plugin, backend}, h)
		})
	}
}

// forced is portmap with a backend that it would not select.
type forced struct {
	*Portmap
	backend Backend
}

func (f *forced) Backend(context.Context) (Backend, error) { return f.backend, nil }

func testPortmap(t *testing.T, plugin Plugin, h *host) {
	t.Helper()
	dir := t.TempDir()
	agent := func() *Handler {
		a := h.agent(t, dir)
		a.ports.Plugin = plugin
		return a
	}
	a := agent()
	h.serve(t, 53)
	req := request(t, "ADD", "sandbox", "a", udp("", 5353), udp(nodeIP, 5354), tcp("", 5353))
	req.Netns = path(h.pod)
	_, err := a.Add(testContext(t), req)
	must(t, err)
	h.wantAnswers(t)
	must(t, a.Check(testContext(t), req))
	for _, flush := range h.flushes() {
		sh(t, flush)
		if err := a.Check(testContext(t), req); err == nil {
			t.Errorf("CHECK after %s: got no error", flush)
		}
		a = agent()
		if restored, err := a.ports.restore(testContext(t)); err != nil || len(restored) != 1 {
			t.Errorf("after %s: restored %v (%v), want the pod", flush, restored, err)
		}
		h.wantAnswers(t)
		if restored, err := a.ports.restore(testContext(t)); err != nil || len(restored) != 0 {
			t.Errorf("again after %s: restored %v (%v), want none", flush, restored, err)
		}
	}
	must(t, a.Del(testContext(t), req))
	if got := h.rules(t); strings.TrimSpace(got) != "" {
		t.Errorf("rules after DEL:\n%s", got)
	}
	if got := ask(t, h.outside, nodeIP+":5353", unansweredTime); got != "" {
		t.Errorf("after DEL the pod answers %s", got)
	}
	_, err = a.Add(testContext(t), req)
	must(t, err)
	must(t, RemoveAll(testContext(t), plugin, dir))
	if got := sh(t, "iptables-save; iptables-legacy-save 2>/dev/null || true; nft list tables"); strings.Contains(got, "CNI-") || strings.Contains(got, "cni_") {
		t.Errorf("after an uninstallation:\n%s", got)
	}
}

// wantAnswers: the pod sees the addresses of other hosts and of the node's other pods, which VNIDs and policies evaluate, and an address of the node for itself
// and for the node's loopback.
func (h *host) wantAnswers(t *testing.T) {
	t.Helper()
	for _, tc := range []struct {
		name     string
		from     ns.NetNS
		to, want string
	}{
		{"outside", h.outside, nodeIP + ":5353", outsideIP},
		{"outside, one address", h.outside, nodeIP + ":5354", outsideIP},
		{"another address", h.pod, gatewayIP + ":5354", ""},
		{"another pod of the subnet", h.other, nodeIP + ":5353", otherIP},
		{"itself", h.pod, nodeIP + ":5353", gatewayIP},
		{"the node", h.node, nodeIP + ":5353", nodeIP},
		{"loopback", h.node, "127.0.0.1:5353", gatewayIP},
	} {
		within := unansweredTime
		if tc.want != "" {
			within = await.PacketTime
		}
		if got := ask(t, tc.from, tc.to, within); got != tc.want {
			t.Errorf("%s, to %s: got source %q at the pod, want %q", tc.name, tc.to, got, tc.want)
		}
	}
}

// A container's /proc/sys is read-only.
func TestPortmap_readOnlySysctls(t *testing.T) {
	h := newHost(t, BackendNFTables)
	sh(t, "ip link set lo up; sysctl -qw net.ipv4.conf.tun0.route_localnet=1") // as the agent
	must(t, unix.Unshare(unix.CLONE_NEWNS))
	must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	must(t, unix.Mount("/proc/sys", "/proc/sys", "", unix.MS_BIND, ""))
	must(t, unix.Mount("", "/proc/sys", "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	h.serve(t, 53)
	req := request(t, "ADD", "sandbox", "a", udp("", 5353), udp(nodeIP, 5354))
	req.Netns = path(h.pod)
	_, err := h.agent(t, t.TempDir()).Add(testContext(t), req)
	must(t, err)
	h.wantAnswers(t)
}

// A client's UDP packets reach the new pod although the host's conntrack has their connection to the previous one.
func TestPortmap_replacedPod(t *testing.T) {
	h := newHost(t, BackendNFTables)
	h.serve(t, 53)
	a := h.agent(t, t.TempDir())
	other := request(t, "ADD", "other", "b", tcp("", 80)) // while rules exist, the host tracks connections
	other.Netns = path(h.pod)
	_, err := a.Add(testContext(t), other)
	must(t, err)
	a.Handler.(*fakePods).addr = net.ParseIP("10.128.2.9") // the previous pod, which does not answer
	old := request(t, "ADD", "old", "a", udp("", 5353))
	old.Netns = path(h.pod)
	_, err = a.Add(testContext(t), old)
	must(t, err)
	var client net.Conn
	must(t, h.outside.Do(func(ns.NetNS) (err error) {
		client, err = net.Dial("udp4", nodeIP+":5353")
		return err
	}))
	defer client.Close()
	_, err = client.Write([]byte("?"))
	must(t, err)
	connections := func() string {
		return sh(t, "cat /proc/thread-self/net/nf_conntrack 2>/dev/null || conntrack -L 2>/dev/null || true")
	}
	await.OK(t, await.SyncTime, func(context.Context) error {
		if !strings.Contains(connections(), "10.128.2.9") {
			return fmt.Errorf("conntrack has no connection to the previous pod:\n%s", connections())
		}
		return nil
	})
	must(t, a.Del(testContext(t), old))
	if got := connections(); strings.Contains(got, "10.128.2.9") {
		t.Errorf("after DEL:\n%s", got)
	}
	_, err = client.Write([]byte("?")) // creates an entry without translation
	must(t, err)
	await.OK(t, await.SyncTime, func(context.Context) error {
		if !strings.Contains(connections(), "dport=5353") {
			return fmt.Errorf("conntrack has no connection without translation:\n%s", connections())
		}
		return nil
	})
	a.Handler.(*fakePods).addr = net.ParseIP(podIP)
	fresh := request(t, "ADD", "new", "a", udp("", 5353))
	fresh.Netns = path(h.pod)
	_, err = a.Add(testContext(t), fresh)
	must(t, err)
	await.OK(t, await.SyncTime, func(context.Context) error {
		if _, err := client.Write([]byte("?")); err != nil {
			return err
		}
		if err := client.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		_, err := client.Read(make([]byte, 100))
		return err
	})
}
