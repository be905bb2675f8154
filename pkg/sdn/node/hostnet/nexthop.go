package hostnet

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/neighbour"
)

// hostPrefix returns the prefix that contains only the address.
func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// nextHop corrects the permanent neighbour of the next hop to services. The kernel deletes it with tun0, and when tun0 is set down.
func (t *Tun0) nextHop(link netlink.Link) (changes []string, err error) {
	hop, mac := t.config.ServiceNextHop, t.config.ServiceNextHopMAC
	if !hop.IsValid() {
		return nil, nil
	}
	have, err := neighbour.Get(nil, link.Attrs().Index, hop)
	if err != nil {
		return nil, fmt.Errorf("read the neighbour %s of %s: %w", hop, Tun0Name, err)
	}
	if have != nil && have.State == netlink.NUD_PERMANENT && bytes.Equal(have.HardwareAddr, mac) {
		return nil, nil
	}
	want := netlink.Neigh{LinkIndex: link.Attrs().Index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT, IP: hop.AsSlice(), HardwareAddr: mac}
	if err := netlink.NeighSet(&want); err != nil {
		return nil, fmt.Errorf("add the neighbour %s of %s: %w", hop, Tun0Name, err)
	}
	return []string{fmt.Sprintf("neighbour %s added", hop)}, nil
}

// permanentNeighbours lists the interface's permanent IPv4 neighbours. With ErrDumpInterrupted the list may be incomplete.
func permanentNeighbours(link netlink.Link) ([]netlink.Neigh, error) {
	return netlink.NeighListExecute(netlink.Ndmsg{Family: unix.AF_INET, Index: uint32(link.Attrs().Index), State: netlink.NUD_PERMANENT}) //nolint:gosec // as above
}

// egressIPs returns the egress IPs that have a route to the interface. Their neighbours belong to package egressaddress.
func egressIPs(link netlink.Link) (map[netip.Addr]bool, error) {
	routes, err := netlinksafe.RouteList(link, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list the routes of %s: %w", Tun0Name, err)
	}
	all := map[netip.Addr]bool{}
	for _, r := range routes {
		if isEgressRoute(r) {
			all[fromIPNet(r.Dst).Addr()] = true
		}
	}
	return all, nil
}

// staleNeighbours removes the permanent neighbours of an agent with another next hop, or with one when there is none now. It lists all neighbours, so it does
// so once: the next hop does not change while the agent runs.
func (t *Tun0) staleNeighbours(link netlink.Link) (changes []string, err error) {
	if t.neighboursListed {
		return nil, nil
	}
	have, err := permanentNeighbours(link)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list the neighbours of %s: %w", Tun0Name, err)
	}
	complete := err == nil // otherwise the next Sync lists them again
	egress, err := egressIPs(link)
	if err != nil {
		return nil, err
	}
	for _, h := range have {
		addr, _ := netip.AddrFromSlice(h.IP)
		if addr.Unmap() == t.config.ServiceNextHop || egress[addr.Unmap()] {
			continue
		}
		// ENOENT: it was deleted in the meantime.
		if err := netlink.NeighDel(&h); err != nil && !errors.Is(err, unix.ENOENT) {
			return changes, fmt.Errorf("remove the neighbour %s of %s: %w", addr, Tun0Name, err)
		}
		changes = append(changes, fmt.Sprintf("neighbour %s removed", addr))
	}
	t.neighboursListed = complete
	return changes, nil
}
