// Package config parses and validates the cluster's network configuration: ClusterNetwork, HostSubnets and NetNamespaces.
// It does no I/O. Errors join all faults of an object, each with its remedy.
package config

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"

	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// DefaultVXLANPort is IANA's port of VXLAN, in UDP.
	DefaultVXLANPort = 4789

	// VXLANOverhead is the size of the headers that VXLAN over IPv4 adds, in bytes: Ethernet 14, IP 20, UDP 8, VXLAN 8.
	VXLANOverhead = 50

	// The bounds of the ClusterNetwork CRD.
	minHostBits = 2
	maxHostBits = 30
	minMTU      = 576

	// maxMTU is the size of the largest IPv4 packet less VXLANOverhead, in bytes.
	maxMTU = math.MaxUint16 - VXLANOverhead
)

// Network is a valid ClusterNetwork.
type Network struct {
	Mode            Mode
	ClusterNetworks []ClusterNetwork // at least one, none overlaps another or the service network
	ServiceNetwork  netip.Prefix
	VXLANPort       uint16 // UDP; default DefaultVXLANPort
	MTU             int    // of pods, in bytes; 0: the underlay's less VXLANOverhead
	RoutableMTU     int    // of sent packets, in bytes, at most MTU; 0: MTU (RoutableMTUAnnotation)

	NonMasqueradeCIDRs []netip.Prefix // sorted, disjoint (NonMasqueradeCIDRsAnnotation)

	ServiceProxy ServiceProxy // ServiceProxyAnnotation
}

// ClusterNetwork is a range from which node subnets are allocated.
type ClusterNetwork struct {
	Prefix   netip.Prefix // masked
	HostBits int          // host bits of a node's subnet: 9 is a /23
}

// SubnetBits returns the mask length of the range's HostSubnets.
func (c ClusterNetwork) SubnetBits() int { return c.Prefix.Addr().BitLen() - c.HostBits }

// String returns text for messages, such as "10.128.0.0/14 with 9 host bits".
func (c ClusterNetwork) String() string {
	return fmt.Sprintf("%s with %d host bits", c.Prefix, c.HostBits)
}

// ParseNetwork parses a ClusterNetwork object. The error joins all its faults.
//
// In an object without clusterNetworks, as of OpenShift 3, network and hostsubnetlength are the only entry.
func ParseNetwork(o *networkv1.ClusterNetwork) (*Network, error) {
	var f faults
	n := &Network{VXLANPort: DefaultVXLANPort}

	mode, err := ParseMode(o.PluginName)
	f.add("pluginName", err)
	n.Mode = mode

	for _, e := range entries(o, &f) {
		prefix, ok := f.prefix(e.field, e.CIDR)
		f.hostBits(e.bitsField, e.HostSubnetLength, prefix)
		if !ok {
			continue
		}
		// Include invalid entries whose range could be parsed, so that their overlaps are reported too.
		f.usable(e.field, prefix)
		for _, other := range n.ClusterNetworks {
			if prefix.Overlaps(other.Prefix) {
				f.addf(e.field, "%s overlaps %s: ranges of the cluster network must be disjoint", prefix, other.Prefix)
			}
		}
		n.ClusterNetworks = append(n.ClusterNetworks, ClusterNetwork{Prefix: prefix, HostBits: int(e.HostSubnetLength)})
	}

	if prefix, ok := f.prefix("serviceNetwork", o.ServiceNetwork); ok {
		f.usable("serviceNetwork", prefix)
		for _, c := range n.ClusterNetworks {
			if prefix.Overlaps(c.Prefix) {
				f.addf("serviceNetwork", "%s overlaps the cluster network %s: choose ranges that are disjoint", prefix, c.Prefix)
			}
		}
		n.ServiceNetwork = prefix
	}

	if p := o.VXLANPort; p != nil {
		if *p < 1 || *p > math.MaxUint16 {
			f.addf("vxlanPort", "%d is not a UDP port: choose one from 1 to %d (%d is usual)", *p, math.MaxUint16, DefaultVXLANPort)
		}
		n.VXLANPort = uint16(*p)
	}
	if m := o.MTU; m != nil {
		if *m < minMTU || *m > maxMTU {
			f.addf("mtu", "%d bytes is out of range: choose %d to %d, or leave it out for the nodes' own less %d",
				*m, minMTU, maxMTU, VXLANOverhead)
		}
		n.MTU = int(*m)
	}
	n.RoutableMTU = routableMTU(o, &f)
	n.NonMasqueradeCIDRs = nonMasqueradeCIDRs(o, &f)
	n.ServiceProxy = serviceProxy(o, &f)

	if err := f.join(); err != nil {
		return nil, err
	}
	return n, nil
}

// entry is one range of the object, with the names of its fields for messages.
type entry struct {
	networkv1.ClusterNetworkEntry
	field, bitsField string
}

