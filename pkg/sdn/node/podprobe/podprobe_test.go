package podprobe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/test/await"
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

// The addresses of the pod and of its peer. None of the test's own namespace has them.
const (
	podAddr    = "198.18.7.5"
	peerAddr   = "198.18.7.1"
	absentAddr = "198.18.7.9" // does not answer ARP
	silentAddr = "198.18.7.8" // answers ARP only
	outside    = "203.0.113.9"
	timeout    = 30 * time.Second // of probes that are answered
	short      = 100 * time.Millisecond
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newPod returns the namespaces of a pod and of its peer, which a veth pair joins.
func newPod(t *testing.T) (pod, peer ns.NetNS) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	for _, n := range []*ns.NetNS{&pod, &peer} {
		created, err := ns.TempNetNS()
		must(t, err)
		t.Cleanup(func() { created.Close() })
		*n = created
	}
	must(t, pod.Do(func(ns.NetNS) error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(peer.Fd()))})
	}))
	setUp(t, peer, peerAddr)
	setUp(t, pod, podAddr)
	must(t, pod.Do(func(ns.NetNS) error { // ARP gives up early, and silentAddr needs none
		link, err := netlink.LinkByName("eth0") //nolint:forbidigo // no dump
		must(t, err)
		return errors.Join(os.WriteFile("/proc/sys/net/ipv4/neigh/eth0/retrans_time_ms", []byte("10"), 0), netlink.NeighSet(&netlink.Neigh{
			LinkIndex: link.Attrs().Index, IP: net.ParseIP(silentAddr), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1}, State: netlink.NUD_PERMANENT,
		}))
	}))
	return pod, peer
}

func setUp(t *testing.T, n ns.NetNS, addr string) {
	t.Helper()
	must(t, n.Do(func(ns.NetNS) error {
		lo, link := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "lo"}}, &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}}
		a, err := netlink.ParseAddr(addr + "/24")
		return errors.Join(err, netlink.LinkSetUp(lo), netlink.AddrAdd(link, a), netlink.LinkSetUp(link))
	}))
}

// path returns a path of the namespace: it has no name in the file system.
func path(n ns.NetNS) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.Fd()) }

func probe(pod ns.NetNS, protocol uint8, to string, port uint16, timeout time.Duration) Probe {
	return Probe{Netns: path(pod), Source: netip.MustParseAddr(podAddr), Destination: netip.AddrPortFrom(netip.MustParseAddr(to), port), Protocol: protocol, Timeout: timeout}
}

func wantStatus(t *testing.T, name string, p Probe, verdict diagnostics.Verdict, words string) diagnostics.ProbeStatus {
	t.Helper()
	got, err := Send(t.Context(), p)
	if err != nil || got.Verdict != verdict || !strings.Contains(got.Reason, words) {
		t.Errorf("%s: got %s: %s, error %v, want %s with %q", name, got.Verdict, got.Reason, err, verdict, words)
	}
	if isReached := verdict == diagnostics.VerdictAnswered || verdict == diagnostics.VerdictRefused && words != "host unreachable"; got.Reached != isReached {
		t.Errorf("%s: got Reached %t for %s, want %t", name, got.Reached, got.Reason, isReached)
	}
	isTimed := verdict == diagnostics.VerdictAnswered || verdict == diagnostics.VerdictRefused
	if isTimed != (got.Duration != nil && got.Duration.Duration > 0 && strings.HasSuffix(got.Reason, " ms")) {
		t.Errorf("%s: got duration %v: %s", name, got.Duration, got.Reason)
	}
	return got
}

func TestSend_tcp(t *testing.T) {
	pod, peer := newPod(t)
	var listener *net.TCPListener
	must(t, peer.Do(func(ns.NetNS) (err error) {
		listener, err = net.ListenTCP("tcp4", &net.TCPAddr{IP: net.ParseIP(peerAddr), Port: 80})
		return err
	}))
	defer listener.Close()
	wantStatus(t, "a server", probe(pod, unix.IPPROTO_TCP, peerAddr, 80, timeout), diagnostics.VerdictAnswered, "connected after ")
	must(t, listener.SetDeadline(time.Now().Add(time.Minute)))
	conn, err := listener.Accept()
	must(t, err)
	defer conn.Close()
	if got := conn.RemoteAddr().(*net.TCPAddr).IP.String(); got != podAddr {
		t.Errorf("got a connection from %s, want %s", got, podAddr)
	}
	must(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("got %d bytes, error %v, want the end of the connection", n, err)
	}
	wantStatus(t, "no server", probe(pod, unix.IPPROTO_TCP, peerAddr, 81, timeout), diagnostics.VerdictRefused, "connection refused after ")
	wantStatus(t, "no host", probe(pod, unix.IPPROTO_TCP, absentAddr, 80, timeout), diagnostics.VerdictRefused, "host unreachable")
	wantStatus(t, "no route", probe(pod, unix.IPPROTO_TCP, outside, 80, timeout), diagnostics.VerdictUnknown, "the kernel does not send the packet from the pod: network is unreachable")
	wantStatus(t, "no answer", probe(pod, unix.IPPROTO_TCP, silentAddr, 80, short), diagnostics.VerdictNoAnswer, "no answer within 100ms")
}

