package datapath

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/test/await"
)

const (
	// patience bounds the wait for what must come; a machine shared with others, or emulated, can be slow.
	patience = 30 * time.Second
	// again is after how long a packet that must come is sent again.
	again = 200 * time.Millisecond
	// quiet is how long to wait for what must not come.
	quiet = 400 * time.Millisecond
)

// Socket is an open socket of a host.
type Socket struct {
	net.PacketConn
	host *Host
	sent atomic.Uint64
}

// Listen opens a socket as net.ListenPacket does, until the test ends: network "udp4" with a port, or "ip4:PROTOCOL", which
// sends and gets what follows the IP header.
func (h *Host) Listen(t testing.TB, network string, port uint16) *Socket {
	t.Helper()
	addr := h.Addr.String()
	if strings.HasPrefix(network, "udp") {
		addr = netip.AddrPortFrom(h.Addr, port).String()
	}
	var conn net.PacketConn
	h.bind(t, func() (err error) {
		var lc net.ListenConfig
		conn, err = lc.ListenPacket(t.Context(), network, addr)
		return err
	})
	t.Cleanup(func() { conn.Close() })
	return &Socket{PacketConn: conn, host: h}
}

// bind runs the function in the host's namespace, again while the address is in use: a process that a test beside this one starts has a copy of a socket
// that was closed, until it executes its program.
func (h *Host) bind(t testing.TB, open func() error) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); ; <-tick.C {
		err := h.NS.Do(func(ns.NetNS) error { return open() })
		if err == nil {
			return
		}
		if !errors.Is(err, unix.EADDRINUSE) || time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// DialUDP connects a UDP socket from an address, or from any if it is not valid. The caller closes it.
func (h *Host) DialUDP(t testing.TB, from, to netip.AddrPort) *net.UDPConn {
	t.Helper()
	var local *net.UDPAddr
	if from.IsValid() {
		local = net.UDPAddrFromAddrPort(from)
	}
	var conn *net.UDPConn
	h.bind(t, func() (err error) {
		conn, err = net.DialUDP("udp4", local, net.UDPAddrFromAddrPort(to))
		return err
	})
	return conn
}

// UDP opens a UDP socket, until the test ends.
func (h *Host) UDP(t testing.TB, port uint16) *Socket {
	t.Helper()
	return h.Listen(t, "udp4", port)
}

// Addr is where the socket gets packets; the port is 0 for a raw one.
func (s *Socket) Addr() netip.AddrPort {
	if udp, ok := s.LocalAddr().(*net.UDPAddr); ok {
		return udp.AddrPort()
	}
	return netip.AddrPortFrom(s.host.Addr, 0)
}

func (s *Socket) address(to netip.AddrPort) net.Addr {
	if _, ok := s.PacketConn.(*net.UDPConn); ok {
		return net.UDPAddrFromAddrPort(to)
	}
	return &net.IPAddr{IP: to.Addr().AsSlice()}
}

// Send sends a packet.
func (s *Socket) Send(t testing.TB, to netip.AddrPort, payload []byte) {
	t.Helper()
	if _, err := s.WriteTo(payload, s.address(to)); err != nil {
		t.Fatalf("send to %s: %v", to, err)
	}
}

// Receive waits for a packet that ends in the payload, and returns its source.
func (s *Socket) Receive(t testing.TB, payload []byte, wait time.Duration) (netip.AddrPort, bool) {
	t.Helper()
	if err := s.SetReadDeadline(time.Now().Add(wait)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 65536)
	for {
		n, from, err := s.ReadFrom(buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return netip.AddrPort{}, false
		case err != nil:
			t.Fatalf("receive at %s: %v", s.LocalAddr(), err)
		case bytes.HasSuffix(buf[:n], payload):
			return addrPort(from), true
		}
	}
}

func addrPort(a net.Addr) netip.AddrPort {
	switch a := a.(type) {
	case *net.UDPAddr:
		ap := a.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	case *net.IPAddr:
		ip, _ := netip.AddrFromSlice(a.IP.To4())
		return netip.AddrPortFrom(ip, 0)
	}
	return netip.AddrPort{}
}

// Message is a payload that no other packet of the socket has.
func (s *Socket) Message() []byte {
	return fmt.Appendf(nil, "%v #%d.", s.LocalAddr(), s.sent.Add(1))
}

// Large is a message that leaves in fragments.
func (s *Socket) Large() []byte {
	return append(make([]byte, 2*underlayMTU), s.Message()...)
}

// MustReach sends packets to an address until one arrives at the receiver, and returns its source.
func (s *Socket) MustReach(t testing.TB, to netip.AddrPort, receiver *Socket) netip.AddrPort {
	t.Helper()
	return s.MustReachWith(t, to, receiver, s.Message)
}

// MustReachWith is MustReach with packets that the function makes.
func (s *Socket) MustReachWith(t testing.TB, to netip.AddrPort, receiver *Socket, payload func() []byte) netip.AddrPort {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); {
		p := payload()
		s.Send(t, to, p)
		if from, ok := receiver.Receive(t, p, again); ok {
			return from
		}
	}
	t.Fatalf("nothing sent from %s to %s has come in at %s in %v", s.LocalAddr(), to, receiver.LocalAddr(), patience)
	return netip.AddrPort{}
}

