package veth

import (
	"net"
	"net/netip"
)

// Interface is the configuration of the pod's end.
type Interface struct {
	Name        string
	MAC         net.HardwareAddr
	MTU         int            // bytes, of both ends
	RouteMTU    int            // bytes, of all routes; 0: not set
	Addrs       []netip.Prefix // with the length of the node's subnet
	Routes      []Route
	NoChecksums bool   // disables TX checksum offload
	HostAlias   string // alias of the host's end, set by Create
}

// Route is a route in the pod.
type Route struct {
	To  netip.Prefix
	Via netip.Addr // zero: on-link
}

// IPNet converts a prefix.
func IPNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
