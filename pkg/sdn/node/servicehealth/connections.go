package servicehealth

import (
	"net"
	"net/netip"
	"sync"
)

// Limits of the connections to all ports of a server: any client reaches them.
const (
	maxConnections       = 1024
	maxSourceConnections = 256 // of a source address; a load balancer checks many Services from one
)

// connections counts open connections. The zero value is ready for use.
type connections struct {
	mu     sync.Mutex
	all    int
	source map[netip.Addr]int
}

// add counts a connection, or returns false at a limit.
func (c *connections) add(source netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all >= maxConnections || c.source[source] >= maxSourceConnections {
		return false
	}
	if c.source == nil {
		c.source = map[netip.Addr]int{}
	}
	c.all++
	c.source[source]++
	return true
}

func (c *connections) remove(source netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all--
	if c.source[source]--; c.source[source] == 0 {
		delete(c.source, source)
	}
}

// limitedListener closes connections over the limits at once.
type limitedListener struct {
	net.Listener
	connections *connections
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		source := sourceOf(conn)
		if l.connections.add(source) {
			return &countedConn{Conn: conn, closed: sync.OnceFunc(func() { l.connections.remove(source) })}, nil
		}
		_ = conn.Close()
	}
}

func sourceOf(conn net.Conn) netip.Addr {
	if tcp, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// countedConn is a connection that counts until it is closed.
type countedConn struct {
	net.Conn
	closed func()
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	defer c.closed()
	return c.Conn.Close()
}
