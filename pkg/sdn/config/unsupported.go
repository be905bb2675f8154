package config

import (
	"fmt"
	"strings"

	networkv1 "github.com/openshift/api/network/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// PodRequestAnnotations returns the keys of annotations by which pods ask for what the network may support (ParseBandwidth, ValidateMacvlan).
func PodRequestAnnotations() []string {
	return []string{IngressBandwidthAnnotation, EgressBandwidthAnnotation, networkv1.AssignMacvlanAnnotation}
}

// MaxPodRequest is the length of the longest valid value of PodRequestAnnotations, in bytes.
const MaxPodRequest = max(MaxBandwidthQuantity, maxInterfaceName)

// maxListed bounds the values that a message lists.
const maxListed = 8

// UnsupportedOfNetNamespace returns what the NetNamespace asks for and the network ignores: egress IPs in mode subnet.
func UnsupportedOfNetNamespace(o *networkv1.NetNamespace, mode Mode) (ignored []string) {
	if mode == ModeSubnet && len(o.EgressIPs) > 0 {
		ignored = append(ignored, fmt.Sprintf("egressIPs %s in mode %s: packets to other networks have the address of the pod's node; remove them", listed(o.EgressIPs), mode))
	}
	return ignored
}

// UnsupportedOfHostSubnet returns what the HostSubnet asks for and the network ignores: egress IPs in mode subnet.
func UnsupportedOfHostSubnet(o *networkv1.HostSubnet, mode Mode) (ignored []string) {
	if mode != ModeSubnet {
		return nil
	}
	if len(o.EgressIPs) > 0 {
		ignored = append(ignored, fmt.Sprintf("egressIPs %s in mode %s: the node does not assign them; remove them", listed(o.EgressIPs), mode))
	}
	if len(o.EgressCIDRs) > 0 {
		ignored = append(ignored, fmt.Sprintf("egressCIDRs %s in mode %s: no egress IPs are assigned; remove them", listed(o.EgressCIDRs), mode))
	}
	return ignored
}

// UnsupportedKind is a kind of policy that the network does not enforce: it denies nothing.
type UnsupportedKind struct {
	Resource schema.GroupVersionResource
	Kind     string
	Ignored  string // what the network ignores, with the effect and the alternative
}

// UnsupportedKinds returns the kinds of policies that the network does not enforce, and users may expect it to: the predecessors
// of ClusterNetworkPolicy, which other programs may install.
func UnsupportedKinds() []UnsupportedKind {
	const instead = "ClusterNetworkPolicy (v1alpha2)"
	v1alpha1 := schema.GroupVersion{Group: "policy.networking.k8s.io", Version: "v1alpha1"}
	kind := func(version schema.GroupVersion, resource, kind, instead string) UnsupportedKind {
		return UnsupportedKind{version.WithResource(resource), kind, fmt.Sprintf("this %s, which denies nothing; use %s", kind, instead)}
	}
	return []UnsupportedKind{
		kind(v1alpha1, "adminnetworkpolicies", "AdminNetworkPolicy", instead+" of tier Admin"),
		kind(v1alpha1, "baselineadminnetworkpolicies", "BaselineAdminNetworkPolicy", instead+" of tier Baseline"),
	}
}

// listed returns the first maxListed values.
func listed[T ~string](values []T) string {
	var list []string
	for _, v := range values[:min(len(values), maxListed)] {
		list = append(list, Shorten(string(v)))
	}
	if more := len(values) - len(list); more > 0 {
		list = append(list, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(list, ", ")
}
