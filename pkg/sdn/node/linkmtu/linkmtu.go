// Package linkmtu changes the MTU of an interface that is in use, and of the routes through it, in the order that loses
// nothing: the kernel never finds a route that lets it send more than its interface takes, nor more than was right
// before and will be right after.
//
// It changes one interface. That no other host sends more than this one takes is for the order of whole clusters (docs/mtu.md).
package linkmtu

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// MTU is what an interface takes, and what is sent through it, in bytes.
type MTU struct {
	Link   int // the largest packet that the interface takes, in both directions
	Routes int // the largest packet that routes through it let this host send, at most Link; 0: they don't say, Link holds
}

// Sent returns the largest packet that is sent, in bytes.
func (m MTU) Sent() int {
	if m.Routes == 0 {
		return m.Link
	}
	return m.Routes
}

// String is for messages: "1450", or "1450, of which 1400 are sent".
func (m MTU) String() string {
	if m.Sent() == m.Link {
		return fmt.Sprint(m.Link)
	}
	return fmt.Sprintf("%d, packets sent of at most %d", m.Link, m.Routes)
}

// Netlink is the part of netlinksafe.Handle in use.
type Netlink interface {
	LinkSetMTU(link netlink.Link, mtu int) error
	RouteList(link netlink.Link, family int) ([]netlink.Route, error)
	RouteReplace(route *netlink.Route) error
}

// Change is one interface on its way to another MTU.
type Change struct {
	Netlink Netlink
	Link    netlink.Link             // with its attributes as the kernel has them now
	Want    MTU                      //
	Ours    func(netlink.Route) bool // says which of the interface's routes follow Want
}

// Prepare lowers the routes as far as they must be before anybody sets the interface to its MTU. It returns what it changed,
// for logging.
func (c Change) Prepare() (changes []string, err error) {
	routes, err := c.routes()
	if err != nil {
		return nil, err
	}
	return c.prepare(routes)
}

// Apply changes the interface and its routes. It writes only what differs, and returns what it changed, for logging.
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
		// IPv6 routes that had the interface's MTU have gone along with it (net/ipv6/route.c, rt6_mtu_change_route).
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

// prepare pins the routes that would send more than is wanted once the interface has its MTU. What they are pinned to must fit
// the interface as it still is.
func (c Change) prepare(routes []netlink.Route) (changes []string, err error) {
	pin := min(c.Want.Sent(), c.Link.Attrs().MTU)
	for i := range routes {
		if then := (MTU{Link: c.Want.Link, Routes: routes[i].MTU}); then.Sent() > c.Want.Sent() {
			if err := c.set(&routes[i], pin, &changes); err != nil {
				return changes, err
			}
		}
	}
	return changes, nil
}

// set replaces the route in place: there is no moment without it.
func (c Change) set(r *netlink.Route, mtu int, changes *[]string) error {
	if r.MTU == mtu {
		return nil
	}
	was := r.MTU
	r.MTU = mtu
	r.Flags &= unix.RTNH_F_ONLINK // the others are the kernel's to say
	if err := c.Netlink.RouteReplace(r); err != nil {
		return fmt.Errorf("set the MTU of the route %s dev %s to %d: %w", r.Dst, c.Link.Attrs().Name, mtu, err)
	}
	*changes = append(*changes, fmt.Sprintf("route %s MTU %d (was %d)", r.Dst, mtu, was))
	return nil
}

func (c Change) routes() ([]netlink.Route, error) {
	all, err := c.Netlink.RouteList(c.Link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list the routes of %s: %w", c.Link.Attrs().Name, err)
	}
	var ours []netlink.Route
	for _, r := range all {
		if c.Ours(r) {
			ours = append(ours, r)
		}
	}
	return ours, nil
}
