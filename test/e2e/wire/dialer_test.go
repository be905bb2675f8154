package wire

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestDialer(t *testing.T) {
	n := newNetNS(t)
	l, err := n.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	open, closed := netip.MustParseAddrPort(l.Addr().String()), netip.MustParseAddrPort("127.0.0.1:1")
	d := n.Dialer()
	for range 2 * socketsPerVisit {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		conn, err := d.DialContext(ctx, open)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		server, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if got, want := server.RemoteAddr().String(), conn.LocalAddr().String(); got != want {
			t.Errorf("the server has %s as its client, want %s", got, want)
		}
		if err := errors.Join(conn.Close(), server.Close()); err != nil {
			t.Error(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := d.DialContext(ctx, closed); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("a closed port: got error %v, want %v", err, unix.ECONNREFUSED)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// A connection without an answer ends at its deadline.
func TestDialer_deadline(t *testing.T) {
	n := newNetNS(t)
	// A queue of length 0 has room for one connection, and answers no others.
	var silent netip.AddrPort
	if err := n.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = unix.Close(fd) })
		addr := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}
		if err := errors.Join(unix.Bind(fd, addr), unix.Listen(fd, 0)); err != nil {
			return err
		}
		bound, err := unix.Getsockname(fd)
		if err != nil {
			return err
		}
		silent = netip.AddrPortFrom(netip.AddrFrom4(addr.Addr), uint16(bound.(*unix.SockaddrInet4).Port))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	d := n.Dialer()
	defer d.Close()
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		conn, err := d.DialContext(ctx, silent)
		if err == nil {
			defer conn.Close()
			continue
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("got error %v, want %v", err, os.ErrDeadlineExceeded)
		}
		return
	}
	t.Error("all connections were answered")
}
