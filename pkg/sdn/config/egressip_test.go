package config

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestParseEgressNode(t *testing.T) {
	node := map[string]string{networkv1.NodeUIDAnnotation: "1"}
	with := func(key, value string) map[string]string {
		return map[string]string{networkv1.NodeUIDAnnotation: "1", key: value}
	}
	ips := []netip.Addr{netip.MustParseAddr("192.0.2.100")}
	for name, c := range map[string]struct {
		annotations map[string]string
		ips         []networkv1.HostSubnetEgressIP
		cidrs       []networkv1.HostSubnetEgressCIDR
		want        EgressNode
		err         string // part of the error
	}{
		"none":   {annotations: node},
		"manual": {node, []networkv1.HostSubnetEgressIP{"192.0.2.100", "192.0.2.100"}, nil, EgressNode{IPs: ips}, ""},
		"range":  {node, nil, []networkv1.HostSubnetEgressCIDR{"192.0.2.0/24"}, EgressNode{CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}, ""},
		"host bits": {node, nil, []networkv1.HostSubnetEgressCIDR{"192.0.2.9/24"}, EgressNode{CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}},
			"egressCIDRs[0]: 192.0.2.9/24 has bits set"},
		"invalid":     {node, []networkv1.HostSubnetEgressIP{"192.0.2.100", "127.0.0.1"}, nil, EgressNode{IPs: ips}, "egressIPs[1]: 127.0.0.1"},
		"unreachable": {with(EgressUnreachableAnnotation, "2026-01-01T00:00:00Z"), []networkv1.HostSubnetEgressIP{"192.0.2.100"}, nil, EgressNode{IPs: ips, Unreachable: true}, ""},
		"deleted":     {with(NodeDeletedAnnotation, "2026-01-01T00:00:00Z"), []networkv1.HostSubnetEgressIP{"192.0.2.100"}, nil, EgressNode{}, ""},
		"external":    {with(networkv1.AssignHostSubnetAnnotation, "true"), []networkv1.HostSubnetEgressIP{"192.0.2.100"}, nil, EgressNode{}, "not that of a node"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseEgressNode(&networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: c.annotations}, EgressIPs: c.ips, EgressCIDRs: c.cidrs})
			if diff := cmp.Diff(c.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
				t.Errorf("differs (-want +got):\n%s", diff)
			}
			if (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("error is %v, want one with %q", err, c.err)
			}
		})
	}
}

func TestParseNamespaceEgressIPs(t *testing.T) {
	for name, c := range map[string]struct {
		ips    []networkv1.NetNamespaceEgressIP
		want   int
		asks   bool
		faulty bool
	}{
		"none":         {},
		"two":          {[]networkv1.NetNamespaceEgressIP{"192.0.2.100", "192.0.2.101"}, 2, true, false},
		"duplicate":    {[]networkv1.NetNamespaceEgressIP{"192.0.2.100", "192.0.2.100"}, 1, true, false},
		"only invalid": {[]networkv1.NetNamespaceEgressIP{"0.0.0.0"}, 0, true, true},
		"leading zero": {[]networkv1.NetNamespaceEgressIP{"192.0.2.01"}, 0, true, true}, // the CRD's pattern accepts it
		"too many":     {make([]networkv1.NetNamespaceEgressIP, 1000), 0, true, true},
		"partly valid": {[]networkv1.NetNamespaceEgressIP{"224.0.0.1", "192.0.2.100"}, 1, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, asks, err := ParseNamespaceEgressIPs(&networkv1.NetNamespace{EgressIPs: c.ips})
			if len(got) != c.want || asks != c.asks || (err != nil) != c.faulty {
				t.Errorf("got %v, asks %t, error %v", got, asks, err)
			}
		})
	}
}
