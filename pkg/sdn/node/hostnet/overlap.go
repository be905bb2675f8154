package hostnet

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
)

// CheckOverlap returns an error for every one of the networks that the host routes elsewhere already, in part or as a
// whole: either the route's destinations or the pods would be lost. It names the route and its interface, and what to change.
//
// Default routes are no overlap, link-local and multicast ranges are not the host's to route, and tun0's own routes
// are the ones that the agent made.
func CheckOverlap(clusterNetworks []netip.Prefix, serviceNetwork netip.Prefix) error {
	routes, err := hostRoutes()
	if err != nil {
		return err
	}
	var errs []error
	check := func(what, flag, field string, network netip.Prefix) {
		for _, r := range routes {
			if r.dst.Overlaps(network) {
				errs = append(errs, fmt.Errorf("the %s %s overlaps this host's route %s: remove the route, or choose another %s (%s of ClusterNetwork default)",
					what, network, r, flag, field))
				return // one per network: a host may have a hundred thousand routes
			}
		}
	}
	for _, network := range clusterNetworks {
		check("cluster network", "--cluster-network", "clusterNetworks", network)
	}
	if serviceNetwork.IsValid() {
		check("service network", "--service-network", "serviceNetwork", serviceNetwork)
	}
	return errors.Join(errs...)
}

type hostRoute struct {
	dst netip.Prefix
	dev string // empty for a blackhole and its like, and for several hops
}

func (r hostRoute) String() string {
	if r.dev == "" {
		return r.dst.String()
	}
	return r.dst.String() + " dev " + r.dev
}

// hostRoutes returns the main table's routes that are not ours.
func hostRoutes() ([]hostRoute, error) {
	links, err := netlinksafe.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list the host's interfaces: %w", err)
	}
	name := map[int]string{}
	for _, l := range links {
		name[l.Attrs().Index] = l.Attrs().Name
	}
	all, err := netlinksafe.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list the host's routes: %w", err)
	}
	var routes []hostRoute
	for _, r := range all {
		dst, dev := fromIPNet(r.Dst), name[r.LinkIndex]
		switch {
		case !dst.IsValid(), ours(dev):
		case dst.Bits() <= 1: // VPNs write the default route as two halves
		case dst.Addr().IsLinkLocalUnicast(), dst.Addr().IsMulticast():
		default:
			routes = append(routes, hostRoute{dst, dev})
		}
	}
	return routes, nil
}
