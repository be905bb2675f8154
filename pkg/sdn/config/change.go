package config

import (
	"fmt"
)

// namedInUse is the number of HostSubnets that an error names, of possibly thousands that conflict with a change.
const namedInUse = 3

// CheckChange reports whether a running network can change without a conflict with HostSubnets in use. It compares their addresses and
// subnets; the error joins all conflicts. Without HostSubnets any change is allowed.
//
// Ranges can be added, extended and reordered, and removed or reduced where no HostSubnet has a subnet. The MTU, the mode and
// the service proxy can change at any time; NetNamespaces are the same in all modes.
func (n *Network) CheckChange(to *Network, inUse []HostSubnet) error {
	if len(inUse) == 0 {
		return nil
	}
	var f faults
	const condition = "while nodes are in the network"
	var lost, inside []error
	for _, h := range inUse {
		for _, s := range h.Subnets {
			// A subnet that is invalid in the current network is no conflict of the change.
			if n.CheckSubnet(s) != nil {
				continue
			}
			if err := to.CheckSubnet(s); err != nil {
				lost = append(lost, fmt.Errorf("HostSubnet %s is in use: %w", h.Node, err))
			}
		}
		if h.HostIP.IsValid() && n.CheckHostIP(h.HostIP) == nil {
			if c, ok := to.clusterNetworkOf(h.HostIP); ok {
				inside = append(inside, fmt.Errorf("node %s: its address %s lies inside %s", h.Node, h.HostIP, c.Prefix))
			}
		}
	}
	f.some("clusterNetworks", lost)
	f.some("clusterNetworks", inside)
	if to.ServiceNetwork != n.ServiceNetwork {
		f.addf("serviceNetwork", "it can't move from %s to %s %s: write back %s", n.ServiceNetwork, to.ServiceNetwork, condition, n.ServiceNetwork)
	}
	if to.VXLANPort != n.VXLANPort {
		f.addf("vxlanPort", "it can't change from %d to %d %s: write back %d", n.VXLANPort, to.VXLANPort, condition, n.VXLANPort)
	}
	return f.join()
}

// some adds the first namedInUse errors, and the number of the others.
func (f *faults) some(field string, errs []error) {
	for i, err := range errs {
		if i == namedInUse {
			f.addf(field, "and %d more", len(errs)-i)
			return
		}
		f.add(field, err)
	}
}