func TestSend_udp(t *testing.T) {
	pod, peer := newPod(t)
	var server *net.UDPConn
	must(t, peer.Do(func(ns.NetNS) (err error) {
		server, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(peerAddr), Port: 53})
		return err
	}))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		buffer := make([]byte, 10)
		for i := 0; ; i++ {
			n, from, err := server.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			if n != 1 || from.Addr().String() != podAddr {
				t.Errorf("got %d bytes from %s, want 1 from the pod", n, from)
			}
			if i == 0 { // it answers the first datagram only
				_, _ = server.WriteToUDPAddrPort(nil, from) // an empty answer is one
			}
		}
	}()
	defer func() { server.Close(); <-ended }()
	wantStatus(t, "a server", probe(pod, unix.IPPROTO_UDP, peerAddr, 53, timeout), diagnostics.VerdictAnswered, "answered after ")
	wantStatus(t, "a silent server", probe(pod, unix.IPPROTO_UDP, peerAddr, 53, short), diagnostics.VerdictNoAnswer, "no answer within 100ms; a server that does not answer such a packet can't be distinguished")
	wantStatus(t, "no server", probe(pod, unix.IPPROTO_UDP, peerAddr, 54, timeout), diagnostics.VerdictRefused, "port unreachable (an ICMP error) after ")
	wantStatus(t, "no host", probe(pod, unix.IPPROTO_UDP, absentAddr, 54, timeout), diagnostics.VerdictRefused, "host unreachable")
}

func TestSend_icmp(t *testing.T) {
	pod, peer := newPod(t)
	wantStatus(t, "a host", probe(pod, unix.IPPROTO_ICMP, peerAddr, 0, timeout), diagnostics.VerdictAnswered, "answered after ")
	wantStatus(t, "no host", probe(pod, unix.IPPROTO_ICMP, absentAddr, 0, timeout), diagnostics.VerdictRefused, "host unreachable")
	// Replies to other requests are no answer.
	var stranger *net.IPConn
	must(t, peer.Do(func(ns.NetNS) (err error) {
		if err := os.WriteFile("/proc/sys/net/ipv4/icmp_echo_ignore_all", []byte("1"), 0); err != nil {
			return err
		}
		stranger, err = net.ListenIP("ip4:icmp", &net.IPAddr{IP: net.ParseIP(peerAddr)})
		return err
	}))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		buffer := make([]byte, 200)
		for {
			n, from, err := stranger.ReadFromIP(buffer)
			if err != nil {
				return
			}
			reply := buffer[:n]
			reply[0], reply[2], reply[3] = echoReply, 0, 0
			reply[4]++ // the identifier
			_, _ = stranger.WriteToIP(reply, from)
		}
	}()
	defer func() { stranger.Close(); <-ended }()
	wantStatus(t, "replies to another", probe(pod, unix.IPPROTO_ICMP, peerAddr, 0, short), diagnostics.VerdictNoAnswer, "no answer within 100ms")
}

// Nothing is sent from the namespace of the agent, nor from one that is not the pod's.
func TestSend_namespaces(t *testing.T) {
	pod, peer := newPod(t)
	listener, err := net.Listen("tcp4", "127.0.0.1:0") // in the test's own namespace, which is the agent's
	must(t, err)
	defer listener.Close()
	server := netip.MustParseAddrPort(listener.Addr().String())
	for name, c := range map[string]struct {
		change func(*Probe)
		cause  string
	}{
		"missing":          {func(p *Probe) { p.Netns = "/run/netns/missing" }, "no such file or directory"},
		"empty":            {func(p *Probe) { p.Netns = "" }, "is not a network namespace"},
		"a file":           {func(p *Probe) { p.Netns = "/etc/hosts" }, "its path is not a network namespace"},
		"not of a network": {func(p *Probe) { p.Netns = "/proc/self/ns/uts" }, "its path is not a network namespace"},
		"the agent's own": {func(p *Probe) {
			p.Netns, p.Source, p.Destination = "/proc/self/ns/net", server.Addr(), server
		}, "its path is the node's network namespace"},
		"of another pod": {func(p *Probe) { p.Netns = path(peer) }, "bind: cannot assign requested address"},
		"protocol":       {func(p *Probe) { p.Protocol = unix.IPPROTO_SCTP }, "protocol 132 is not supported"},
	} {
		p := probe(pod, unix.IPPROTO_TCP, peerAddr, 80, timeout)
		c.change(&p)
		if got, err := Send(t.Context(), p); err == nil || !strings.Contains(err.Error(), c.cause) {
			t.Errorf("%s: got %+v, error %v, want %q", name, got, err, c.cause)
		} else if strings.Contains(err.Error(), p.Netns) && p.Netns != "" {
			t.Errorf("%s: got an error with the path: %v", name, err)
		}
	}
}

// A client that disconnects ends its probe.
func TestSend_ends(t *testing.T) {
	pod, _ := newPod(t)
	ctx, stop := context.WithTimeout(t.Context(), short)
	defer stop()
	if got, err := Send(ctx, probe(pod, unix.IPPROTO_TCP, silentAddr, 80, time.Hour)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %+v, error %v, want DeadlineExceeded", got, err)
	}
}
