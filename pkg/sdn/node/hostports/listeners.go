package hostports

import (
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/listeners"
)

// hostListeners returns the sockets of the host for a protocol of mappings; none of SCTP.
func hostListeners(protocol string) ([]listeners.Listener, error) {
	switch protocol {
	case protocolTCP:
		return listeners.List(unix.IPPROTO_TCP, 0)
	case protocolUDP:
		return listeners.List(unix.IPPROTO_UDP, 0)
	}
	return nil, nil
}

// receivedBy reports whether packets that match the mapping are for the socket without the mapping.
func (m Mapping) receivedBy(l listeners.Listener) bool {
	return int(l.Port) == m.HostPort && m.addr().Is4() && (l.Addr == m.addr() || l.Addr.IsUnspecified() || m.addr().IsUnspecified())
}
