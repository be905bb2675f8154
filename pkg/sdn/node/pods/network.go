package pods

import (
	"net"
	"net/netip"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// multicast is IPv4's (RFC 5771). It is on-link, or the kernel would send it to the gateway's MAC.
func multicast() netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{224}), 4) }

// network is how the pod's interface looks.
//
// The address has the length of the node's subnet, but the kernel's route for that is not wanted: all of the
// cluster network is on-link, since the switch answers ARP requests for all of it.
func (m *Manager) network(pod Pod) Interface {
	i := Interface{
		Name:     pod.IfName,
		MAC:      pod.MAC(),
		MTU:      m.MTU,
		RouteMTU: m.RouteMTU,
		// The userspace datapath drops TCP with checksums that a device was to fill in.
		NoChecksums: m.Datapath == DatapathNetdev,
	}
	for _, addr := range pod.Addrs {
		prefix := netip.PrefixFrom(addr, m.subnetBits(addr))
		i.Addrs = append(i.Addrs, prefix)
		i.Routes = append(i.Routes, m.routes(prefix)...)
	}
	return i
}

// routes puts what is on-link first: the kernel takes a gateway only if it can be reached.
func (m *Manager) routes(prefix netip.Prefix) []Route {
	var routes []Route
	for _, c := range m.ClusterNetworks {
		if sameFamily(c.Addr(), prefix.Addr()) {
			routes = append(routes, Route{To: c.Masked()})
		}
	}
	if prefix.Addr().Is4() {
		routes = append(routes, Route{To: multicast()})
	}
	via := config.Gateway(prefix)
	if sameFamily(m.ServiceNetwork.Addr(), via) {
		routes = append(routes, Route{To: m.ServiceNetwork.Masked(), Via: via})
	}
	return append(routes, Route{To: defaultRoute(via), Via: via})
}

// subnetBits is the length of the node's subnet that has the address; that of the address when none has, as when the subnet was
// changed under a living pod.
func (m *Manager) subnetBits(addr netip.Addr) int {
	for _, s := range m.Subnets {
		if s.Contains(addr) {
			return s.Bits()
		}
	}
	return addr.BitLen()
}

func defaultRoute(addr netip.Addr) netip.Prefix {
	if addr.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

func sameFamily(a, b netip.Addr) bool { return a.Is4() == b.Is4() }

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
