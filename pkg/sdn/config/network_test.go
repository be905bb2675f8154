package config

import (
	"math"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	networkv1 "github.com/openshift/api/network/v1"
)

func ptr[T any](v T) *T { return &v }

func prefixes(s ...string) []netip.Prefix {
	var list []netip.Prefix
	for _, p := range s {
		list = append(list, netip.MustParsePrefix(p))
	}
	return list
}

func comparePrefixes() cmp.Option {
	return cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{})
}

// object returns a ClusterNetwork as OpenShift makes it.
func object() *networkv1.ClusterNetwork {
	o := &networkv1.ClusterNetwork{
		Network:          "10.128.0.0/14",
		HostSubnetLength: 9,
		ServiceNetwork:   "172.30.0.0/16",
		PluginName:       "redhat/openshift-ovs-networkpolicy",
		ClusterNetworks:  []networkv1.ClusterNetworkEntry{{CIDR: "10.128.0.0/14", HostSubnetLength: 9}},
	}
	o.Name = "default"
	return o
}

func openShift() *Network {
	return &Network{
		Mode:            ModeNetworkPolicy,
		ClusterNetworks: []ClusterNetwork{{Prefix: netip.MustParsePrefix("10.128.0.0/14"), HostBits: 9}},
		ServiceNetwork:  netip.MustParsePrefix("172.30.0.0/16"),
		VXLANPort:       4789,
	}
}

