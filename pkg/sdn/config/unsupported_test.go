package config

import (
	"slices"
	"strings"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
)

func TestUnsupportedOfNetworkObjects(t *testing.T) {
	nn := &networkv1.NetNamespace{}
	hs := &networkv1.HostSubnet{}
	if got := append(UnsupportedOfNetNamespace(nn, ModeSubnet), UnsupportedOfHostSubnet(hs, ModeSubnet)...); got != nil {
		t.Errorf("without egress IPs: got %q, want none", got)
	}
	for range 20 {
		nn.EgressIPs = append(nn.EgressIPs, "192.0.2.7")
	}
	hs.EgressIPs, hs.EgressCIDRs = []networkv1.HostSubnetEgressIP{"192.0.2.7"}, []networkv1.HostSubnetEgressCIDR{"192.0.2.0/24"}
	for _, mode := range []Mode{ModeMultitenant, ModeNetworkPolicy} {
		if got := append(UnsupportedOfNetNamespace(nn, mode), UnsupportedOfHostSubnet(hs, mode)...); got != nil {
			t.Errorf("mode %s: got %q, want none", mode, got)
		}
	}
	got := append(UnsupportedOfNetNamespace(nn, ModeSubnet), UnsupportedOfHostSubnet(hs, ModeSubnet)...)
	want := []string{"192.0.2.7, and 12 more in mode subnet: ", "egressIPs 192.0.2.7 in mode subnet: ", "egressCIDRs 192.0.2.0/24 in mode subnet: "}
	if len(got) != len(want) || !slices.EqualFunc(got, want, strings.Contains) {
		t.Errorf("got %q, want %q", got, want)
	}
}
