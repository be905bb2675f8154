// Package hostnet is everything that the agent sets on its host outside Open vSwitch: which address the node
// tunnels from, tun0's addresses and routes, sysctls, the firewall, and watching that all of it stays.
//
// Every part states what it wants and writes only the difference, so that calling Sync again writes nothing. All of
// it acts on the network namespace of the calling thread: the agent's own.
//
// It does not create tun0 (that is an OVS internal port, see package ovs), and it does not touch firewalls other than
// iptables: a host that drops by native nftables rules or by firewalld must let VXLAN and tun0 pass by itself.
package hostnet

import (
	"net"
	"net/netip"
)

// Tun0Name is the bridge's internal port, by which the host and the pod network reach each other.
const Tun0Name = "tun0"

// bridge is the bridge's own local port. It carries nothing: table 0 drops what it sends.
const bridge = "br0"

// toIPNet is for the netlink package, which has not heard of netip.
func toIPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// fromIPNet returns the invalid Prefix for nil and for masks with holes. Host bits stay.
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
