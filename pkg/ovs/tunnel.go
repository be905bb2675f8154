package ovs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// TunnelHop is the next hop of a tunnel's packets in the userspace datapath, which routes them itself.
type TunnelHop struct {
	Bridge string     // that has the device as a port
	Device string     // by which the packets leave; usually the local port of the bridge
	Addr   netip.Addr // the VTEP, or the gateway to it
}

// TunnelNeighbour is an entry of the userspace datapath's own neighbour cache, by which it sends packets of tunnels. vswitchd drops a packet
// whose next hop has no entry, and requests the MAC by ARP.
type TunnelNeighbour struct {
	Bridge string
	Addr   netip.Addr
	MAC    net.HardwareAddr
}

// noTunnelRouteError reports that vswitchd can't send packets to a VTEP.
type noTunnelRouteError struct {
	vtep   netip.Addr
	reason string
}

func (e *noTunnelRouteError) Error() string {
	return fmt.Sprintf("Open vSwitch has no route to VTEP %s: %s", e.vtep, e.reason)
}

// NewNoTunnelRoute returns an error that satisfies IsNoTunnelRoute.
func NewNoTunnelRoute(vtep netip.Addr, reason string) error {
	return &noTunnelRouteError{vtep: vtep, reason: reason}
}

// IsNoTunnelRoute reports whether vswitchd drops packets to the VTEP, because the host has no route, or one by a device that is no port of a bridge.
func IsNoTunnelRoute(err error) bool {
	var e *noTunnelRouteError
	return errors.As(err, &e)
}
