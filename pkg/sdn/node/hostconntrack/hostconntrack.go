// Package hostconntrack deletes entries of the host's conntrack. Host ports and services have rules that translate connections on the host; neither may delete
// entries of the switch, which are in the same table of the kernel.
package hostconntrack

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Filter is a filter of the host's conntrack entries, which have zone 0: those in other zones belong to the switch.
type Filter func(*netlink.ConntrackFlow) bool

// MatchConntrackFlow implements netlink.CustomConntrackFilter.
func (f Filter) MatchConntrackFlow(c *netlink.ConntrackFlow) bool { return c.Zone == 0 && f(c) }

// Flush deletes the host's IPv4 connections that the filter matches.
func Flush(match Filter) error {
	if _, err := netlinksafe.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, match); err != nil {
		return fmt.Errorf("delete conntrack entries of the host: %w", err)
	}
	return nil
}

// Addr returns an address of a conntrack entry.
func Addr(ip net.IP) netip.Addr {
	addr, _ := netip.AddrFromSlice(ip)
	return addr.Unmap()
}

// LocalAddrs returns the node's IPv4 addresses, with those of the loopback interface.
func LocalAddrs() ([]netip.Addr, error) {
	all, err := netlinksafe.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list the node's addresses: %w", err)
	}
	addrs := make([]netip.Addr, 0, len(all))
	for _, a := range all {
		addrs = append(addrs, Addr(a.IP))
	}
	return addrs, nil
}
