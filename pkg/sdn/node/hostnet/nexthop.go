package hostnet

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// hostPrefix returns the prefix that contains only the address.
func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// nextHop corrects the permanent neighbour of the next hop to services. The kernel deletes it with tun0, and when tun0 is set down.
func (t *Tun0) nextHop(link netlink.Link) (changes []string, err error) {
	hop, mac := t.config.ServiceNextHop, t.config.ServiceNextHopMAC
	if !hop.IsValid() {
		return nil, nil
	}
	have, err := neighbourOf(link, hop)
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

// neighbourOf returns a neighbour of the interface, or nil. It reads one entry: a node can have tens of thousands.
func neighbourOf(link netlink.Link, addr netip.Addr) (*netlink.Neigh, error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	request.AddData(&netlink.Ndmsg{Family: unix.AF_INET, Index: uint32(link.Attrs().Index)}) //nolint:gosec // the kernel's int is positive
	request.AddData(nl.NewRtAttr(netlink.NDA_DST, addr.AsSlice()))
	messages, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	switch {
	case errors.Is(err, unix.EOPNOTSUPP): // before Linux 5.0
		return listedNeighbour(link, addr)
	case errors.Is(err, unix.ENOENT), err == nil && len(messages) == 0:
		return nil, nil
	case err != nil:
		return nil, err
	}
	return netlink.NeighDeserialize(messages[0])
}

// listedNeighbour is neighbourOf for permanent neighbours, on kernels that only list all.
func listedNeighbour(link netlink.Link, addr netip.Addr) (*netlink.Neigh, error) {
	all, err := permanentNeighbours(link)
	for i := range all {
		if all[i].IP.Equal(addr.AsSlice()) {
			return &all[i], nil
		}
	}
	return nil, err
}

// permanentNeighbours lists the interface's permanent IPv4 neighbours. With ErrDumpInterrupted the list may be incomplete.
func permanentNeighbours(link netlink.Link) ([]netlink.Neigh, error) {
	return netlink.NeighListExecute(netlink.Ndmsg{Family: unix.AF_INET, Index: uint32(link.Attrs().Index), State: netlink.NUD_PERMANENT}) //nolint:gosec // as above
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
	for _, h := range have {
		addr, _ := netip.AddrFromSlice(h.IP)
		if addr.Unmap() == t.config.ServiceNextHop {
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
