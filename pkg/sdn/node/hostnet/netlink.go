package hostnet

import (
	"encoding/binary"
	"iter"
	"net/netip"
	"slices"
	"syscall"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// watch signals when nftables reports a relevant change.
func (f *iptablesFirewall) watch() (*watcher, error) {
	return newWatcher(unix.NETLINK_NETFILTER, []uint{unix.NFNLGRP_NFTABLES}, f.isRelevant())
}

// isRelevant returns a function that reports whether a message is about a chain of the rules, a built-in chain with a jump, or their table. Other
// chains, such as kube-proxy's, change frequently.
func (f *iptablesFirewall) isRelevant() func(syscall.NetlinkMessage) bool {
	type chain struct{ table, name string }
	relevant := map[chain]bool{}
	for _, c := range f.rules {
		relevant[chain{c.Table, c.Name}] = true
		relevant[chain{c.Table, c.BuiltIn}] = true
		relevant[chain{c.Table, ""}] = true
	}
	return func(m syscall.NetlinkMessage) bool {
		table, name, ok := changedChain(m)
		return ok && relevant[chain{table, name}]
	}
}

// changedChain returns the IPv4 table and chain of a message of the nftables group. The chain is empty if the message
// is about the table.
func changedChain(m syscall.NetlinkMessage) (table, chain string, ok bool) {
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) < nl.SizeofNfgenmsg || m.Data[0] != unix.NFPROTO_IPV4 {
		return "", "", false
	}
	chainAttr := 0
	switch m.Header.Type & 0xff {
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		chainAttr = unix.NFTA_RULE_CHAIN
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		chainAttr = unix.NFTA_CHAIN_NAME
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE:
	default:
		return "", "", false
	}
	for kind, value := range attributes(m.Data[nl.SizeofNfgenmsg:]) {
		switch int(kind) {
		case unix.NFTA_TABLE_NAME: // 1 in rules and chains too
			table = unix.ByteSliceToString(value)
		case chainAttr:
			chain = unix.ByteSliceToString(value)
		}
	}
	return table, chain, true
}

// watch signals when the kernel reports a change of tun0, of its addresses and routes, of a route to the same network, of the next hop's neighbour, or of a
// sysctl of tun0, of an uplink or of all interfaces that it reports, such as forwarding and rp_filter.
func (t *Tun0) watch() (*watcher, error) {
	index := 0 // unknown; it changes when tun0 is re-created
	if link, err := netlinksafe.LinkByName(Tun0Name); err == nil {
		index = link.Attrs().Index
	}
	wanted := slices.Clone(t.config.ClusterNetworks)
	if t.config.ServiceNetwork.IsValid() {
		wanted = append(wanted, t.config.ServiceNetwork)
	}
	groups := []uint{
		unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_NETCONF,
		unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE,
	}
	hop := t.config.ServiceNextHop
	if hop.IsValid() {
		wanted = append(wanted, hostPrefix(hop), hostPrefix(t.config.ServiceOutside))
		groups = append(groups, unix.RTNLGRP_NEIGH)
	}
	return newWatcher(unix.NETLINK_ROUTE, groups, func(m syscall.NetlinkMessage) bool {
		c := changedLink(m)
		if c.name == Tun0Name {
			index = c.index
		}
		return c.index != 0 && c.index == index || c.all || c.sysctl && t.isUplink(c.index) || slices.Contains(wanted, c.dst) || hop.IsValid() && c.neighbour == hop
	})
}

// linkChange is the change that a message of a NETLINK_ROUTE group reports.
type linkChange struct {
	index int          // of the interface
	name  string       // of the interface, in messages about the interface itself
	dst   netip.Prefix // of a route
	all   bool         // a setting of all interfaces

	sysctl bool // a sysctl of the interface, or of all

	neighbour netip.Addr // of any interface, without the index: pods' neighbours change frequently
}

// The kernel's uapi/linux/netconf.h.
const (
	netconfIfindex    = 1
	netconfIfindexAll = -1
)

// sizeofNdmsg is the size of struct ndmsg of the kernel's uapi/linux/neighbour.h.
const sizeofNdmsg = 12

func changedLink(m syscall.NetlinkMessage) (c linkChange) {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(m.Data) < unix.SizeofIfInfomsg {
			return c
		}
		c.index = int(int32(binary.NativeEndian.Uint32(m.Data[4:])))
		for kind, value := range attributes(m.Data[unix.SizeofIfInfomsg:]) {
			if kind == unix.IFLA_IFNAME {
				c.name = unix.ByteSliceToString(value)
			}
		}
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		if len(m.Data) >= unix.SizeofIfAddrmsg {
			c.index = int(binary.NativeEndian.Uint32(m.Data[4:]))
		}
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		if len(m.Data) < unix.SizeofRtMsg {
			return c
		}
		bits := int(m.Data[1])
		for kind, value := range attributes(m.Data[unix.SizeofRtMsg:]) {
			switch {
			case kind == unix.RTA_DST:
				if dst, ok := netip.AddrFromSlice(value); ok {
					c.dst = netip.PrefixFrom(dst, bits)
				}
			case kind == unix.RTA_OIF && len(value) == 4:
				c.index = int(binary.NativeEndian.Uint32(value))
			}
		}
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		if len(m.Data) < sizeofNdmsg {
			return c
		}
		for kind, value := range attributes(m.Data[sizeofNdmsg:]) {
			if int(kind) == netlink.NDA_DST {
				c.neighbour, _ = netip.AddrFromSlice(value)
			}
		}
	case unix.RTM_NEWNETCONF, unix.RTM_DELNETCONF:
		if len(m.Data) < 4 { // a family, padded
			return c
		}
		c.sysctl = true
		for kind, value := range attributes(m.Data[4:]) {
			if kind == netconfIfindex && len(value) == 4 {
				c.index = int(int32(binary.NativeEndian.Uint32(value)))
			}
		}
		c.all = c.index == netconfIfindexAll
	}
	return c
}

// attributes yields type and value of the netlink attributes in b, up to the first that is malformed.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofNlAttr {
			size := int(binary.NativeEndian.Uint16(b))
			kind := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if size < unix.SizeofNlAttr || size > len(b) || !yield(kind, b[unix.SizeofNlAttr:size]) {
				return
			}
			b = b[min((size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1), len(b)):]
		}
	}
}
