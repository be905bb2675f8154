// Package nodeports reports node ports of services at which a program of the node listens, too (--service-proxy=ovs): the service gets their packets.
package nodeports

import (
	"net/netip"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/listeners"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/servicenat"
)

// Options are the dependencies of a Checker.
type Options struct {
	// Addresses are ranges of addresses of the node: node ports answer only there; empty: at all, except 127.0.0.0/8.
	Addresses []netip.Prefix
	// WarnNode emits an Event about the Node.
	WarnNode func(reason, message string)
}

// Checker has the node ports of all services. Its methods are safe for concurrent use.
type Checker struct {
	options Options
	added   chan struct{} // has an element after a node port was added

	list func(protocol uint8, port uint16) ([]listeners.Listener, error) // replaced in tests

	mu       sync.Mutex
	services map[string][]port // by service; without services that have no node port
	ports    map[port]string   // the service of each node port
	pending  map[port]struct{} // not checked yet
}

// port is a port of the node.
type port struct {
	protocol corev1.Protocol
	number   uint16
}

// New returns a Checker that looks at no socket before Run.
func New(o Options) *Checker {
	return &Checker{
		options: o, added: make(chan struct{}, 1), list: listeners.List, services: map[string][]port{}, ports: map[port]string{}, pending: map[port]struct{}{},
	}
}

// Set replaces the node ports of a service by those of its frontends; without any it deletes them. It does not wait.
func (c *Checker) Set(service string, frontends []servicenat.Frontend) {
	var ports []port
	for _, f := range frontends {
		if !f.Addr.IsValid() && f.Protocol != corev1.ProtocolSCTP { // sock_diag does not list its sockets
			ports = append(ports, port{f.Protocol, f.Port})
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	previous := c.services[service]
	if slices.Equal(previous, ports) {
		return
	}
	for _, p := range previous {
		if c.ports[p] == service && !slices.Contains(ports, p) {
			delete(c.ports, p)
			delete(c.pending, p)
		}
	}
	if c.services[service] = ports; len(ports) == 0 {
		delete(c.services, service)
	}
	for _, p := range ports {
		if c.ports[p] != service {
			c.ports[p], c.pending[p] = service, struct{}{}
		}
	}
	if len(c.pending) > 0 {
		select {
		case c.added <- struct{}{}:
		default: // the next check has not begun
		}
	}
}

// take returns the services of the pending node ports or, with all, of all node ports. None is pending then.
func (c *Checker) take(all bool) map[port]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := make(map[port]string, len(c.pending))
	for p := range c.pending {
		taken[p] = c.ports[p]
	}
	clear(c.pending)
	if all {
		for p, service := range c.ports {
			taken[p] = service
		}
	}
	return taken
}

// holder returns the service of a node port; "": none.
func (c *Checker) holder(p port) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ports[p]
}

// loses reports whether a service with the socket's port gets packets that are for the socket.
func (c *Checker) loses(l listeners.Listener) bool {
	if l.Addr.IsLoopback() {
		return false
	}
	ranges := c.options.Addresses
	return l.Addr.IsUnspecified() || len(ranges) == 0 || slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(l.Addr) })
}

func (p port) compare(q port) int {
	if p.number != q.number {
		return int(p.number) - int(q.number)
	}
	return strings.Compare(string(p.protocol), string(q.protocol))
}
