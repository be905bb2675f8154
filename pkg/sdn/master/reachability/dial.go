package reachability

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
)

// port is that of the discard service, on which no program of a node listens.
const port = 9

// Dial sends one probe. It returns nil if the machine with the address answers before the context ends.
type Dial func(ctx context.Context, addr netip.Addr) error

// DialTCP opens a TCP connection. A refusal is an answer: the machine runs.
func DialTCP(ctx context.Context, addr netip.Addr) error {
	return dialPort(ctx, netip.AddrPortFrom(addr, port))
}

func dialPort(ctx context.Context, to netip.AddrPort) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", to.String())
	if err == nil {
		return conn.Close()
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil
	}
	return err
}
