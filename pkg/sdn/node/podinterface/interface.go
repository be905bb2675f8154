package podinterface

import (
	"net/netip"
	"slices"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/veth"
)

// multicastNetwork is the multicast range of IPv4 (RFC 5771). Its route is on-link: through the gateway the kernel would use the gateway's MAC.
func multicastNetwork() netip.Prefix { return netip.PrefixFrom(netip.AddrFrom4([4]byte{224}), 4) }

// InterfaceConfig returns the configuration of the pod's interface.
//
// The address has the prefix length of the node's subnet, without the kernel's route for that prefix: the whole
// cluster network is on-link, since the switch answers ARP requests for it.
func (o Options) InterfaceConfig(pod sandbox.Pod) veth.Interface {
	i := veth.Interface{
		Name:     pod.IfName,
		MAC:      pod.MAC(),
		MTU:      o.MTU,
		RouteMTU: o.RouteMTU,
		// The userspace datapath drops TCP packets whose checksum is left to the device.
		NoChecksums: o.Datapath == ovs.DatapathNetdev,
	}
	for _, addr := range pod.Addrs {
		prefix := netip.PrefixFrom(addr, o.subnetBits(addr))
		i.Addrs = append(i.Addrs, prefix)
		i.Routes = append(i.Routes, o.routes(prefix)...)
	}
	return i
}

// CheckedInterface returns what CHECK requires of the pod's interface: not the default route of a pod with a macvlan interface, which may replace it.
func (o Options) CheckedInterface(pod sandbox.Pod) veth.Interface {
	i := o.InterfaceConfig(pod)
	if pod.Macvlan != "" {
		i.Routes = slices.DeleteFunc(i.Routes, func(r veth.Route) bool { return r.To.Bits() == 0 })
	}
	return i
}

// routes returns on-link routes first: the kernel accepts only reachable gateways.
func (o Options) routes(prefix netip.Prefix) []veth.Route {
	var routes []veth.Route
	for _, c := range o.ClusterNetworks {
		if sameFamily(c.Addr(), prefix.Addr()) {
			routes = append(routes, veth.Route{To: c.Masked()})
		}
	}
	if prefix.Addr().Is4() {
		routes = append(routes, veth.Route{To: multicastNetwork()})
	}
	via := config.Gateway(prefix)
	if sameFamily(o.ServiceNetwork.Addr(), via) {
		routes = append(routes, veth.Route{To: o.ServiceNetwork.Masked(), Via: via})
	}
	return append(routes, veth.Route{To: defaultRoute(via), Via: via})
}

// subnetBits returns the prefix length of the node's subnet that contains the address, or the length of the address if none does because
// the node's subnet was changed.
func (o Options) subnetBits(addr netip.Addr) int {
	for _, s := range o.Subnets {
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
