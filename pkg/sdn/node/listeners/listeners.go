// Package listeners lists the sockets of the host that receive connections or packets of any sender.
package listeners

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Listener is a socket of the host that receives new connections or packets of any sender.
type Listener struct {
	Addr netip.Addr // 0.0.0.0: all addresses
	Port uint16
	UID  uint32 // the user of the process
}

// Sizes and offsets of the kernel's inet_diag.h.
const (
	diagRequestLen  = 56
	diagMessageLen  = 72
	diagUIDOffset   = 64
	diagRequestPort = 8
	diagSourcePort  = 4
	diagSourceAddr  = 8
	diagV6OnlyAttr  = 11 // INET_DIAG_SKV6ONLY
	stateClose      = 7  // of UDP sockets without a peer
	stateListen     = 10
	diagStateOffset = 4
)

// diagRequest is an inet_diag_req_v2 for the sockets of a family and protocol in some states.
type diagRequest struct {
	family, protocol uint8
	states           uint32
	port             uint16 // 0: all
}

// Len implements nl.NetlinkRequestData.
func (r *diagRequest) Len() int { return diagRequestLen }

// Serialize implements nl.NetlinkRequestData.
func (r *diagRequest) Serialize() []byte {
	b := make([]byte, diagRequestLen)
	b[0], b[1] = r.family, r.protocol
	binary.NativeEndian.PutUint32(b[diagStateOffset:], r.states)
	binary.BigEndian.PutUint16(b[diagRequestPort:], r.port)
	return b
}

// List returns the sockets of TCP (unix.IPPROTO_TCP) or UDP that receive packets to IPv4 addresses, at one port or, with 0, at all, in the network namespace of the
// calling thread. It opens no port: those below 1024 would need CAP_NET_BIND_SERVICE. It returns none for other protocols, and on kernels without the modules of
// sock_diag(7).
func List(protocol uint8, port uint16) ([]Listener, error) {
	state := stateListen
	switch protocol {
	case unix.IPPROTO_TCP:
	case unix.IPPROTO_UDP:
		state = stateClose
	default:
		return nil, nil
	}
	var all []Listener
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		request := nl.NewNetlinkRequest(nl.SOCK_DIAG_BY_FAMILY, unix.NLM_F_DUMP)
		request.AddData(&diagRequest{family, protocol, 1 << state, port})
		messages, err := request.Execute(unix.NETLINK_INET_DIAG, nl.SOCK_DIAG_BY_FAMILY)
		if errors.Is(err, unix.ENOENT) {
			return nil, nil // the kernel has no module tcp_diag or udp_diag
		}
		if err != nil {
			return nil, fmt.Errorf("list the host's sockets of protocol %d: %w", protocol, err)
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
func parseListener(m []byte) (l Listener, ok bool) {
	if len(m) < diagMessageLen {
		return Listener{}, false
	}
	l = Listener{Port: binary.BigEndian.Uint16(m[diagSourcePort:]), UID: binary.NativeEndian.Uint32(m[diagUIDOffset:])}
	if m[0] == unix.AF_INET {
		l.Addr = netip.AddrFrom4([4]byte(m[diagSourceAddr : diagSourceAddr+4]))
		return l, true
	}
	addr := netip.AddrFrom16([16]byte(m[diagSourceAddr : diagSourceAddr+16]))
	switch {
	case addr.Is4In6():
		l.Addr = addr.Unmap()
	case addr.IsUnspecified() && !isV6Only(m[diagMessageLen:]):
		l.Addr = netip.IPv4Unspecified()
	default:
		return Listener{}, false
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
