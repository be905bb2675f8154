package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	networkv1 "github.com/openshift/api/network/v1"
)

// Budgets of egress IPs, which every agent holds in memory.
const (
	// MaxNamespaceEgressIPs is the number of egress IPs of a namespace.
	MaxNamespaceEgressIPs = 16

	// MaxNodeEgressIPs is the number of egress IPs that a node hosts: each has flows on all nodes.
	MaxNodeEgressIPs = 256

	// MaxEgressCIDRs is the number of ranges of a node.
	MaxEgressCIDRs = 64
)

// EgressUnreachableAnnotation of a HostSubnet is the time (RFC 3339) since when ovsdn-controller can't reach the node, if the node can host egress IPs. Egress IPs of
// the node are not used while a namespace has others.
const EgressUnreachableAnnotation = "ovsdn.io/egress-unreachable-since"

// EgressNode is the configuration of a node for egress IPs.
type EgressNode struct {
	IPs         []netip.Addr   // that it hosts, without duplicates, in the object's order; with CIDRs ovsdn-controller writes them
	CIDRs       []netip.Prefix // masked: ovsdn-controller assigns IPs of these ranges to the node
	Unreachable bool
}

// ParseEgressNode reads the egress IPs of a HostSubnet. The error joins the faults of invalid entries, which the result lacks. HostSubnets of external machines and of
// deleted Nodes host none.
func ParseEgressNode(o *networkv1.HostSubnet) (EgressNode, error) {
	var f faults
	var n EgressNode
	if len(o.EgressIPs) == 0 && len(o.EgressCIDRs) == 0 {
		return n, nil
	}
	if !IsNode(o) {
		f.add("egressIPs", errors.New("the HostSubnet is not that of a node: only nodes host egress IPs"))
		return n, f.join()
	}
	n.Unreachable = o.Annotations[EgressUnreachableAnnotation] != ""
	if IsRetained(o) || IsProposed(o) {
		return n, nil
	}
	n.IPs = parseEgressIPs(&f, o.EgressIPs, MaxNodeEgressIPs)
	for i, s := range o.EgressCIDRs {
		field := fmt.Sprintf("egressCIDRs[%d]", i)
		if i == MaxEgressCIDRs {
			f.addf("egressCIDRs", "has more than %d ranges: use fewer, wider ranges", MaxEgressCIDRs)
			break
		}
		if p, ok := f.prefix(field, string(s)); ok && !slices.Contains(n.CIDRs, p) {
			n.CIDRs = append(n.CIDRs, p)
		}
	}
	return n, f.join()
}

// ParseNamespaceEgressIPs reads the egress IPs of a NetNamespace, without duplicates, in the object's order. The error joins the faults of invalid entries, which the
// result lacks; asks reports whether the namespace asks for any, valid or not.
func ParseNamespaceEgressIPs(o *networkv1.NetNamespace) (ips []netip.Addr, asks bool, err error) {
	var f faults
	ips = parseEgressIPs(&f, o.EgressIPs, MaxNamespaceEgressIPs)
	return ips, len(o.EgressIPs) > 0, f.join()
}

func parseEgressIPs[T ~string](f *faults, entries []T, limit int) (ips []netip.Addr) {
	for i, s := range entries {
		if i == limit {
			f.addf("egressIPs", "has more than %d addresses", limit)
			break
		}
		field := fmt.Sprintf("egressIPs[%d]", i)
		a, err := ParseHostIP(string(s))
		switch {
		case err != nil:
			f.add(field, err)
		case !slices.Contains(ips, a):
			ips = append(ips, a)
		}
	}
	return ips
}
