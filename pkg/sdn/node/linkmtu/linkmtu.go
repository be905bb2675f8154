// Package linkmtu changes the MTU of an interface that is in use, and of the routes through it, without packet loss: at no time does a
// route have a larger MTU than its interface, nor than both the previous and the wanted MTU.
//
// It changes one interface. docs/mtu.md has the order in which the hosts of a cluster are changed.
package linkmtu

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// MTU is the MTU of an interface and of the routes through it, in bytes.
type MTU struct {
	Link   int // of the interface, for received and sent packets
	Routes int // of the routes, for sent packets, at most Link; 0: the routes have none, Link applies
}

// Sent returns the size of the largest packet that this host sends, in bytes.
func (m MTU) Sent() int {
	if m.Routes == 0 {
		return m.Link
	}
	return m.Routes
}

// String returns "1450", or "1450, packets sent of at most 1400".
func (m MTU) String() string {
	if m.Sent() == m.Link {
		return fmt.Sprint(m.Link)
	}
	return fmt.Sprintf("%d, packets sent of at most %d", m.Link, m.Routes)
}

// Netlink is the part of netlinksafe.Handle that Change uses.
type Netlink interface {
	LinkSetMTU(link netlink.Link, mtu int) error
	RouteList(link netlink.Link, family int) ([]netlink.Route, error)
	RouteReplace(route *netlink.Route) error
}

// Change is a change of the MTU of one interface.
type Change struct {
	Netlink Netlink
	Link    netlink.Link // with its current attributes
	Want    MTU
	Selects func(netlink.Route) bool // selects the routes that get Want.Routes
}

// Prepare lowers the MTU of routes where needed before another program sets the MTU of the interface. It returns the changes, for
// logging.
func (c Change) Prepare() (changes []string, err error) {
	routes, err := c.routes()
	if err != nil {
		return nil, err
	}
	return c.prepare(routes)
}

// Apply changes the interface and its routes. It writes only differences, and returns the changes, for logging.
func (c Change) Apply() (changes []string, err error) {
	routes, err := c.routes()
	if err != nil {
		return nil, err
	}
	changes, err = c.prepare(routes)
	if err != nil {
		return changes, err
	}
	name := c.Link.Attrs().Name
	if have := c.Link.Attrs().MTU; have != c.Want.Link {
		if err := c.Netlink.LinkSetMTU(c.Link, c.Want.Link); err != nil {
			return changes, fmt.Errorf("set the MTU of %s to %d: %w", name, c.Want.Link, err)
		}
		changes = append(changes, fmt.Sprintf("MTU %d (was %d)", c.Want.Link, have))
		// The kernel has changed IPv6 routes that had the interface's MTU (net/ipv6/route.c, rt6_mtu_change_route).
		if routes, err = c.routes(); err != nil {
			return changes, err
		}
	}
	for i := range routes {
		if err := c.set(&routes[i], c.Want.Routes, &changes); err != nil {
			return changes, err
		}
	}
	return changes, nil
}

// prepare sets the MTU of routes that would send larger packets than wanted once the interface has its MTU. It must not exceed the current
// MTU of the interface.
func (c Change) prepare(routes []netlink.Route) (changes []string, err error) {
	limit := min(c.Want.Sent(), c.Link.Attrs().MTU)
	for i := range routes {
		if after := (MTU{Link: c.Want.Link, Routes: routes[i].MTU}); after.Sent() > c.Want.Sent() {
			if err := c.set(&routes[i], limit, &changes); err != nil {
				return changes, err
			}
		}
	}
	return changes, nil
}

// set replaces the route atomically.
func (c Change) set(r *netlink.Route, mtu int, changes *[]string) error {
	if r.MTU == mtu {
		return nil
	}
	previous := r.MTU
	r.MTU = mtu
	r.Flags &= unix.RTNH_F_ONLINK // the kernel sets the others
	if err := c.Netlink.RouteReplace(r); err != nil {
		return fmt.Errorf("set the MTU of the route %s dev %s to %d: %w", r.Dst, c.Link.Attrs().Name, mtu, err)
	}
	*changes = append(*changes, fmt.Sprintf("route %s MTU %d (was %d)", r.Dst, mtu, previous))
	return nil
}

func (c Change) routes() ([]netlink.Route, error) {
	all, err := c.Netlink.RouteList(c.Link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list the routes of %s: %w", c.Link.Attrs().Name, err)
	}
	var selected []netlink.Route
	for _, r := range all {
		if c.Selects(r) {
			selected = append(selected, r)
		}
	}
	return selected, nil
}
