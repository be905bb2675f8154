package egressaddress

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
)

const (
	// attributeProtocol is NDA_PROTOCOL of the kernel's uapi/linux/neighbour.h, since Linux 5.0. An earlier kernel does not store it: there, proxy neighbours
	// remain when an egress IP is removed. Without the route, the kernel does not answer for them.
	attributeProtocol = 12

	sizeofNdmsg  = 12
	netconfIndex = 1  // NETCONFA_IFINDEX of uapi/linux/netconf.h
	netconfAll   = -1 // NETCONFA_IFINDEX_ALL

	// receivePause follows an error of the event socket, usually an overflow of its buffer.
	receivePause = time.Second
)

// proxyKey is the key of a proxy neighbour.
type proxyKey struct {
	index int // of the interface
	addr  netip.Addr
}

type proxy struct{ own bool }

func proxyRequest(command, flags int, k proxyKey) *nl.NetlinkRequest {
	request := nl.NewNetlinkRequest(command, flags)
	request.AddData(&netlink.Ndmsg{Family: unix.AF_INET, Index: uint32(k.index), Flags: netlink.NTF_PROXY}) //nolint:gosec // the kernel's int is positive
	return request
}

// listProxies lists the proxy neighbours of all interfaces. It can miss some that other programs change at the same time: the next reconciliation lists them again.
func listProxies() (map[proxyKey]proxy, error) {
	messages, err := proxyRequest(unix.RTM_GETNEIGH, unix.NLM_F_DUMP, proxyKey{}).Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	if err != nil {
		return nil, err
	}
	all := map[proxyKey]proxy{}
	for _, m := range messages {
		n, ok := parseNeighbour(m)
		if ok && n.flags&netlink.NTF_PROXY != 0 && n.key.addr.IsValid() {
			all[n.key] = proxy{own: n.protocol == hostnet.EgressRouteProtocol}
		}
	}
	return all, nil
}

func addProxy(k proxyKey) error {
	request := proxyRequest(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK, k)
	request.AddData(nl.NewRtAttr(netlink.NDA_DST, k.addr.AsSlice()))
	request.AddData(nl.NewRtAttr(attributeProtocol, nl.Uint8Attr(hostnet.EgressRouteProtocol)))
	_, err := request.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func removeProxy(k proxyKey) error {
	err := netlink.NeighDel(&netlink.Neigh{LinkIndex: k.index, Family: unix.AF_INET, Flags: netlink.NTF_PROXY, IP: k.addr.AsSlice()})
	if err != nil && !isMissing(err) {
		return fmt.Errorf("remove the proxy neighbour %s: %w", k.addr, err)
	}
	return nil
}

// neighbourMessage is a message about a neighbour or a proxy neighbour.
type neighbourMessage struct {
	key      proxyKey
	flags    uint8
	protocol uint8
}

func parseNeighbour(b []byte) (n neighbourMessage, ok bool) {
	if len(b) < sizeofNdmsg || b[0] != unix.AF_INET {
		return n, false
	}
	n.key.index, n.flags = int(binary.NativeEndian.Uint32(b[4:])), b[10]
	attributes, err := nl.ParseRouteAttr(b[sizeofNdmsg:])
	if err != nil {
		return n, false
	}
	for _, a := range attributes {
		switch int(a.Attr.Type) {
		case netlink.NDA_DST:
			n.key.addr, _ = netip.AddrFromSlice(a.Value)
		case attributeProtocol:
			if len(a.Value) > 0 {
				n.protocol = a.Value[0]
			}
		}
	}
	return n, true
}

// silentLinks are the indexes of uplinks that lost their carrier: other hosts may have lost what was announced there. It is safe for concurrent use.
type silentLinks struct {
	mu      sync.Mutex
	indexes map[int]bool
}

func (s *silentLinks) add(index int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.indexes == nil {
		s.indexes = map[int]bool{}
	}
	s.indexes[index] = true
}

// take removes an uplink, and reports whether it was one of them.
func (s *silentLinks) take(index int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	had := s.indexes[index]
	delete(s.indexes, index)
	return had
}

// watched is what the event filter reads.
type watched struct {
	addresses atomic.Pointer[map[netip.Addr]bool] // desired
	devices   atomic.Pointer[map[int]bool]        // indexes of tun0 and of interfaces with addresses
}

// watchDevices updates the interfaces whose events are relevant. Egress IPs of an uplink whose link came up are announced when they are placed again.
func (a *Addresses) watchDevices(h *host) {
	indexes := map[int]bool{h.tun0: true}
	for _, d := range h.devices {
		indexes[d.index] = true
	}
	before := a.watched.devices.Swap(&indexes)
	for index := range indexes {
		if before == nil || !(*before)[index] {
			a.signal() // its events since the host was read were not relevant
			break
		}
	}
	for _, d := range h.devices {
		if !d.running {
			a.silent.add(d.index)
		} else if a.silent.take(d.index) {
			maps.DeleteFunc(a.state.placed, func(_ netip.Addr, p placement) bool { return p.index == d.index })
		}
	}
}

func subscribe() (*nl.NetlinkSocket, error) {
	return nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_NETCONF)
}

