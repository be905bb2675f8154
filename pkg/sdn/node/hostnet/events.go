package hostnet

import (
	"encoding/binary"
	"iter"
	"net/netip"
	"slices"
	"syscall"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// watch signals when something that concerns the firewall is changed through nftables.
func (f *Firewall) watch() (*watcher, error) {
	return newWatcher(unix.NETLINK_NETFILTER, []uint{unix.NFNLGRP_NFTABLES}, f.concerns())
}

// concerns returns whether a message is about a chain of ours, a built-in one with a jump of ours, or their table. Other
// chains, such as kube-proxy's, change all the time.
func (f *Firewall) concerns() func(syscall.NetlinkMessage) bool {
	type chain struct{ table, name string }
	ours := map[chain]bool{}
	for _, c := range f.rules {
		ours[chain{c.Table, c.Name}] = true
		ours[chain{c.Table, c.BuiltIn}] = true
		ours[chain{c.Table, ""}] = true
	}
	return func(m syscall.NetlinkMessage) bool {
		table, name, ok := changedChain(m)
		return ok && ours[chain{table, name}]
	}
}

// changedChain returns which IPv4 table and chain a message of the nftables group is about. The chain is empty when the message
// is about the table as a whole.
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

// watch signals when the kernel reports a change of tun0, of its addresses and routes, of a route that competes with
// one of them, or of the settings that it announces (forwarding and rp_filter among them).
func (t *Tun0) watch() (*watcher, error) {
	index := 0 // not known yet, and another one after tun0 was made anew
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
	return newWatcher(unix.NETLINK_ROUTE, groups, func(m syscall.NetlinkMessage) bool {
		c := changedLink(m)
		if c.name == Tun0Name {
			index = c.index
		}
		return c.index != 0 && c.index == index || c.all || slices.Contains(wanted, c.dst)
	})
}

// linkChange is what a message of a NETLINK_ROUTE group is about.
type linkChange struct {
	index int          // of the interface
	name  string       // of the interface, in messages about the interface itself
	dst   netip.Prefix // of a route
	all   bool         // a setting of all interfaces
}

// The kernel's uapi/linux/netconf.h.
const (
	netconfIfindex    = 1
	netconfIfindexAll = -1
)

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
	case unix.RTM_NEWNETCONF, unix.RTM_DELNETCONF:
		if len(m.Data) < 4 { // a family, padded
			return c
		}
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
