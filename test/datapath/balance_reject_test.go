package datapath_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	compiled "github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/datapath"
)

// testBalancedRejects: without endpoints connections are refused at once, or, if other nodes have endpoints, dropped.
func testBalancedRejects(t *testing.T, b *balanced) {
	b.install(t)
	for _, client := range []*datapath.Host{&b.pod(0, 0).Host, &b.Nodes[0].Host} {
		if err := dialError(t, client, vip(80), 30*time.Second); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("connection to a service without endpoints: got %v, want %v", err, syscall.ECONNREFUSED)
		}
	}
	testBalancedRejectsExternal(t, b)
	b.closed = true
	b.install(t)
	if err := dialError(t, &b.pod(0, 0).Host, vip(80), time.Second); !isTimeout(err) {
		t.Errorf("connection to a service whose endpoints are elsewhere: got %v, want a timeout", err)
	}
}

// testBalancedRejectsExternal: without endpoints, connections of pods to external addresses and node ports are refused, whatever egress firewall the pods have, as are
// further packets of a socket of UDP.
func testBalancedRejectsExternal(t *testing.T, b *balanced) {
	node, client := b.Nodes[0], &b.pod(0, 0).Host
	b.external = []compiled.Frontend{
		frontend(externalIP(), 80), frontend(externalIP(), 53), frontend(netip.Addr{}, ownNodePort), frontend(netip.Addr{}, ownNodePortUDP),
	}
	for i := range b.external {
		b.external[i].Closed = false
	}
	b.denied = true
	b.install(t)
	for _, to := range []netip.AddrPort{netip.AddrPortFrom(externalIP(), 80), netip.AddrPortFrom(node.VTEP, ownNodePort), netip.AddrPortFrom(node.Addr, ownNodePort)} {
		if err := dialError(t, client, to, 30*time.Second); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("connection to %s: got %v, want %v", to, err, syscall.ECONNREFUSED)
		}
	}
	for _, to := range []netip.AddrPort{netip.AddrPortFrom(externalIP(), 53), netip.AddrPortFrom(node.VTEP, ownNodePortUDP)} {
		for range 2 {
			if err := udpError(t, client, netip.AddrPortFrom(client.Addr, 6053), to); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("UDP to %s: got %v, want %v", to, err, syscall.ECONNREFUSED)
			}
		}
	}
	b.denied = false
	testBalancedRejectsAgain(t, b)
	b.external = nil
}

// testBalancedRejectsAgain: a connection whose rejection the client has not received is rejected again when the service has endpoints; one from another port is not.
func testBalancedRejectsAgain(t *testing.T, b *balanced) {
	client, server := &b.pod(0, 1).Host, b.pod(0, 2)
	const port = 40000
	to := netip.AddrPortFrom(externalIP(), 80)
	client.Sh(t, "nft add table ip lost", "nft add chain ip lost errors '{ type filter hook input priority 0; }'",
		"nft add rule ip lost errors icmp type destination-unreachable drop")
	if err := dialErrorFrom(t, client, port, to, time.Second); !isTimeout(err) {
		t.Errorf("connection without its rejection: got %v, want a timeout", err)
	}
	client.Sh(t, "nft delete table ip lost")
	b.external[0].Endpoints = []netip.AddrPort{netip.AddrPortFrom(server.Addr, 8080)}
	b.install(t)
	if err := dialErrorFrom(t, client, port, to, 30*time.Second); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connection from the same port: got %v, want %v", err, syscall.ECONNREFUSED)
	}
	s := client.Dial(t, to, server.ListenTCP(t, 8080))
	s.MustPass(t)
}

// dialError returns why a host can't connect to an address.
func dialError(t *testing.T, from *datapath.Host, to netip.AddrPort, wait time.Duration) error {
	t.Helper()
	return dialErrorFrom(t, from, 0, to, wait)
}

// isTimeout returns whether a connection's dial or read reached its deadline.
func isTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
}

// dialErrorFrom is dialError from a port of the host.
func dialErrorFrom(t *testing.T, from *datapath.Host, port int, to netip.AddrPort, wait time.Duration) error {
	t.Helper()
	return from.NS.Do(func(ns.NetNS) error {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{Port: port}}
		conn, err := dialer.DialContext(ctx, "tcp4", to.String())
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
}

// udpError sends UDP and returns the error of its answer.
func udpError(t *testing.T, host *datapath.Host, from, to netip.AddrPort) error {
	t.Helper()
	conn := host.DialUDP(t, from, to)
	defer conn.Close()
	var err error
	for range 10 { // Linux limits the rate of ICMP errors to each host
		if _, err = conn.Write([]byte("to a closed port")); err != nil {
			return err
		}
		if err := conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		for err == nil { // data is that of previous sockets
			_, err = conn.Read(make([]byte, 1))
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return err
}
