package metrics

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/cache"
)

// Limits of one source address, and of all.
const (
	sourceRate        = 5 // requests, and connections, per second
	sourceBurst       = 20
	maxSources        = 4096 // whose rate is known
	sourceLifetime    = time.Minute
	sourceConnections = 8
	maxConnections    = 256
)

// sources limits the rate of each source address.
type sources struct {
	rate     rate.Limit
	burst    int
	lifetime time.Duration // of an unused limiter

	mu       sync.Mutex
	limiters *cache.LRUExpireCache
}

func newSources(limit rate.Limit, burst int, lifetime time.Duration) *sources {
	return &sources{rate: limit, burst: burst, lifetime: lifetime, limiters: cache.NewLRUExpireCache(maxSources)}
}

// allow reports whether the source may proceed.
func (s *sources) allow(addr netip.Addr) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	value, ok := s.limiters.Get(addr)
	limiter, isLimiter := value.(*rate.Limiter)
	if !ok || !isLimiter {
		limiter = rate.NewLimiter(s.rate, s.burst)
	}
	s.limiters.Add(addr, limiter, s.lifetime) // also renews the lifetime
	return limiter.Allow()
}

// addrOf returns the address without its port; the zero address if it has none.
func addrOf(address string) netip.Addr {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return netip.Addr{}
	}
	return ap.Addr().Unmap()
}

// listener closes connections beyond the limits at once, before any cryptography.
type listener struct {
	net.Listener
	rate *sources

	mu   sync.Mutex
	open map[netip.Addr]int
	all  int
}

func newListener(l net.Listener) *listener {
	return &listener{Listener: l, rate: newSources(sourceRate, sourceBurst, sourceLifetime), open: map[netip.Addr]int{}}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		addr := addrOf(conn.RemoteAddr().String())
		if l.rate.allow(addr) && l.add(addr) {
			return &countedConn{Conn: conn, closed: sync.OnceFunc(func() { l.remove(addr) })}, nil
		}
		_ = conn.Close()
	}
}

func (l *listener) add(addr netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all >= maxConnections || l.open[addr] >= sourceConnections {
		return false
	}
	l.all++
	l.open[addr]++
	return true
}

func (l *listener) remove(addr netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	if l.open[addr]--; l.open[addr] == 0 {
		delete(l.open, addr)
	}
}

type countedConn struct {
	net.Conn
	closed func()
}

func (c *countedConn) Close() error {
	c.closed()
	return c.Conn.Close()
}
