package config

import (
	"fmt"
)

// namedInUse is how many of those who use what a change would take away are named: the same fault of thousands of nodes
// is one fault.
const namedInUse = 3

// CheckChange says whether a running network can become another one without anything in use losing its place. The error
// joins all that speaks against it. What is in use are HostSubnets, of which only the name, the address and the
// subnets count; as long as there is none, anything can change.
//
// Ranges can grow, come, change their order, and go or shrink as far as nobody has subnets there. The MTU and the mode can
// change, which is the nodes' affair: NetNamespaces are the same in all modes.
func (n *Network) CheckChange(to *Network, inUse []HostSubnet) error {
	if len(inUse) == 0 {
		return nil
	}
	var f faults
	const inTheWay = "while nodes are in the network"
	var lost, inside []error
	for _, h := range inUse {
		for _, s := range h.Subnets {
			// What was outside before is none of this change's faults.
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
		f.addf("serviceNetwork", "it can't move from %s to %s %s: write back %s", n.ServiceNetwork, to.ServiceNetwork, inTheWay, n.ServiceNetwork)
	}
	if to.VXLANPort != n.VXLANPort {
		f.addf("vxlanPort", "it can't change from %d to %d %s: write back %d", n.VXLANPort, to.VXLANPort, inTheWay, n.VXLANPort)
	}
	return f.join()
}

// some adds the first few of many faults of one kind, and the number of the others.
func (f *faults) some(field string, errs []error) {
	for i, err := range errs {
		if i == namedInUse {
			f.addf(field, "and %d more", len(errs)-i)
			return
		}
		f.add(field, err)
	}
}
