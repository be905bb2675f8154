// Package podinterface determines the interface of a pod from its addresses and from the node's subnets: addresses, routes, MTU and OpenFlow port number, and the
// result of ADD that describes it. It is pure: package veth creates the interface.
package podinterface

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// Options are the properties of the node and of the cluster that interfaces of pods depend on.
type Options struct {
	NodeName        string         // for messages
	Subnets         []netip.Prefix // the node's
	ClusterNetworks []netip.Prefix
	ServiceNetwork  netip.Prefix
	MTU             int    // bytes, of the pods' interfaces
	RouteMTU        int    // bytes, of the pods' routes, at most MTU; 0: MTU
	Datapath        string // ovs.DatapathSystem or ovs.DatapathNetdev

	Devices []string // names of the bridge and of its ports that are the node's
}

// The smallest MTU of IPv4 (RFC 791) and the largest of a veth.
const (
	minMTU = 68
	maxMTU = 65535
)

// Validate returns an error for each invalid option.
func (o Options) Validate() error {
	var errs []error
	if o.MTU < minMTU || o.MTU > maxMTU {
		errs = append(errs, fmt.Errorf("MTU %d is not between %d and %d", o.MTU, minMTU, maxMTU))
	}
	if o.RouteMTU != 0 && (o.RouteMTU < minMTU || o.RouteMTU > o.MTU) {
		errs = append(errs, fmt.Errorf("the routes' MTU %d is not between %d and the interfaces' %d", o.RouteMTU, minMTU, o.MTU))
	}
	if o.Datapath != ovs.DatapathSystem && o.Datapath != ovs.DatapathNetdev {
		errs = append(errs, fmt.Errorf("datapath %q is neither %q nor %q", o.Datapath, ovs.DatapathSystem, ovs.DatapathNetdev))
	}
	if len(o.Subnets) == 0 {
		errs = append(errs, errors.New("the node has no subnet"))
	}
	if len(o.Devices) == 0 {
		errs = append(errs, errors.New("the devices of the pod network are not set"))
	}
	if !o.ServiceNetwork.IsValid() {
		errs = append(errs, errors.New("the service network is not set"))
	}
	for _, s := range o.Subnets {
		// The gateway must be reachable: the only route of pods to their subnet is that to the cluster network.
		if !slices.ContainsFunc(o.ClusterNetworks, func(c netip.Prefix) bool {
			return c.Bits() <= s.Bits() && c.Contains(s.Addr())
		}) {
			errs = append(errs, fmt.Errorf("the node's subnet %s is in none of the cluster networks %v", s, o.ClusterNetworks))
		}
	}
	return errors.Join(errs...)
}
