// Package connectionlimit bounds the open connections to a server: those of each source address, and all.
package connectionlimit

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

// Limits are numbers of open connections.
type Limits struct {
	All, Source int // of all sources, and of each source address

	// Evict is true if, at the limit of all, a source with fewer connections takes the place of the oldest connection of the source with most.
	Evict bool
}

// Limiter counts open connections. Its methods are safe for concurrent use.
type Limiter struct {
	limits Limits

	mu   sync.Mutex
	open map[netip.Addr][]*Conn // by source, the oldest first
	all  int
}

// New returns a Limiter without connections.
func New(limits Limits) *Limiter { return &Limiter{limits: limits, open: map[netip.Addr][]*Conn{}} }

// Conn is a connection that counts until it is closed.
type Conn struct {
	net.Conn
	source  netip.Addr
	limiter *Limiter
}

// Admit returns the connection, which counts from now on. At a limit it closes the connection, and returns false.
func (l *Limiter) Admit(conn net.Conn) (*Conn, bool) {
	c := &Conn{Conn: conn, source: SourceOf(conn), limiter: l}
	evicted, ok := l.add(c)
	if evicted != nil {
		_ = evicted.Conn.Close()
	}
	if !ok {
		_ = conn.Close()
		return nil, false
	}
	return c, true
}

// Open returns the number of open connections.
func (l *Limiter) Open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all
}

// SourceOf returns the address of a connection's client; the zero address if it has none.
func SourceOf(conn net.Conn) netip.Addr {
	if tcp, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// Close implements net.Conn. A client that sees the end of a connection can open another.
func (c *Conn) Close() error {
	c.limiter.mu.Lock()
	c.limiter.remove(c)
	c.limiter.mu.Unlock()
	return c.Conn.Close()
}

// add counts a connection, in place of the evicted one if there is one. It returns false at a limit.
func (l *Limiter) add(c *Conn) (evicted *Conn, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own := len(l.open[c.source])
	if own >= l.limits.Source {
		return nil, false
	}
	if l.all >= l.limits.All {
		if evicted = l.evictable(own); evicted == nil {
			return nil, false
		}
		l.remove(evicted)
	}
	l.all++
	l.open[c.source] = append(l.open[c.source], c)
	return evicted, true
}

// evictable returns the connection whose place a source with that number of connections gets; nil: none. With one more it would have as many as the other has then.
func (l *Limiter) evictable(own int) *Conn {
	if !l.limits.Evict {
		return nil
	}
	var most []*Conn
	for _, of := range l.open {
		if len(of) > len(most) {
			most = of
		}
	}
	if len(most) < own+2 {
		return nil
	}
	return most[0]
}

// remove ends the count of a connection, once. l.mu is held.
func (l *Limiter) remove(c *Conn) {
	of := l.open[c.source]
	i := slices.Index(of, c)
	if i < 0 {
		return
	}
	l.all--
	if of = slices.Delete(of, i, i+1); len(of) == 0 {
		delete(l.open, c.source)
		return
	}
	l.open[c.source] = of
}
