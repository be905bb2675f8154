package config

import (
	"net"
	"net/netip"
)

// Gateway returns the address of a node's tun0 in one of its subnets: the first one, .1 of an OpenShift subnet.
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

// MAC returns the MAC address of a pod or of tun0: 0a:58 and the last four bytes of its IP address. It is derived from the IP address
// so that ARP entries of other hosts stay valid after a reboot.
func MAC(addr netip.Addr) net.HardwareAddr {
	ip := addr.Unmap().AsSlice()
	return append(net.HardwareAddr{0x0a, 0x58}, ip[len(ip)-4:]...)
}
