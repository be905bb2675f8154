package inputs

import (
	"net/netip"

	"github.com/ovsdn/ovsdn/pkg/sdn/egressip"
)

// EgressIPs are the egress IPs of a Namespace.
type EgressIPs struct {
	Usable []netip.Addr // in the order of the NetNamespace
	Asks   bool         // the Namespace asks for egress IPs: without a usable one, packets of its pods to outside are dropped
}

// Of returns the source of a pod's packets to outside; the zero Addr is that of its node. Without a usable egress IP it is one that no node hosts: not one that the
// Namespace asks for, since it has the flows of another Namespace if both ask for it.
func (e EgressIPs) Of(addrs []netip.Addr) netip.Addr {
	if !e.Asks {
		return netip.Addr{}
	}
	for _, a := range addrs {
		if ip := egressip.Select(a, e.Usable); a.Is4() && ip.IsValid() {
			return ip
		}
	}
	return netip.AddrFrom4([4]byte{255, 255, 255, 255})
}
