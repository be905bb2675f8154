package veth

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// updateRoutes adds on-link routes to new ranges of the cluster network: their packets would go to the gateway's MAC otherwise. Then it deletes
// those of previous ranges. It does not delete routes that overlap none of the current ranges, since the pod may have added them.
func updateRoutes(h netlinksafe.Handle, link netlink.Link, i Interface) (changes []string, err error) {
	have, err := h.RouteList(link, nl.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list routes of %s: %w", i.Name, err)
	}
	var wanted []netip.Prefix
	for _, r := range i.Routes {
		if r.Via.IsValid() {
			continue
		}
		wanted = append(wanted, r.To)
		if slices.ContainsFunc(have, func(h netlink.Route) bool { return destination(h) == r.To }) {
			continue
		}
		route := kernelRoute(link.Attrs().Index, r)
		route.MTU = i.RouteMTU
		if err := h.RouteAdd(&route); err != nil {
			return changes, fmt.Errorf("add route to %s: %w", r.To, err)
		}
		changes = append(changes, fmt.Sprintf("route to %s added", r.To))
	}
	for _, r := range have {
		if !isObsolete(r, wanted) {
			continue
		}
		if err := h.RouteDel(&r); err != nil {
			return changes, fmt.Errorf("delete route to %s: %w", r.Dst, err)
		}
		changes = append(changes, fmt.Sprintf("route to %s deleted", r.Dst))
	}
	return changes, nil
}

// isObsolete reports whether Configure added the route for a previous range.
func isObsolete(r netlink.Route, wanted []netip.Prefix) bool {
	to := destination(r)
	return to.Bits() > 0 && r.Gw == nil && r.Src == nil && r.Type == unix.RTN_UNICAST && r.Protocol != unix.RTPROT_KERNEL &&
		!slices.Contains(wanted, to) && slices.ContainsFunc(wanted, to.Overlaps)
}

// destination returns the zero Prefix for a route without one, such as IPv6's default route.
func destination(r netlink.Route) netip.Prefix {
	if r.Dst == nil {
		return netip.Prefix{}
	}
	addr, ok := netip.AddrFromSlice(r.Dst.IP)
	if !ok {
		return netip.Prefix{}
	}
	bits, _ := r.Dst.Mask.Size()
	return netip.PrefixFrom(addr.Unmap(), bits)
}