func TestParseNetwork(t *testing.T) {
	for _, tc := range []struct {
		name string
		edit func(*networkv1.ClusterNetwork)
		want func(*Network)
	}{
		{name: "as OpenShift makes it"},
		{
			name: "short mode name",
			edit: func(o *networkv1.ClusterNetwork) { o.PluginName = "multitenant" },
			want: func(n *Network) { n.Mode = ModeMultitenant },
		},
		{
			name: "without the legacy fields",
			edit: func(o *networkv1.ClusterNetwork) { o.Network, o.HostSubnetLength = "", 0 },
		},
		{
			name: "only the legacy fields",
			edit: func(o *networkv1.ClusterNetwork) { o.ClusterNetworks = nil },
		},
		{
			name: "several ranges, port and MTU",
			edit: func(o *networkv1.ClusterNetwork) {
				o.ClusterNetworks = append(o.ClusterNetworks, networkv1.ClusterNetworkEntry{CIDR: "10.1.0.0/16", HostSubnetLength: 6})
				o.VXLANPort, o.MTU = ptr(uint32(4790)), ptr(uint32(8950))
			},
			want: func(n *Network) {
				n.ClusterNetworks = append(n.ClusterNetworks, ClusterNetwork{netip.MustParsePrefix("10.1.0.0/16"), 6})
				n.VXLANPort, n.MTU = 4790, 8950
			},
		},
		{
			name: "one node has it all",
			edit: func(o *networkv1.ClusterNetwork) {
				o.Network, o.HostSubnetLength = "", 0
				o.ClusterNetworks = []networkv1.ClusterNetworkEntry{{CIDR: "10.1.0.0/30", HostSubnetLength: 2}}
			},
			want: func(n *Network) {
				n.ClusterNetworks = []ClusterNetwork{{netip.MustParsePrefix("10.1.0.0/30"), 2}}
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o, want := object(), openShift()
			if tc.edit != nil {
				tc.edit(o)
			}
			if tc.want != nil {
				tc.want(want)
			}
			got, err := ParseNetwork(o)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, comparePrefixes()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseNetwork_faults(t *testing.T) {
	one := func(cidr string, bits uint32) func(*networkv1.ClusterNetwork) {
		return func(o *networkv1.ClusterNetwork) {
			o.Network, o.HostSubnetLength = "", 0
			o.ClusterNetworks = []networkv1.ClusterNetworkEntry{{CIDR: cidr, HostSubnetLength: bits}}
		}
	}
	for _, tc := range []struct {
		name string
		edit func(*networkv1.ClusterNetwork)
		want []string // one line for each fault
	}{
		{"host bits in the range", one("10.128.0.5/14", 9), []string{
			"clusterNetworks[0].CIDR: 10.128.0.5/14 has bits set behind its mask: write 10.128.0.0/14",
		}},
		{"leading zeros, which the CRD's pattern lets pass", one("10.01.0.0/16", 9), []string{
			`clusterNetworks[0].CIDR: "10.01.0.0/16" is not an IPv4 range: write it as ADDRESS/BITS, such as 10.128.0.0/14`,
		}},
		{"IPv6", one("fd00::/48", 9), []string{
			`clusterNetworks[0].CIDR: "fd00::/48" is not an IPv4 range: write it as ADDRESS/BITS, such as 10.128.0.0/14`,
		}},
		{"host bits larger than the range", one("10.128.0.0/24", 9), []string{
			"clusterNetworks[0].hostSubnetLength: 9 host bits don't fit 10.128.0.0/24: choose 2 to 8",
		}},
		{"no host bits", one("10.128.0.0/14", 0), []string{
			"clusterNetworks[0].hostSubnetLength: 0 host bits don't fit 10.128.0.0/14: choose 2 to 18",
		}},
		{"absurd host bits", one("10.128.0.0/14", math.MaxUint32), []string{
			"clusterNetworks[0].hostSubnetLength: 4294967295 host bits don't fit 10.128.0.0/14: choose 2 to 18",
		}},
		{"nothing right about a range", func(o *networkv1.ClusterNetwork) {
			o.ClusterNetworks = append(o.ClusterNetworks,
				networkv1.ClusterNetworkEntry{CIDR: "10.129.0.1/16", HostSubnetLength: 17},
				networkv1.ClusterNetworkEntry{CIDR: "10.1.0.0", HostSubnetLength: 31})
			o.ServiceNetwork = "10.129.2.3/24"
		}, []string{
			"clusterNetworks[1].CIDR: 10.129.0.1/16 has bits set behind its mask: write 10.129.0.0/16",
			"clusterNetworks[1].hostSubnetLength: 17 host bits don't fit 10.129.0.0/16: choose 2 to 16",
			"clusterNetworks[1].CIDR: 10.129.0.0/16 overlaps 10.128.0.0/14: ranges of the cluster network must be disjoint",
			`clusterNetworks[2].CIDR: "10.1.0.0" is not an IPv4 range: write it as ADDRESS/BITS, such as 10.128.0.0/14`,
			"clusterNetworks[2].hostSubnetLength: 31 host bits make no subnet: choose 2 to 30",
			"serviceNetwork: 10.129.2.3/24 has bits set behind its mask: write 10.129.2.0/24",
			"serviceNetwork: 10.129.2.0/24 overlaps the cluster network 10.128.0.0/14: choose ranges that are disjoint",
			"serviceNetwork: 10.129.2.0/24 overlaps the cluster network 10.129.0.0/16: choose ranges that are disjoint",
		}},
		{"tiny range", one("10.128.0.0/31", 2), []string{
			"clusterNetworks[0].hostSubnetLength: 10.128.0.0/31 is too small to be a cluster network: choose /30 or larger",
		}},
		{"link-local", one("169.254.0.0/16", 9), []string{
			"clusterNetworks[0].CIDR: 169.254.0.0/16 overlaps 169.254.0.0/16 (link-local), which can't be routed: choose a private range, such as one in 10.0.0.0/8",
		}},
		{"no range", func(o *networkv1.ClusterNetwork) { o.ClusterNetworks, o.Network = nil, "" }, []string{
			"clusterNetworks: is empty: give at least one range, such as {CIDR: 10.128.0.0/14, hostSubnetLength: 9}",
		}},
		{"a bad legacy range", func(o *networkv1.ClusterNetwork) {
			o.ClusterNetworks, o.Network, o.HostSubnetLength = nil, "10.1.0.1/16", 9
		}, []string{
			"network: 10.1.0.1/16 has bits set behind its mask: write 10.1.0.0/16",
		}},
		{"legacy fields that differ", func(o *networkv1.ClusterNetwork) { o.Network, o.HostSubnetLength = "10.1.0.0/16", 8 }, []string{
			`network: "10.1.0.0/16" differs from clusterNetworks[0].CIDR "10.128.0.0/14": make them the same, or leave network out`,
			"hostsubnetlength: 8 differs from clusterNetworks[0].hostSubnetLength 9: make them the same, or leave hostsubnetlength out",
		}},
		{"everything at once", func(o *networkv1.ClusterNetwork) {
			o.PluginName = "calico"
			o.ClusterNetworks = append(o.ClusterNetworks,
				networkv1.ClusterNetworkEntry{CIDR: "10.130.0.0/16", HostSubnetLength: 17},
				networkv1.ClusterNetworkEntry{CIDR: "172.16.0.0/12", HostSubnetLength: 9})
			o.VXLANPort, o.MTU = ptr(uint32(70000)), ptr(uint32(65536))
		}, []string{
			`pluginName: "calico" is not a mode: choose networkpolicy, multitenant or subnet (or the full name, such as redhat/openshift-ovs-networkpolicy)`,
			"clusterNetworks[1].hostSubnetLength: 17 host bits don't fit 10.130.0.0/16: choose 2 to 16",
			"clusterNetworks[1].CIDR: 10.130.0.0/16 overlaps 10.128.0.0/14: ranges of the cluster network must be disjoint",
			"serviceNetwork: 172.30.0.0/16 overlaps the cluster network 172.16.0.0/12: choose ranges that are disjoint",
			"vxlanPort: 70000 is not a UDP port: choose one from 1 to 65535 (4789 is usual)",
			"mtu: 65536 bytes is out of range: choose 576 to 65485, or leave it out for the nodes' own less 50",
		}},
		{"nothing", func(o *networkv1.ClusterNetwork) { *o = networkv1.ClusterNetwork{} }, []string{
			`pluginName: "" is not a mode: choose networkpolicy, multitenant or subnet (or the full name, such as redhat/openshift-ovs-networkpolicy)`,
			"clusterNetworks: is empty: give at least one range, such as {CIDR: 10.128.0.0/14, hostSubnetLength: 9}",
			`serviceNetwork: "" is not an IPv4 range: write it as ADDRESS/BITS, such as 10.128.0.0/14`,
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := object()
			tc.edit(o)
			n, err := ParseNetwork(o)
			if err == nil {
				t.Fatalf("no error, but %+v", n)
			}
			if diff := cmp.Diff(tc.want, strings.Split(err.Error(), "\n")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestObject_equalsOpenShift(t *testing.T) {
	want := object()
	want.VXLANPort = ptr(uint32(4789))
	if diff := cmp.Diff(want, openShift().Object()); diff != "" {
		t.Error(diff)
	}
}

func TestModes(t *testing.T) {
	for i, m := range []Mode{ModeSubnet, ModeMultitenant, ModeNetworkPolicy} {
		if int(m.PluginID()) != i {
			t.Errorf("%s: plugin id %d, want %d", m, m.PluginID(), i)
		}
		for _, name := range []string{m.String(), m.PluginName()} {
			if got, err := ParseMode(name); err != nil || got != m {
				t.Errorf("ParseMode(%q) = %v, %v", name, got, err)
			}
		}
	}
	for _, bad := range []string{"", "Subnet", "redhat/openshift-ovs-", "mode(3)", "redhat/openshift-ovs-mode(3)"} {
		if got, err := ParseMode(bad); err == nil {
			t.Errorf("ParseMode(%q) = %v", bad, got)
		}
	}
}

func TestOverlapWith(t *testing.T) {
	n := openShift()
	for _, tc := range []struct {
		name       string
		routes     []netip.Prefix
		exceptions []netip.Prefix
		want       string
	}{
		{name: "none", routes: prefixes("0.0.0.0/0", "192.0.2.0/24", "fd00::/8", "::/0")},
		{name: "own", routes: prefixes("10.128.0.0/14", "172.30.0.0/16"), exceptions: prefixes("10.128.0.0/14", "172.30.0.0/16")},
		{
			name:   "inside, around and in the service network",
			routes: prefixes("10.129.3.0/24", "10.0.0.0/8", "172.30.0.0/24"),
			want: "host route 10.129.3.0/24 overlaps the cluster network 10.128.0.0/14: choose another cluster network, or remove the route\n" +
				"host route 10.0.0.0/8 overlaps the cluster network 10.128.0.0/14: choose another cluster network, or remove the route\n" +
				"host route 172.30.0.0/24 overlaps the service network 172.30.0.0/16: choose another service network, or remove the route",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := ""
			if err := n.OverlapWith(tc.routes, tc.exceptions...); err != nil {
				got = err.Error()
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// FuzzParseNetwork: what parses is safe to build on, and its object parses to the same.
func FuzzParseNetwork(f *testing.F) {
	f.Add("redhat/openshift-ovs-subnet", "10.128.0.0/14", uint32(9), "10.1.0.0/16", uint32(6), "172.30.0.0/16", uint32(4789), uint32(1450), "10.128.0.0/14", uint32(9))
	f.Add("multitenant", "10.128.0.5/14", uint32(0), "", uint32(0), "", uint32(0), uint32(0), "", uint32(0))
	f.Add("subnet", "0.0.0.0/0", uint32(32), "10.0.0.0/8", uint32(math.MaxUint32), "::ffff:10.0.0.0/104", uint32(65536), uint32(65536), "x", uint32(1))
	f.Fuzz(func(t *testing.T, mode, cidr1 string, bits1 uint32, cidr2 string, bits2 uint32, service string, port, mtu uint32, network string, length uint32) {
		o := &networkv1.ClusterNetwork{
			PluginName: mode, ServiceNetwork: service, VXLANPort: &port, MTU: &mtu, Network: network, HostSubnetLength: length,
			ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: cidr1, HostSubnetLength: bits1}},
		}
		if cidr2 != "" {
			o.ClusterNetworks = append(o.ClusterNetworks, networkv1.ClusterNetworkEntry{CIDR: cidr2, HostSubnetLength: bits2})
		}
		n, err := ParseNetwork(o)
		if err != nil {
			return
		}
		for i, c := range n.ClusterNetworks {
			if c.Prefix != c.Prefix.Masked() || !c.Prefix.Addr().Is4() || c.SubnetBits() < c.Prefix.Bits() || c.HostBits < 2 {
				t.Errorf("range %d is %s", i, c)
			}
			if c.Prefix.Overlaps(n.ServiceNetwork) {
				t.Errorf("%s overlaps the service network %s", c, n.ServiceNetwork)
			}
		}
		again, err := ParseNetwork(n.Object())
		if err != nil {
			t.Fatalf("parse the object of the network: %v", err)
		}
		if diff := cmp.Diff(n, again, comparePrefixes()); diff != "" {
			t.Error(diff)
		}
	})
}
