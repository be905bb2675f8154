// Package hostnet manages the host's network settings outside Open vSwitch: it selects the address of the node's tunnels, and reconciles
// tun0's addresses and routes, sysctls and the firewall.
//
// Sync of each part writes only differences. All functions act on the network namespace of the calling thread, the agent's own.
//
// It does not create tun0 (an OVS internal port, see package ovs), and it does not change firewalls other than
// iptables and its own table of nftables: on a host with other nftables rules or firewalld, the user must accept VXLAN and tun0 there.
package hostnet

import (
	"net"
	"net/netip"
)

// Tun0Name is the name of the bridge's internal port that connects the host to the pod network.
const Tun0Name = "tun0"

// bridge is the name of the bridge's local port. It carries no traffic: table 0 drops its packets.
const bridge = "br0"

// toIPNet converts a prefix for package netlink.
func toIPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// fromIPNet returns the invalid Prefix for nil and for non-canonical masks. It retains host bits.
func fromIPNet(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	addr, ok := netip.AddrFromSlice(n.IP)
	ones, size := n.Mask.Size()
	if !ok || size == 0 {
		return netip.Prefix{}
	}
	if size == 32 {
		addr = addr.Unmap()
	}
	return netip.PrefixFrom(addr, ones)
}
