package hostports

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// listener is a socket of the host that receives new connections or packets of any sender.
type listener struct {
	addr netip.Addr // 0.0.0.0: all addresses
	port int
	uid  uint32
}

// Sizes and offsets of the kernel's inet_diag.h.
const (
	diagRequestLen  = 56
	diagMessageLen  = 72
	diagUIDOffset   = 64
	diagSourcePort  = 4
	diagSourceAddr  = 8
	diagV6OnlyAttr  = 11 // INET_DIAG_SKV6ONLY
	stateClose      = 7  // of UDP sockets without a peer
	stateListen     = 10
	diagStateOffset = 4
)

// diagRequest is an inet_diag_req_v2 for all sockets of a family and protocol in some states.
type diagRequest struct {
	family, protocol uint8
	states           uint32
}

// Len implements nl.NetlinkRequestData.
func (r *diagRequest) Len() int { return diagRequestLen }

// Serialize implements nl.NetlinkRequestData.
func (r *diagRequest) Serialize() []byte {
	b := make([]byte, diagRequestLen)
	b[0], b[1] = r.family, r.protocol
	binary.NativeEndian.PutUint32(b[diagStateOffset:], r.states)
	return b
}

// hostListeners returns the sockets of the host that receive packets to IPv4 addresses, in the network namespace of the calling thread. It opens no port:
// those below 1024 would need CAP_NET_BIND_SERVICE. It returns none for SCTP, and on kernels without the modules of sock_diag(7).
func hostListeners(protocol string) ([]listener, error) {
	number, state := uint8(unix.IPPROTO_TCP), stateListen
	switch protocol {
	case protocolUDP:
		number, state = unix.IPPROTO_UDP, stateClose
	case protocolSCTP:
		return nil, nil
	}
	var all []listener
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		request := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
		request.AddData(&diagRequest{family, number, 1 << state})
		messages, err := request.Execute(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY)
		if errors.Is(err, unix.ENOENT) {
			return nil, nil // the kernel has no module tcp_diag or udp_diag
		}
		if err != nil {
			return nil, fmt.Errorf("list the host's %s sockets: %w", protocol, err)
		}
		for _, m := range messages {
			if l, ok := parseListener(m); ok {
				all = append(all, l)
			}
		}
	}
	return all, nil
}

// parseListener returns false for sockets that receive IPv6 only.
func parseListener(m []byte) (l listener, ok bool) {
	if len(m) < diagMessageLen {
		return listener{}, false
	}
	l = listener{port: int(binary.BigEndian.Uint16(m[diagSourcePort:])), uid: binary.NativeEndian.Uint32(m[diagUIDOffset:])}
	if m[0] == unix.AF_INET {
		l.addr = netip.AddrFrom4([4]byte(m[diagSourceAddr : diagSourceAddr+4]))
		return l, true
	}
	addr := netip.AddrFrom16([16]byte(m[diagSourceAddr : diagSourceAddr+16]))
	switch {
	case addr.Is4In6():
		l.addr = addr.Unmap()
	case addr.IsUnspecified() && !isV6Only(m[diagMessageLen:]):
		l.addr = netip.IPv4Unspecified()
	default:
		return listener{}, false
	}
	return l, true
}

func isV6Only(attributes []byte) bool {
	all, err := nl.ParseRouteAttr(attributes)
	if err != nil {
		return false
	}
	for _, a := range all {
		if a.Attr.Type == diagV6OnlyAttr && len(a.Value) > 0 {
			return a.Value[0] != 0
		}
	}
	return false
}

var _ nl.NetlinkRequestData = &diagRequest{}

// receives reports whether packets that match the mapping are for the socket without the mapping.
func (l listener) receives(m Mapping) bool {
	return l.port == m.HostPort && m.addr().Is4() && (l.addr == m.addr() || l.addr.IsUnspecified() || m.addr().IsUnspecified())
}
