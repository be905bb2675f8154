package hostnet

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
)

// OverlapError reports a network that overlaps a route of the host.
type OverlapError struct {
	What    string // cluster network or service network
	Network netip.Prefix
	Route   string // with its interface

	Flag, Field string // to change
}

func (e *OverlapError) Error() string {
	return fmt.Sprintf("the %s %s overlaps this host's route %s; remove the route, or choose another %s (%s of ClusterNetwork default)",
		e.What, e.Network, e.Route, e.Flag, e.Field)
}

// CheckOverlap returns an *OverlapError for each network that overlaps a route of the host: either the route's destinations or the pods would be
// unreachable. The error names the route, its interface and the field to change.
//
// It ignores default routes, link-local and multicast ranges, and tun0's routes, which the agent adds.
func CheckOverlap(clusterNetworks []netip.Prefix, serviceNetwork netip.Prefix) error {
	routes, err := hostRoutes()
	if err != nil {
		return err
	}
	var errs []error
	check := func(what, flag, field string, network netip.Prefix) {
		for _, r := range routes {
			if r.dst.Overlaps(network) {
				errs = append(errs, &OverlapError{What: what, Network: network, Route: r.String(), Flag: flag, Field: field})
				return // one for each network: a host may have a hundred thousand routes
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
	dev string // empty for routes without an interface, such as blackhole, and with several hops
}

func (r hostRoute) String() string {
	if r.dev == "" {
		return r.dst.String()
	}
	return r.dst.String() + " dev " + r.dev
}

// hostRoutes returns the routes of the main table that the agent does not manage.
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
		case !dst.IsValid(), isOwnInterface(dev):
		case dst.Bits() <= 1: // VPNs split the default route into two halves
		case dst.Addr().IsLinkLocalUnicast(), dst.Addr().IsMulticast():
		default:
			routes = append(routes, hostRoute{dst, dev})
		}
	}
	return routes, nil
}
