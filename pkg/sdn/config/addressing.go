package config

import (
	"net"
	"net/netip"
)

// Gateway returns the address that a node's tun0 has in one of its subnets: the first one, .1 of an OpenShift subnet.
func Gateway(subnet netip.Prefix) netip.Addr {
	return subnet.Masked().Addr().Next()
}

// NodeMAC returns the Ethernet source that packets of a node itself have in the tunnel to other nodes: 0e:58 and the last four bytes of the
// node's first tun0 address. No interface has it, so packets that a node forwards or masquerades never do. Receivers of earlier versions
// ignore it.
func NodeMAC(gateway netip.Addr) net.HardwareAddr {
	ip := gateway.Unmap().AsSlice()
	return append(net.HardwareAddr{0x0e, 0x58}, ip[len(ip)-4:]...)
}

// MAC returns the MAC that goes with an address of the pod network, a pod's or tun0's: 0a:58 and the last four bytes of the
// address. It follows from the IP so that what others have in their ARP tables outlives a reboot.
func MAC(addr netip.Addr) net.HardwareAddr {
	ip := addr.Unmap().AsSlice()
	return append(net.HardwareAddr{0x0a, 0x58}, ip[len(ip)-4:]...)
}
