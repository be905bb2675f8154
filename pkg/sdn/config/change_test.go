package config

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCheckChange(t *testing.T) {
	cn := func(cidr string, bits int) ClusterNetwork { return ClusterNetwork{netip.MustParsePrefix(cidr), bits} }
	from := openShift()
	from.ClusterNetworks = []ClusterNetwork{cn("10.128.0.0/15", 9), cn("10.1.0.0/16", 8)}
	node := func(name, hostIP, subnet string) HostSubnet {
		return HostSubnet{Node: name, HostIP: netip.MustParseAddr(hostIP), Subnets: prefixes(subnet)}
	}
	used := []HostSubnet{
		node("node1", "192.0.2.1", "10.128.0.0/23"),
		node("node2", "192.0.2.2", "10.129.0.0/23"),
		node("odd", "10.1.7.7", "10.9.0.0/24"), // fits neither: never a reason
		{Node: "node3"},                        // waits for its subnet
	}
	var crowd []HostSubnet
	for i := range 5000 {
		crowd = append(crowd, node(fmt.Sprintf("node%04d", i), "192.0.2.1", fmt.Sprintf("10.129.%d.0/23", i%128*2)))
	}
	for _, tc := range []struct {
		name string
		edit func(*Network)
		used []HostSubnet
		want []string // one line for each fault
	}{
		{name: "the same", edit: func(*Network) {}, used: used},
		{name: "a shorter mask", used: used, edit: func(n *Network) { n.ClusterNetworks[0] = cn("10.128.0.0/14", 9) }},
		{name: "a shorter mask that begins before the old one", used: used, edit: func(n *Network) {
			n.ClusterNetworks = []ClusterNetwork{cn("10.0.0.0/8", 9)}
		}},
		{name: "one more", used: used, edit: func(n *Network) { n.ClusterNetworks = append(n.ClusterNetworks, cn("10.2.0.0/16", 6)) }},
		{name: "another order", used: used, edit: func(n *Network) {
			n.ClusterNetworks[0], n.ClusterNetworks[1] = n.ClusterNetworks[1], n.ClusterNetworks[0]
		}},
		{name: "less of which nothing is used", used: used, edit: func(n *Network) { n.ClusterNetworks = n.ClusterNetworks[:1] }},
		{name: "other host bits where nothing is used", used: used, edit: func(n *Network) { n.ClusterNetworks[1].HostBits = 4 }},
		{name: "the mode", used: used, edit: func(n *Network) { n.Mode = ModeMultitenant }},
		{name: "the MTU", used: used, edit: func(n *Network) { n.MTU = 1400 }},
		{name: "anything before there are nodes", edit: func(n *Network) {
			*n = Network{Mode: ModeSubnet, ClusterNetworks: []ClusterNetwork{cn("10.0.0.0/16", 8)}, ServiceNetwork: netip.MustParsePrefix("10.96.0.0/12"), VXLANPort: 1}
		}},
		{
			name: "shrunk below what is used", used: used,
			edit: func(n *Network) { n.ClusterNetworks[0] = cn("10.128.0.0/16", 9) },
			want: []string{"clusterNetworks: HostSubnet node2 is in use: 10.129.0.0/23 lies outside of the cluster network 10.128.0.0/16, 10.1.0.0/16"},
		},
		{
			name: "other host bits", used: used[:1],
			edit: func(n *Network) { n.ClusterNetworks[0].HostBits = 8 },
			want: []string{"clusterNetworks: HostSubnet node1 is in use: 10.128.0.0/23 is a /23, but in the cluster network 10.128.0.0/15 with 8 host bits a node has a /24"},
		},
		{
			name: "grown over nodes", used: used,
			edit: func(n *Network) { n.ClusterNetworks = append(n.ClusterNetworks, cn("192.0.0.0/16", 8)) },
			want: []string{
				"clusterNetworks: node node1: its address 192.0.2.1 lies inside 192.0.0.0/16",
				"clusterNetworks: node node2: its address 192.0.2.2 lies inside 192.0.0.0/16",
			},
		},
		{
			name: "everything at once", used: used,
			edit: func(n *Network) {
				n.Mode, n.VXLANPort, n.ServiceNetwork = ModeSubnet, 4790, netip.MustParsePrefix("172.16.0.0/16")
				n.ClusterNetworks = []ClusterNetwork{cn("10.129.0.0/16", 9)}
			},
			want: []string{
				"clusterNetworks: HostSubnet node1 is in use: 10.128.0.0/23 lies outside of the cluster network 10.129.0.0/16",
				"serviceNetwork: it can't move from 172.30.0.0/16 to 172.16.0.0/16 while nodes are in the network: write back 172.30.0.0/16",
				"vxlanPort: it can't change from 4789 to 4790 while nodes are in the network: write back 4789",
			},
		},
		{
			name: "thousands of nodes", used: crowd,
			edit: func(n *Network) { n.ClusterNetworks = []ClusterNetwork{cn("10.128.0.0/16", 9)} },
			want: []string{
				"clusterNetworks: HostSubnet node0000 is in use: 10.129.0.0/23 lies outside of the cluster network 10.128.0.0/16",
				"clusterNetworks: HostSubnet node0001 is in use: 10.129.2.0/23 lies outside of the cluster network 10.128.0.0/16",
				"clusterNetworks: HostSubnet node0002 is in use: 10.129.4.0/23 lies outside of the cluster network 10.128.0.0/16",
				"clusterNetworks: and 4997 more",
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			to := *from
			to.ClusterNetworks = append([]ClusterNetwork(nil), from.ClusterNetworks...)
			tc.edit(&to)
			var got []string
			if err := from.CheckChange(&to, tc.used); err != nil {
				got = strings.Split(err.Error(), "\n")
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
