package tunnelneighbours

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/neighbour"
	"github.com/ovsdn/ovsdn/pkg/sdn/pause"
)

const (
	// netlinkTimeout bounds a request to the kernel.
	netlinkTimeout = 10 * time.Second
	// receivePause follows an error of the watch, usually ENOBUFS: messages were lost.
	receivePause = time.Second
	// sizeofNdmsg is the size of struct ndmsg of the kernel's uapi/linux/neighbour.h.
	sizeofNdmsg = 12
	// hasMAC are the states of entries whose MAC the kernel uses.
	hasMAC = verified | netlink.NUD_STALE | netlink.NUD_DELAY | netlink.NUD_PROBE
	// verified are those that the kernel does not verify when a packet uses them.
	verified = netlink.NUD_REACHABLE | netlink.NUD_PERMANENT | netlink.NUD_NOARP
)

// kernel is the neighbour table and the routes of the network namespace in which it was opened.
type kernel struct {
	handle  *netlink.Handle
	sockets neighbour.Sockets
	events  *nl.NetlinkSocket
}

// openKernel opens the sockets in the calling thread's network namespace.
func openKernel() (k *kernel, err error) {
	k = &kernel{}
	defer func() {
		if err != nil {
			k.close()
			err = fmt.Errorf("open netlink sockets: %w", err)
		}
	}()
	if k.handle, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return k, err
	}
	if err = k.handle.SetSocketTimeout(netlinkTimeout); err != nil {
		return k, err
	}
	socket, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return k, err
	}
	k.sockets = neighbour.Sockets{unix.NETLINK_ROUTE: {Socket: socket}}
	timeout := unix.NsecToTimeval(netlinkTimeout.Nanoseconds())
	if err = errors.Join(socket.SetReceiveTimeout(&timeout), socket.SetSendTimeout(&timeout)); err != nil {
		return k, err
	}
	k.events, err = nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_IFADDR)
	return k, err
}

func (k *kernel) close() {
	if k.handle != nil {
		k.handle.Close()
	}
	for _, s := range k.sockets {
		s.Close()
	}
	if k.events != nil {
		k.events.Close()
	}
}

// index returns the index of an interface.
func (k *kernel) index(device string) (int, error) {
	link, err := k.handle.LinkByName(device)
	if err != nil {
		return 0, fmt.Errorf("interface %s: %w", device, err)
	}
	return link.Attrs().Index, nil
}

// mac returns the MAC of a neighbour, nil if the kernel has none. Unless the entry is recent or permanent, it makes the kernel resolve or verify it,
// as a packet of the host would; watch reports the result.
func (k *kernel) mac(n kernelNeighbour) (net.HardwareAddr, error) {
	have, err := neighbour.Get(k.sockets, n.index, n.addr)
	if err != nil {
		return nil, fmt.Errorf("read neighbour %s: %w", n.addr, err)
	}
	if have == nil || have.State&verified == 0 { // a probe would make a permanent entry expire
		probe := netlink.Neigh{LinkIndex: n.index, Family: unix.AF_INET, IP: n.addr.AsSlice(), Flags: netlink.NTF_USE}
		if err := k.handle.NeighSet(&probe); err != nil {
			return nil, fmt.Errorf("probe neighbour %s: %w", n.addr, err)
		}
	}
	if have == nil || have.State&hasMAC == 0 || len(have.HardwareAddr) == 0 {
		return nil, nil
	}
	return have.HardwareAddr, nil
}

// change is what a message of the kernel reports.
type change struct {
	neighbour kernelNeighbour  // the zero value: none
	mac       net.HardwareAddr // of neighbour; nil: it has none
	routes    bool             // a route or an address changed
}

// kernelNeighbour is the key of an entry in the kernel's neighbour table.
type kernelNeighbour struct {
	index int
	addr  netip.Addr
}

// watch calls handle for each change, and lost when messages were lost, until the context ends. They must not block.
func (k *kernel) watch(ctx context.Context, handle func(change), lost func()) {
	defer context.AfterFunc(ctx, k.events.Close)()
	for {
		messages, _, err := k.events.Receive()
		for _, m := range messages {
			handle(parseChange(m))
		}
		if err == nil {
			continue
		}
		if !pause.For(ctx, receivePause) {
			return
		}
		lost()
	}
}

func parseChange(m syscall.NetlinkMessage) change {
	switch m.Header.Type {
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE, unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return change{routes: true}
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
	default:
		return change{}
	}
	if len(m.Data) < sizeofNdmsg || m.Data[0] != unix.AF_INET {
		return change{}
	}
	attributes, err := nl.ParseRouteAttr(m.Data[sizeofNdmsg:])
	if err != nil {
		return change{}
	}
	c := change{neighbour: kernelNeighbour{index: int(binary.NativeEndian.Uint32(m.Data[4:]))}}
	state := int(binary.NativeEndian.Uint16(m.Data[8:]))
	for _, a := range attributes {
		switch int(a.Attr.Type) {
		case netlink.NDA_DST:
			c.neighbour.addr, _ = netip.AddrFromSlice(a.Value)
		case netlink.NDA_LLADDR:
			if m.Header.Type == unix.RTM_NEWNEIGH && state&hasMAC != 0 {
				c.mac = a.Value
			}
		}
	}
	return c
}
