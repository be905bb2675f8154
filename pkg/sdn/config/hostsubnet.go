package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"

	networkv1 "github.com/openshift/api/network/v1"
)

// HostSubnet is what one node of the network has: the address that other nodes tunnel to, and its pods' subnets.
type HostSubnet struct {
	Node    string // the node's name
	NodeUID string // the node's UID; "": not made for a Node object
	HostIP  netip.Addr
	Subnets []netip.Prefix // masked; none only for an external machine that still waits for its subnet
}

// IsExternal says whether the object stands for a machine outside of the cluster, by OpenShift's annotation.
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

// CompareHostSubnets orders HostSubnets by seniority, for what only one of them can have: those of Nodes first, then the older, then by name.
func CompareHostSubnets(a, b *networkv1.HostSubnet) int {
	other := func(o *networkv1.HostSubnet) int {
		if IsNode(o) {
			return 0
		}
		return 1
	}
	return cmp.Or(
		cmp.Compare(other(a), other(b)),
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(a.Name, b.Name),
	)
}

// ProposedAnnotation marks a HostSubnet whose subnet is not the node's yet: ovsdn-controller has written it, but not yet
// made sure that nobody else has it. It goes within milliseconds, or the HostSubnet does. Nobody may use the subnet before.
const ProposedAnnotation = "ovsdn.io/proposed"

// IsProposed says whether the subnet is not the node's yet. Its readers take such an object for none at all.
func IsProposed(o *networkv1.HostSubnet) bool {
	_, ok := o.Annotations[ProposedAnnotation]
	return ok
}

// ParseHostSubnet reads a HostSubnet object. The error joins all its faults. Whether the subnet fits
// the cluster network is CheckHostSubnet's to say.
func ParseHostSubnet(o *networkv1.HostSubnet) (*HostSubnet, error) {
	var f faults
	h := &HostSubnet{Node: o.Host, NodeUID: o.Annotations[networkv1.NodeUIDAnnotation]}

	if o.Host == "" || o.Host != o.Name {
		f.addf("host", "is %q, but must be the object's name: write %q", o.Host, o.Name)
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

// ParseHostIP reads an address that nodes can tunnel to.
func ParseHostIP(s string) (netip.Addr, error) {
	if s == "" {
		return netip.Addr{}, errors.New("is missing: write the node's IPv4 address")
	}
	a, err := netip.ParseAddr(s)
	if err != nil || !a.Is4() {
		return netip.Addr{}, fmt.Errorf("%q is no IPv4 address: write the node's, such as 192.0.2.10", s)
	}
	if a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() ||
		a.As4() == [4]byte{255, 255, 255, 255} {
		return netip.Addr{}, fmt.Errorf("%s can't be reached by other nodes: write the node's address in their network", a)
	}
	return a, nil
}

// CheckHostSubnet says whether a HostSubnet fits the network: the subnets inside a cluster network and of its host length,
// the node's address outside of all that the network uses. The error joins all faults.
func (n *Network) CheckHostSubnet(h *HostSubnet) error {
	var f faults
	for _, s := range h.Subnets {
		f.add("subnet", n.CheckSubnet(s))
	}
	f.add("hostIP", n.CheckHostIP(h.HostIP))
	return f.join()
}

// CheckSubnet says whether a node can have the subnet: whether it lies inside a cluster network and has its host length.
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

// CheckHostIP says whether a node's address lies outside of all that the network uses.
func (n *Network) CheckHostIP(a netip.Addr) error {
	if c, ok := n.clusterNetworkOf(a); ok {
		return fmt.Errorf("%s lies inside the cluster network %s: a node needs an address of the underlay", a, c.Prefix)
	}
	if n.ServiceNetwork.Contains(a) {
		return fmt.Errorf("%s lies inside the service network %s: a node needs an address of the underlay", a, n.ServiceNetwork)
	}
	return nil
}
