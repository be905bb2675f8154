package metrics

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/ovsdn/ovsdn/pkg/sdn/connectionlimit"
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

// Limits of a source address that Config.TrustedSource has, or with a client certificate that a route accepted. All such addresses have maxConnections of their own:
// others can't use them up.
const (
	acceptedRate        = 200 // connections per second
	acceptedBurst       = 400
	acceptedConnections = 64
	acceptedSource      = time.Hour
	maxAccepted         = 1024 // addresses
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

// listener closes connections beyond the limits at once, before any cryptography. Sources with an accepted client certificate have larger limits of their
// own.
type listener struct {
	net.Listener
	trusted       func(netip.Addr) bool
	accepted      *cache.LRUExpireCache // source addresses with an accepted client certificate; the value is unused
	others, known connections
}

func newListener(l net.Listener, trusted func(netip.Addr) bool) *listener {
	return &listener{
		Listener: l, trusted: trusted, accepted: cache.NewLRUExpireCache(maxAccepted),
		others: newConnections(newSources(sourceRate, sourceBurst, sourceLifetime), sourceConnections),
		known:  newConnections(newSources(acceptedRate, acceptedBurst, sourceLifetime), acceptedConnections),
	}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		addr := connectionlimit.SourceOf(conn)
		counts := l.others
		if l.isKnown(addr) {
			counts = l.known
		}
		if !counts.rate.allow(addr) {
			_ = conn.Close()
			continue
		}
		if admitted, ok := counts.Admit(conn); ok {
			return &clientConn{Conn: admitted, accept: func() { l.accepted.Add(addr, nil, acceptedSource) }}, nil
		}
	}
}

func (l *listener) isKnown(addr netip.Addr) bool {
	_, ok := l.accepted.Get(addr)
	return ok || l.trusted != nil && l.trusted(addr)
}

// connections limits the number of connections and their rate.
type connections struct {
	*connectionlimit.Limiter
	rate *sources
}

func newConnections(rate *sources, perSource int) connections {
	return connections{connectionlimit.New(connectionlimit.Limits{All: maxConnections, Source: perSource}), rate}
}

// clientConn is a connection whose client certificate a route may accept.
type clientConn struct {
	net.Conn
	accept func()
}

// connectionKey is the key of a request's *clientConn in its context.
type connectionKey struct{}

// withConnection implements http.Server.ConnContext.
func withConnection(ctx context.Context, conn net.Conn) context.Context {
	encrypted, ok := conn.(*tls.Conn)
	if !ok {
		return ctx
	}
	return context.WithValue(ctx, connectionKey{}, encrypted.NetConn())
}

// Accept records that the handler of a Route accepted the client certificate of the request: further connections of its source address then have the
// limits of accepted clients, for an hour. kube-apiserver sends the requests of all users from one address.
func Accept(r *http.Request) {
	if conn, ok := r.Context().Value(connectionKey{}).(*clientConn); ok {
		conn.accept()
	}
}