// entries returns the ranges of the object. If it has clusterNetworks, the legacy fields must be empty or equal to the first.
func entries(o *networkv1.ClusterNetwork, f *faults) []entry {
	if len(o.ClusterNetworks) == 0 {
		if o.Network == "" {
			f.addf("clusterNetworks", "is empty: give at least one range, such as {CIDR: 10.128.0.0/14, hostSubnetLength: 9}")
			return nil
		}
		return []entry{{
			ClusterNetworkEntry: networkv1.ClusterNetworkEntry{CIDR: o.Network, HostSubnetLength: o.HostSubnetLength},
			field:               "network", bitsField: "hostsubnetlength",
		}}
	}
	first := o.ClusterNetworks[0]
	if o.Network != "" && o.Network != first.CIDR {
		f.addf("network", "%q differs from clusterNetworks[0].CIDR %q: make them the same, or leave network out", o.Network, first.CIDR)
	}
	if o.HostSubnetLength != 0 && o.HostSubnetLength != first.HostSubnetLength {
		f.addf("hostsubnetlength", "%d differs from clusterNetworks[0].hostSubnetLength %d: make them the same, or leave hostsubnetlength out",
			o.HostSubnetLength, first.HostSubnetLength)
	}
	list := make([]entry, len(o.ClusterNetworks))
	for i, e := range o.ClusterNetworks {
		list[i] = entry{e, fmt.Sprintf("clusterNetworks[%d].CIDR", i), fmt.Sprintf("clusterNetworks[%d].hostSubnetLength", i)}
	}
	return list
}

// Object returns the ClusterNetwork object `default`, with the legacy fields set as OpenShift does.
func (n *Network) Object() *networkv1.ClusterNetwork {
	port := uint32(n.VXLANPort)
	o := &networkv1.ClusterNetwork{
		ObjectMeta:     metav1.ObjectMeta{Name: networkv1.ClusterNetworkDefault},
		PluginName:     n.Mode.PluginName(),
		ServiceNetwork: n.ServiceNetwork.String(),
		VXLANPort:      &port,
	}
	for _, c := range n.ClusterNetworks {
		o.ClusterNetworks = append(o.ClusterNetworks, networkv1.ClusterNetworkEntry{
			CIDR:             c.Prefix.String(),
			HostSubnetLength: uint32(c.HostBits),
		})
	}
	o.Network = o.ClusterNetworks[0].CIDR
	o.HostSubnetLength = o.ClusterNetworks[0].HostSubnetLength
	if n.MTU != 0 {
		mtu := uint32(n.MTU)
		o.MTU = &mtu
	}
	if n.RoutableMTU != 0 {
		metav1.SetMetaDataAnnotation(&o.ObjectMeta, RoutableMTUAnnotation, strconv.Itoa(n.RoutableMTU))
	}
	if len(n.NonMasqueradeCIDRs) > 0 {
		metav1.SetMetaDataAnnotation(&o.ObjectMeta, NonMasqueradeCIDRsAnnotation, joinPrefixes(n.NonMasqueradeCIDRs, ","))
	}
	if n.ServiceProxy != ServiceProxyUnset {
		metav1.SetMetaDataAnnotation(&o.ObjectMeta, ServiceProxyAnnotation, string(n.ServiceProxy))
	}
	return o
}

// OverlapWith returns an error that names every host route that overlaps the cluster network or the service network: the host would not
// reach either the route's destinations or pods. It ignores default routes and the exceptions, which are the routes that ovsdn
// installs.
func (n *Network) OverlapWith(routes []netip.Prefix, exceptions ...netip.Prefix) error {
	ignored := make(map[netip.Prefix]bool, len(exceptions))
	for _, e := range exceptions {
		ignored[e.Masked()] = true
	}
	var errs []error
	for _, r := range routes {
		r = r.Masked()
		if r.Bits() <= 0 || ignored[r] {
			continue
		}
		for _, c := range n.ClusterNetworks {
			if r.Overlaps(c.Prefix) {
				errs = append(errs, fmt.Errorf("host route %s overlaps the cluster network %s: choose another cluster network, or remove the route", r, c.Prefix))
			}
		}
		if r.Overlaps(n.ServiceNetwork) {
			errs = append(errs, fmt.Errorf("host route %s overlaps the service network %s: choose another service network, or remove the route", r, n.ServiceNetwork))
		}
	}
	return errors.Join(errs...)
}

// clusterNetworkOf returns the range that contains the address.
func (n *Network) clusterNetworkOf(a netip.Addr) (ClusterNetwork, bool) {
	for _, c := range n.ClusterNetworks {
		if c.Prefix.Contains(a) {
			return c, true
		}
	}
	return ClusterNetwork{}, false
}

// ranges formats the cluster network for messages.
func (n *Network) ranges() string {
	all := make([]netip.Prefix, len(n.ClusterNetworks))
	for i, c := range n.ClusterNetworks {
		all[i] = c.Prefix
	}
	return joinPrefixes(all, ", ")
}