// watch requests a reconciliation after each relevant message, until the socket is closed.
func (a *Addresses) watch(events *nl.NetlinkSocket, stop <-chan struct{}) {
	for {
		messages, _, err := events.Receive()
		relevant := err != nil // a lost message may have been relevant
		for _, m := range messages {
			relevant = a.isRelevant(m) || relevant
		}
		if relevant {
			a.signal()
		}
		if err == nil {
			continue
		}
		select {
		case <-stop:
			return
		case <-time.After(receivePause):
		}
	}
}

// isRelevant reports whether the message is about an egress IP, tun0, an interface with addresses, or an address. Pods' interfaces and neighbours change frequently.
func (a *Addresses) isRelevant(m syscall.NetlinkMessage) bool {
	switch m.Header.Type {
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return true
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return a.isRelevantLink(m)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return len(m.Data) > 1 && m.Data[1] == 32 && a.isDesired(routeDestination(m.Data))
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		n, ok := parseNeighbour(m.Data)
		return ok && a.isDesired(n.key.addr)
	case unix.RTM_NEWNETCONF, unix.RTM_DELNETCONF:
		index := netconfInterface(m.Data)
		return index == netconfAll || a.isWatched(index)
	}
	return false
}

func (a *Addresses) isRelevantLink(m syscall.NetlinkMessage) bool {
	if len(m.Data) < unix.SizeofIfInfomsg {
		return false
	}
	index, flags := int(binary.NativeEndian.Uint32(m.Data[4:])), binary.NativeEndian.Uint32(m.Data[8:])
	if a.isWatched(index) {
		if m.Header.Type == unix.RTM_DELLINK || flags&unix.IFF_RUNNING == 0 {
			a.silent.add(index)
		}
		return true
	}
	attributes, err := nl.ParseRouteAttr(m.Data[unix.SizeofIfInfomsg:])
	if err != nil {
		return false
	}
	return slices.ContainsFunc(attributes, func(attribute syscall.NetlinkRouteAttr) bool {
		return attribute.Attr.Type == unix.IFLA_IFNAME && unix.ByteSliceToString(attribute.Value) == a.options.Tun0
	})
}

func (a *Addresses) isWatched(index int) bool {
	devices := a.watched.devices.Load()
	return devices != nil && (*devices)[index]
}

func (a *Addresses) isDesired(addr netip.Addr) bool {
	addresses := a.watched.addresses.Load()
	return addresses != nil && (*addresses)[addr]
}

func routeDestination(b []byte) (dst netip.Addr) {
	if len(b) < unix.SizeofRtMsg {
		return dst
	}
	attributes, err := nl.ParseRouteAttr(b[unix.SizeofRtMsg:])
	if err != nil {
		return dst
	}
	for _, a := range attributes {
		if a.Attr.Type == unix.RTA_DST {
			dst, _ = netip.AddrFromSlice(a.Value)
		}
	}
	return dst
}

func netconfInterface(b []byte) (index int) {
	const header = 4 // a family, padded
	if len(b) < header {
		return 0
	}
	attributes, err := nl.ParseRouteAttr(b[header:])
	if err != nil {
		return 0
	}
	for _, a := range attributes {
		if a.Attr.Type == netconfIndex && len(a.Value) == 4 {
			index = int(int32(binary.NativeEndian.Uint32(a.Value))) //nolint:gosec // it is signed: -1 is all interfaces
		}
	}
	return index
}
