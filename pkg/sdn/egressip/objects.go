package egressip

import (
	"errors"
	"net/netip"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// Reserved returns the ranges of a network in which no egress IP can be, for New.
func Reserved(network *config.Network) []netip.Prefix {
	reserved := []netip.Prefix{network.ServiceNetwork}
	for _, c := range network.ClusterNetworks {
		reserved = append(reserved, c.Prefix)
	}
	return reserved
}

// NodeOf returns the node of a HostSubnet. If its address is invalid, the node has the last valid one; the zero Addr: there was none. The error joins the faults of
// invalid entries, which the node lacks.
func NodeOf(o *networkv1.HostSubnet, last netip.Addr) (Node, error) {
	egress, err := config.ParseEgressNode(o)
	addr, addrErr := config.ParseHostIP(o.HostIP)
	if addrErr != nil {
		addr = last
	}
	return Node{Addr: addr, IPs: egress.IPs, Unreachable: egress.Unreachable}, errors.Join(err, addrErr)
}
