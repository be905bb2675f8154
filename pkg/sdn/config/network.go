// Package config holds the cluster's network configuration, parsed and validated once, in types that can't be wrong.
// It does no I/O. Every fault is reported, not only the first, and says what to write instead.
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

	// VXLANOverhead is what VXLAN over IPv4 adds to a pod's packet, in bytes: Ethernet 14, IP 20, UDP 8, VXLAN 8.
	VXLANOverhead = 50

	// The bounds of the ClusterNetwork CRD.
	minHostBits = 2
	maxHostBits = 30
	minMTU      = 576

	// maxMTU leaves a packet's encapsulation room in IPv4's largest packet, in bytes.
	maxMTU = math.MaxUint16 - VXLANOverhead
)

// Network is a ClusterNetwork that can't be wrong.
type Network struct {
	Mode            Mode
	ClusterNetworks []ClusterNetwork // at least one, none overlaps another or the service network
	ServiceNetwork  netip.Prefix
	VXLANPort       uint16 // in UDP; DefaultVXLANPort unless given
	MTU             int    // bytes, of pods; 0: the underlay's less VXLANOverhead
	RoutableMTU     int    // bytes, of what is sent, at most MTU; 0: MTU (RoutableMTUAnnotation)
}

// ClusterNetwork is a range that nodes get their subnets from.
type ClusterNetwork struct {
	Prefix   netip.Prefix // masked
	HostBits int          // bits of address that a node's subnet leaves to its pods: 9 makes a /23
}

// SubnetBits returns the mask length of the range's HostSubnets.
func (c ClusterNetwork) SubnetBits() int { return c.Prefix.Addr().BitLen() - c.HostBits }

// String is for messages: "10.128.0.0/14 with 9 host bits".
func (c ClusterNetwork) String() string {
	return fmt.Sprintf("%s with %d host bits", c.Prefix, c.HostBits)
}

// ParseNetwork reads a ClusterNetwork object. The error joins all its faults.
//
// An object without clusterNetworks is OpenShift 3's: its network and hostsubnetlength are the only entry.
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
		// Entries with faults stay in as far as they can be read, so that their overlaps are reported too.
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
			f.addf("vxlanPort", "%d is no UDP port: choose one from 1 to %d (%d is usual)", *p, math.MaxUint16, DefaultVXLANPort)
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

	if err := f.join(); err != nil {
		return nil, err
	}
	return n, nil
}

// entry is one range as the object has it, with its fields' names for messages.
type entry struct {
	networkv1.ClusterNetworkEntry
	field, bitsField string
}

// entries lists the object's ranges; the legacy fields must agree with the first or stand alone.
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

// Object returns the ClusterNetwork object `default`, with OpenShift 3's fields filled in as OpenShift does.
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
		o.Annotations = map[string]string{RoutableMTUAnnotation: strconv.Itoa(n.RoutableMTU)}
	}
	return o
}

// OverlapWith returns an error that names every route that overlaps the cluster or the service network: a host with
// such a route would lose either the route's destinations or pods. Default routes are no overlap, and neither are the
// exceptions: the routes that the network itself installs.
func (n *Network) OverlapWith(routes []netip.Prefix, exceptions ...netip.Prefix) error {
	own := make(map[netip.Prefix]bool, len(exceptions))
	for _, e := range exceptions {
		own[e.Masked()] = true
	}
	var errs []error
	for _, r := range routes {
		r = r.Masked()
		if r.Bits() <= 0 || own[r] {
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

// clusterNetworkOf returns the range that holds the address.
func (n *Network) clusterNetworkOf(a netip.Addr) (ClusterNetwork, bool) {
	for _, c := range n.ClusterNetworks {
		if c.Prefix.Contains(a) {
			return c, true
		}
	}
	return ClusterNetwork{}, false
}

// ranges is the cluster network for messages.
func (n *Network) ranges() string {
	s := ""
	for i, c := range n.ClusterNetworks {
		if i > 0 {
			s += ", "
		}
		s += c.Prefix.String()
	}
	return s
}
