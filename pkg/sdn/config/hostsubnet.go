package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
)

// HostSubnet is the configuration of one node: its tunnel endpoint and the subnets of its pods.
type HostSubnet struct {
	Node    string // the node's name
	NodeUID string // the node's UID; "": not created for a Node object
	HostIP  netip.Addr
	Subnets []netip.Prefix // masked; empty only for an external machine without a subnet yet
}

// IsExternal reports whether the HostSubnet is of a machine outside of the cluster, according to OpenShift's annotation.
func IsExternal(o *networkv1.HostSubnet) bool {
	_, ok := o.Annotations[networkv1.AssignHostSubnetAnnotation]
	return ok
}

// IsNode reports whether ovsdn-controller created the HostSubnet for a Node of the cluster. One with networkv1.FixedVNIDHostAnnotation, valid or
// not, is an external machine's.
func IsNode(o *networkv1.HostSubnet) bool {
	_, fixed := o.Annotations[networkv1.FixedVNIDHostAnnotation]
	return o.Annotations[networkv1.NodeUIDAnnotation] != "" && !fixed && !IsExternal(o)
}

// CompareHostSubnets orders HostSubnets by seniority, for what only one of them can have: those of Nodes first, those of deleted Nodes last, then the
// older, then by name.
func CompareHostSubnets(a, b *networkv1.HostSubnet) int {
	rank := func(o *networkv1.HostSubnet) int {
		switch {
		case IsRetained(o): // its address may be another machine's by now
			return 2
		case IsNode(o):
			return 0
		}
		return 1
	}
	return cmp.Or(
		cmp.Compare(rank(a), rank(b)),
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(a.Name, b.Name),
	)
}

// ProposedAnnotation marks a HostSubnet whose subnet is not confirmed: ovsdn-controller has not verified yet that no other HostSubnet overlaps
// it. Within milliseconds it removes the annotation or the HostSubnet. The subnet must not be used before.
const ProposedAnnotation = "ovsdn.io/proposed"

// IsProposed reports whether the subnet is not confirmed. Readers ignore such a HostSubnet.
func IsProposed(o *networkv1.HostSubnet) bool {
	_, ok := o.Annotations[ProposedAnnotation]
	return ok
}

// NodeDeletedAnnotation is the time (RFC 3339) at which the controller noticed that the HostSubnet's Node was deleted. Until --hostsubnet-retention has
// passed, the HostSubnet remains in use and a Node of the same name and InternalIP gets it back; then, or when no other subnet is free, ovsdn-controller
// deletes it.
const NodeDeletedAnnotation = "ovsdn.io/node-deleted"

// IsRetained reports whether the HostSubnet's Node was deleted.
func IsRetained(o *networkv1.HostSubnet) bool {
	_, ok := o.Annotations[NodeDeletedAnnotation]
	return ok
}

// NodeDeletedSince returns the time of NodeDeletedAnnotation; false if the annotation does not exist or is invalid.
func NodeDeletedSince(o *networkv1.HostSubnet) (time.Time, bool) {
	since, err := time.Parse(time.RFC3339, o.Annotations[NodeDeletedAnnotation])
	return since, err == nil
}

// ParseHostSubnet parses a HostSubnet object. The error joins all its faults. CheckHostSubnet checks whether it fits the cluster network.
func ParseHostSubnet(o *networkv1.HostSubnet) (*HostSubnet, error) {
	var f faults
	h := &HostSubnet{Node: o.Host, NodeUID: o.Annotations[networkv1.NodeUIDAnnotation]}

	if o.Host == "" || o.Host != o.Name {
		f.addf("host", "is %q, but must be the object's name: write %q", Shorten(o.Host), o.Name)
	}
	addr, err := ParseHostIP(o.HostIP)
	f.add("hostIP", err)
	h.HostIP = addr

	if IsProposed(o) {
		f.addf("subnet", "%s is only proposed: ovsdn-controller will confirm it, or choose another", o.Subnet)
	}
	if o.Subnet != "" || !IsExternal(o) {
		if subnet, ok := f.prefix("subnet", o.Subnet); ok {
			h.Subnets = []netip.Prefix{subnet}
		}
	}
	if err := f.join(); err != nil {
		return nil, err
	}
	return h, nil
}

// ParseHostIP parses the IPv4 address of a tunnel endpoint.
func ParseHostIP(s string) (netip.Addr, error) {
	if s == "" {
		return netip.Addr{}, errors.New("is missing: write the node's IPv4 address")
	}
	a, err := netip.ParseAddr(s)
	if err != nil || !a.Is4() {
		return netip.Addr{}, fmt.Errorf("%q is not an IPv4 address: write the node's, such as 192.0.2.10", Shorten(s))
	}
	if a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() ||
		a.As4() == [4]byte{255, 255, 255, 255} {
		return netip.Addr{}, fmt.Errorf("%s can't be reached by other nodes: write the node's address in their network", a)
	}
	return a, nil
}

// CheckHostSubnet checks the subnets with CheckSubnet and the address with CheckHostIP. The error joins all faults.
func (n *Network) CheckHostSubnet(h *HostSubnet) error {
	var f faults
	for _, s := range h.Subnets {
		f.add("subnet", n.CheckSubnet(s))
	}
	f.add("hostIP", n.CheckHostIP(h.HostIP))
	return f.join()
}

// CheckSubnet returns an error unless the subnet is in a range of the cluster network and has its host length.
func (n *Network) CheckSubnet(s netip.Prefix) error {
	c, ok := n.clusterNetworkOf(s.Addr())
	switch {
	case !ok || s.Bits() < c.Prefix.Bits():
		return fmt.Errorf("%s lies outside of the cluster network %s", s, n.ranges())
	case s.Bits() != c.SubnetBits():
		return fmt.Errorf("%s is a /%d, but in the cluster network %s a node has a /%d", s, s.Bits(), c, c.SubnetBits())
	}
	return nil
}

// CheckHostIP returns an error if a node's address is in the cluster network or the service network.
func (n *Network) CheckHostIP(a netip.Addr) error {
	if c, ok := n.clusterNetworkOf(a); ok {
		return fmt.Errorf("%s lies inside the cluster network %s: a node needs an address of the underlay", a, c.Prefix)
	}
	if n.ServiceNetwork.Contains(a) {
		return fmt.Errorf("%s lies inside the service network %s: a node needs an address of the underlay", a, n.ServiceNetwork)
	}
	return nil
}
