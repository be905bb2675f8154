package servicehealth

import (
	"net"

	"github.com/ovsdn/ovsdn/pkg/sdn/connectionlimit"
)

// Limits of the connections to all ports of a server: any client reaches them.
const (
	maxConnections       = 1024
	maxSourceConnections = 256 // of a source address; a load balancer checks many Services from one
)

// newLimiter returns a limiter that evicts: a few sources with idle connections would otherwise use up the limit of all.
func newLimiter() *connectionlimit.Limiter {
	return connectionlimit.New(connectionlimit.Limits{All: maxConnections, Source: maxSourceConnections, Evict: true})
}

// limitedListener closes connections over the limits at once.
type limitedListener struct {
	net.Listener
	limits *connectionlimit.Limiter
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if admitted, ok := l.limits.Admit(conn); ok {
			return admitted, nil
		}
	}
}