// MustNotReach sends packets to an address, none of which may come in at the receiver.
func (s *Socket) MustNotReach(t testing.TB, to netip.AddrPort, receiver *Socket) {
	t.Helper()
	s.MustNotReachWith(t, to, receiver, s.Message)
}

// MustNotReachWith is MustNotReach with packets that the function makes.
func (s *Socket) MustNotReachWith(t testing.TB, to netip.AddrPort, receiver *Socket, payload func() []byte) {
	t.Helper()
	for range 3 {
		p := payload()
		s.Send(t, to, p)
		if from, ok := receiver.Receive(t, p, quiet/3); ok {
			t.Fatalf("what was sent from %s to %s came in at %s, from %s", s.LocalAddr(), to, receiver.LocalAddr(), from)
		}
	}
}

// Stream is an established TCP connection, with both its ends.
type Stream struct{ Client, Server net.Conn }

// ListenTCP listens until the test ends.
func (h *Host) ListenTCP(t testing.TB, port uint16) net.Listener {
	t.Helper()
	var l net.Listener
	h.bind(t, func() (err error) {
		var lc net.ListenConfig
		l, err = lc.Listen(t.Context(), "tcp4", netip.AddrPortFrom(h.Addr, port).String())
		return err
	})
	t.Cleanup(func() { l.Close() })
	return l
}

// Dial connects to an address behind which the listener must be.
func (h *Host) Dial(t testing.TB, to netip.AddrPort, l net.Listener) Stream {
	t.Helper()
	var s Stream
	err := h.NS.Do(func(ns.NetNS) (err error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: h.Addr.AsSlice()}, KeepAlive: -1}
		s.Client, err = d.DialContext(ctx, "tcp4", to.String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Client.Close() })
	s.Server = Accept(t, l)
	return s
}

// Accept returns the listener's next connection.
func Accept(t testing.TB, l net.Listener) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := await.Accept(ctx, l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// MustPass sends a line from each end to the other.
func (s Stream) MustPass(t testing.TB) {
	t.Helper()
	MustPass(t, s.Client, s.Server)
	MustPass(t, s.Server, s.Client)
}

const line = "line\n"

// MustPass sends a line from one end of a stream to the other.
func MustPass(t testing.TB, from, to net.Conn) {
	t.Helper()
	write(t, from)
	MustArrive(t, to, patience)
}

// MustNotPass sends a line that must not arrive. TCP goes on trying: the line comes as soon as it is let through.
func MustNotPass(t testing.TB, from, to net.Conn) {
	t.Helper()
	write(t, from)
	if err := read(to, 2*quiet); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the line from %s to %s came through, or failed for another reason: %v", from.LocalAddr(), to.LocalAddr(), err)
	}
}

// MustArrive waits for a line that was sent before.
func MustArrive(t testing.TB, at net.Conn, wait time.Duration) {
	t.Helper()
	if err := read(at, wait); err != nil {
		t.Fatalf("a line that %s was sent: %v", at.LocalAddr(), err)
	}
}

func write(t testing.TB, to net.Conn) {
	t.Helper()
	if _, err := to.Write([]byte(line)); err != nil {
		t.Fatal(err)
	}
}

func read(from net.Conn, wait time.Duration) error {
	if err := from.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return err
	}
	_, err := from.Read(make([]byte, len(line)))
	return err
}
