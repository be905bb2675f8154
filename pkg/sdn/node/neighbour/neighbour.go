// Package neighbour reads single entries of the kernel's neighbour table, of which a node can have tens of thousands.
package neighbour

import (
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Sockets are netlink sockets by protocol, in the network namespace in which they were opened; nil: that of the calling thread.
type Sockets map[int]*nl.SocketHandle

// Get returns the IPv4 neighbour of the interface with the index, or nil.
func Get(s Sockets, index int, addr netip.Addr) (*netlink.Neigh, error) {
	n, err := find(s, index, addr)
	if errors.Is(err, unix.EOPNOTSUPP) { // before Linux 5.0
		return search(s, index, addr)
	}
	return n, err
}

// find requests one entry.
func find(s Sockets, index int, addr netip.Addr) (*netlink.Neigh, error) {
	request := newRequest(s, 0, index)
	request.AddData(nl.NewRtAttr(netlink.NDA_DST, addr.AsSlice()))
	messages, err := request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	switch {
	case errors.Is(err, unix.ENOENT), err == nil && len(messages) == 0:
		return nil, nil
	case err != nil:
		return nil, err
	}
	return netlink.NeighDeserialize(messages[0])
}

// search requests all entries.
func search(s Sockets, index int, addr netip.Addr) (*netlink.Neigh, error) {
	messages, err := newRequest(s, unix.NLM_F_DUMP, index).Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	for _, m := range messages {
		n, err := netlink.NeighDeserialize(m)
		if err != nil {
			return nil, err
		}
		if n.LinkIndex == index && n.IP.Equal(addr.AsSlice()) {
			return n, nil
		}
	}
	return nil, err
}

func newRequest(s Sockets, flags, index int) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, flags)
	request.Sockets = s
	request.AddData(&netlink.Ndmsg{Family: unix.AF_INET, Index: uint32(index)}) //nolint:gosec // the kernel's int is positive
	return request
}
