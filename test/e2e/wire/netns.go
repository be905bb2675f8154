// Package wire sends, receives and records packets inside the network namespaces of pods and nodes, from the test's own process:
// sockets of a namespace, pings, frames made byte by byte, and captures. No program is run, so what a test asserts is
// what was on the wire, and nothing outlives the test.
//
// A socket stays in the namespace in which it was opened, whatever thread uses it later. So each opening visits the
// namespace for a moment.
package wire

import (
	"context"
	"net"
	"net/http"

	"github.com/containernetworking/plugins/pkg/ns"
)

// NetNS is a network namespace, by the path of its file on this host.
type NetNS string

// Do runs the function on a thread that is in the namespace. Goroutines that it starts are not.
func (n NetNS) Do(do func() error) error {
	return ns.WithNetNSPath(string(n), func(ns.NetNS) error { return do() })
}

// DialContext is net.Dialer's, for addresses without names.
func (n NetNS) DialContext(ctx context.Context, network, address string) (conn net.Conn, err error) {
	var d net.Dialer
	err = n.Do(func() error {
		conn, err = d.DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Listen is net.Listen.
func (n NetNS) Listen(network, address string) (l net.Listener, err error) {
	err = n.Do(func() error {
		l, err = net.Listen(network, address)
		return err
	})
	return l, err
}

// ListenPacket is net.ListenPacket.
func (n NetNS) ListenPacket(network, address string) (c net.PacketConn, err error) {
	err = n.Do(func() error {
		c, err = net.ListenPacket(network, address)
		return err
	})
	return c, err
}

// HTTP is a client that makes a new connection for every request.
func (n NetNS) HTTP() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: n.DialContext, DisableKeepAlives: true}}
}
