package hostnet

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

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
	return checkRoutes(clusterNetworks, serviceNetwork, netip.Prefix.Overlaps)
}

// CheckMoreSpecific is CheckOverlap for routes that take packets of the network, a part of it or all. A wider route does not, while tun0 has its own.
func CheckMoreSpecific(clusterNetworks []netip.Prefix, serviceNetwork netip.Prefix) error {
	return checkRoutes(clusterNetworks, serviceNetwork, func(route, network netip.Prefix) bool {
		return route.Bits() >= network.Bits() && network.Contains(route.Addr())
	})
}

func checkRoutes(clusterNetworks []netip.Prefix, serviceNetwork netip.Prefix, conflicts func(route, network netip.Prefix) bool) error {
	networks := make([]*OverlapError, 0, len(clusterNetworks)+1)
	for _, network := range clusterNetworks {
		networks = append(networks, &OverlapError{What: "cluster network", Flag: "--cluster-network", Field: "clusterNetworks", Network: network})
	}
	if serviceNetwork.IsValid() {
		networks = append(networks, &OverlapError{What: "service network", Flag: "--service-network", Field: "serviceNetwork", Network: serviceNetwork})
	}
	var errs []error
	err := eachHostRoute(func(r hostRoute) (goOn bool) {
		networks = slices.DeleteFunc(networks, func(e *OverlapError) bool { // one for each network: a host may have a hundred thousand routes
			if !conflicts(r.dst, e.Network) {
				return false
			}
			e.Route = r.String()
			errs = append(errs, e)
			return true
		})
		return len(networks) > 0
	})
	return errors.Join(append(errs, err)...)
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

// eachHostRoute calls the function with the IPv4 routes of the main table that the agent does not manage, one by one, until it returns false.
func eachHostRoute(do func(hostRoute) (goOn bool)) error {
	links, err := netlinksafe.LinkList()
	if err != nil {
		return fmt.Errorf("list the host's interfaces: %w", err)
	}
	name := map[int]string{}
	for _, l := range links {
		name[l.Attrs().Index] = l.Attrs().Name
	}
	ended := false
	visit := func(r netlink.Route) (goOn bool) {
		dst, dev := fromIPNet(r.Dst), name[r.LinkIndex]
		switch {
		case !dst.IsValid(), isOwnInterface(dev):
		case dst.Bits() <= 1: // VPNs split the default route into two halves
		case dst.Addr().IsLinkLocalUnicast(), dst.Addr().IsMulticast():
		default:
			ended = !do(hostRoute{dst, dev})
		}
		return !ended
	}
	for range interruptedDumps {
		err = netlink.RouteListFilteredIter(netlink.FAMILY_V4, &netlink.Route{}, 0, visit)
		if !errors.Is(err, netlink.ErrDumpInterrupted) || ended {
			break
		}
	}
	if err != nil && !ended && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return fmt.Errorf("list the host's routes: %w", err)
	}
	return nil
}

// interruptedDumps is how often routes are listed while others change them, as netlinksafe does. The last list may lack some of these.
const interruptedDumps = 5
