package hostnet

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// HostRoute is the kernel's decision on a packet.
type HostRoute struct {
	Kind      diagnostics.RouteKind
	Interface string       // out of which a forwarded packet leaves
	Gateway   netip.Addr   // the next hop; zero: the destination is on-link
	Network   netip.Prefix // of the route; zero: not known
	Source    netip.Addr   // the kernel's choice for a packet of the host itself
	NoCarrier bool         // the interface has no link: the kernel drops what it sends

	index int // of the interface
}

// lookUpRoute returns the kernel's decision on a packet from source that comes in on the interface; "": the host sends it. It sends nothing.
func lookUpRoute(in string, source, destination netip.Addr) (HostRoute, error) {
	options := netlink.RouteGetOptions{Iif: in}
	if source.IsValid() {
		options.SrcAddr = source.AsSlice()
	}
	found, err := netlink.RouteGetWithOptions(destination.AsSlice(), &options)
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		return failedRoute(in, source, destination, errno)
	}
	if err != nil {
		return HostRoute{}, fmt.Errorf("look up the route to %s: %w", destination, err)
	}
	if len(found) == 0 {
		return HostRoute{}, fmt.Errorf("look up the route to %s: the kernel returned none", destination)
	}
	route := HostRoute{Kind: diagnostics.RouteForwarded, Gateway: gatewayOf(found[0]), index: found[0].LinkIndex}
	if addr, ok := netip.AddrFromSlice(found[0].Src); ok {
		route.Source = addr.Unmap()
	}
	if found[0].Type != unix.RTN_UNICAST { // local, or a broadcast address of the host
		route.Kind = diagnostics.RouteLocal
		return route, nil
	}
	link, err := netlink.LinkByIndex(route.index)
	if err != nil {
		return HostRoute{}, fmt.Errorf("find the interface of the route to %s: %w", destination, err)
	}
	route.Interface, route.NoCarrier = link.Attrs().Name, link.Attrs().RawFlags&unix.IFF_LOWER_UP == 0
	options.FIBMatch = true
	if matched, err := netlink.RouteGetWithOptions(destination.AsSlice(), &options); err == nil && len(matched) > 0 { // for people only
		route.Network = networkOf(matched[0])
	}
	return route, nil
}

// failedRoute explains the errors by which the kernel reports routes without an interface. It returns the same ones for a packet that it refuses because of its
// source, and for an interface that does not forward: those do not concern packets of the host itself for which it selects the source.
func failedRoute(in string, source, destination netip.Addr, errno syscall.Errno) (HostRoute, error) {
	refusals := []syscall.Errno{unix.EHOSTUNREACH, unix.EINVAL, unix.EXDEV}
	if in == "" {
		refusals = []syscall.Errno{unix.EINVAL, unix.ENETUNREACH} // the host does not have the source
	}
	if in != "" || source.IsValid() {
		_, err := netlink.RouteGetWithOptions(destination.AsSlice(), nil)
		own := syscall.Errno(0)
		switch {
		case err == nil && slices.Contains(refusals, errno):
			return HostRoute{Kind: diagnostics.RouteRefused}, nil
		case errors.As(err, &own):
			errno = own
		}
	}
	kinds := map[syscall.Errno]diagnostics.RouteKind{
		unix.ENETUNREACH:  diagnostics.RouteMissing,
		unix.EHOSTUNREACH: diagnostics.RouteUnreachable,
		unix.EACCES:       diagnostics.RouteProhibited,
		unix.EINVAL:       diagnostics.RouteBlackhole,
		unix.EXDEV:        diagnostics.RouteRefused,
	}
	if kind, ok := kinds[errno]; ok {
		return HostRoute{Kind: kind}, nil
	}
	return HostRoute{}, fmt.Errorf("look up the route to %s: %w", destination, errno)
}

func gatewayOf(r netlink.Route) netip.Addr {
	gateway := r.Gw
	if via, ok := r.Via.(*netlink.Via); ok { // of another family
		gateway = via.Addr
	}
	addr, _ := netip.AddrFromSlice(gateway)
	return addr.Unmap()
}

// networkOf returns the network of a route of the FIB.
func networkOf(r netlink.Route) netip.Prefix {
	if r.Dst == nil {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return fromIPNet(r.Dst)
}

// masqueradeAddr returns the address that target MASQUERADE selects on the interface, as inet_select_addr of the kernel: the first one, or that in the network of
// the next hop. It returns the zero Addr if the interface has none: the kernel then takes one of another interface.
func masqueradeAddr(index int, hop netip.Addr) (selected netip.Addr, err error) {
	link, err := netlink.LinkByIndex(index)
	if err != nil {
		return selected, fmt.Errorf("find the interface that masquerades: %w", err)
	}
	addrs, err := netlinksafe.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return selected, fmt.Errorf("list addresses of interface %s: %w", link.Attrs().Name, err)
	}
	for _, a := range addrs {
		network := fromIPNet(a.IPNet)
		if a.Flags&unix.IFA_F_SECONDARY != 0 || a.Scope != int(netlink.SCOPE_UNIVERSE) || !network.IsValid() {
			continue
		}
		if network.Contains(hop) {
			return network.Addr(), nil
		}
		if !selected.IsValid() {
			selected = network.Addr()
		}
	}
	return selected, nil
}
