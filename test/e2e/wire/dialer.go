package wire

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Dialer opens TCP connections from a namespace, many per second. It visits the namespace once for many sockets, since a visit costs more than a connection.
type Dialer struct {
	ns NetNS

	mu      sync.Mutex
	sockets []int // not connected
}

// socketsPerVisit is how many sockets a visit of the namespace opens.
const socketsPerVisit = 64

// Dialer returns a dialer of the namespace. It must be closed.
func (n NetNS) Dialer() *Dialer { return &Dialer{ns: n} }

// Close closes the sockets that are not connected. Connections stay.
func (d *Dialer) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for _, fd := range d.sockets {
		errs = append(errs, unix.Close(fd))
	}
	d.sockets = nil
	return errors.Join(errs...)
}

// DialContext connects to an IPv4 address. The context must have a deadline, which is the dial's.
func (d *Dialer) DialContext(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	fd, err := d.socket()
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "TCP socket")
	defer file.Close() // the connection has a copy
	if err := connect(ctx, file, fd, to); err != nil {
		return nil, fmt.Errorf("connect to %s: %w", to, err)
	}
	return net.FileConn(file)
}

func (d *Dialer) socket() (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.sockets) == 0 {
		if err := d.ns.Do(d.open); err != nil {
			return 0, err
		}
	}
	last := len(d.sockets) - 1
	fd := d.sockets[last]
	d.sockets = d.sockets[:last]
	return fd, nil
}

func (d *Dialer) open() error {
	for range socketsPerVisit {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		d.sockets = append(d.sockets, fd)
	}
	return nil
}

func connect(ctx context.Context, file *os.File, fd int, to netip.AddrPort) error {
	err := unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
	if !errors.Is(err, unix.EINPROGRESS) {
		return err
	}
	deadline, _ := ctx.Deadline()
	if err := file.SetWriteDeadline(deadline); err != nil {
		return err
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var state error
	waited := raw.Write(func(uintptr) (ended bool) {
		errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		switch {
		case err != nil:
			state = err
		case errno != 0:
			state = unix.Errno(errno)
		default:
			_, state = unix.Getpeername(fd)
		}
		return !errors.Is(state, unix.ENOTCONN)
	})
	if waited != nil {
		return waited
	}
	return state
}
