package hostnet

import (
	"fmt"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// minMTU is what every IPv4 host must be able to receive in one piece, in bytes (RFC 791, section 3.1).
const minMTU = 576

// MTU returns the pod network's MTU in bytes: as given, or the most that the underlay carries if given is 0. A
// given value that would have to be fragmented, or that is too small for IPv4, is an error.
//
// What VXLAN takes is the inner Ethernet header and the outer IPv4, UDP and VXLAN headers (RFC 7348, section 5). The outer
// Ethernet header is not part of the underlay's MTU.
func MTU(underlay Underlay, given int) (int, error) {
	most := underlay.MTU - config.VXLANOverhead
	mtu := given
	if given == 0 {
		mtu = most
	}
	switch {
	case mtu > most:
		return 0, fmt.Errorf("MTU %d is too large: interface %s has %d, of which VXLAN takes %d: give at most %d, or raise the MTU of %s",
			given, underlay.Name, underlay.MTU, config.VXLANOverhead, most, underlay.Name)
	case mtu < minMTU && given == 0:
		return 0, fmt.Errorf("interface %s has MTU %d, of which VXLAN leaves %d: IPv4 needs %d: raise the MTU of %s, or choose another interface with --iface",
			underlay.Name, underlay.MTU, most, minMTU, underlay.Name)
	case mtu < minMTU:
		return 0, fmt.Errorf("MTU %d is too small: IPv4 needs at least %d", given, minMTU)
	}
	return mtu, nil
}
