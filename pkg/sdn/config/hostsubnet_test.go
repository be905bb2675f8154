package config

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkv1 "github.com/openshift/api/network/v1"
)

func hostSubnet() *networkv1.HostSubnet {
	o := &networkv1.HostSubnet{Host: "node1", HostIP: "192.0.2.11", Subnet: "10.128.0.0/23"}
	o.Name = "node1"
	o.Annotations = map[string]string{networkv1.NodeUIDAnnotation: "uid1"}
	return o
}

func TestParseHostSubnet(t *testing.T) {
	want := &HostSubnet{
		Node: "node1", NodeUID: "uid1",
		HostIP: netip.MustParseAddr("192.0.2.11"), Subnets: prefixes("10.128.0.0/23"),
	}
	got, err := ParseHostSubnet(hostSubnet())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, comparePrefixes()); diff != "" {
		t.Error(diff)
	}

	o := hostSubnet()
	o.Annotations = map[string]string{networkv1.AssignHostSubnetAnnotation: "true"}
	o.Subnet = ""
	want.NodeUID, want.Subnets = "", nil
	got, err = ParseHostSubnet(o)
	if err != nil {
		t.Fatalf("an external machine that waits for its subnet: %v", err)
	}
	if diff := cmp.Diff(want, got, comparePrefixes()); diff != "" {
		t.Error(diff)
	}
}

func TestParseHostSubnet_faults(t *testing.T) {
	for _, tc := range []struct {
		name                 string
		host, hostIP, subnet string
		want                 []string
	}{
		{"everything", "node2", "node1.example", "10.128.0.7/23", []string{
			`host: is "node2", but must be the object's name: write "node1"`,
			`hostIP: "node1.example" is not an IPv4 address: write the node's, such as 192.0.2.10`,
			"subnet: 10.128.0.7/23 has bits set behind its mask: write 10.128.0.0/23",
		}},
		{"nothing", "", "", "", []string{
			`host: is "", but must be the object's name: write "node1"`,
			"hostIP: is missing: write the node's IPv4 address",
			`subnet: "" is not an IPv4 range: write it as ADDRESS/BITS, such as 10.128.0.0/14`,
		}},
		{"leading zeros, which the CRD's pattern lets pass", "node1", "192.00.2.1", "10.128.00.0/23", []string{
			`hostIP: "192.00.2.1" is not an IPv4 address: write the node's, such as 192.0.2.10`,
			`subnet: "10.128.00.0/23" is not an IPv4 range: write it as ADDRESS/BITS, such as 10.128.0.0/14`,
		}},
		{"loopback", "node1", "127.0.0.1", "10.128.0.0/23", []string{
			"hostIP: 127.0.0.1 can't be reached by other nodes: write the node's address in their network",
		}},
		{"broadcast", "node1", "255.255.255.255", "10.128.0.0/23", []string{
			"hostIP: 255.255.255.255 can't be reached by other nodes: write the node's address in their network",
		}},
		{"IPv6", "node1", "fd00::1", "fd00::/64", []string{
			`hostIP: "fd00::1" is not an IPv4 address: write the node's, such as 192.0.2.10`,
			`subnet: "fd00::/64" is not an IPv4 range: write it as ADDRESS/BITS, such as 10.128.0.0/14`,
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := hostSubnet()
			o.Host, o.HostIP, o.Subnet = tc.host, tc.hostIP, tc.subnet
			h, err := ParseHostSubnet(o)
			if err == nil {
				t.Fatalf("no error, but %+v", h)
			}
			if diff := cmp.Diff(tc.want, strings.Split(err.Error(), "\n")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseHostSubnet_proposed(t *testing.T) {
	o := hostSubnet()
	if IsProposed(o) {
		t.Error("a HostSubnet is taken for a proposal")
	}
	o.Annotations[ProposedAnnotation] = ""
	_, err := ParseHostSubnet(o)
	if diff := cmp.Diff("subnet: 10.128.0.0/23 is only proposed: ovsdn-controller will confirm it, or choose another", fmt.Sprint(err)); diff != "" || !IsProposed(o) {
		t.Error(diff)
	}
}

func TestCheckHostSubnet(t *testing.T) {
	n := openShift()
	n.ClusterNetworks = append(n.ClusterNetworks, ClusterNetwork{netip.MustParsePrefix("10.1.0.0/16"), 6})
	for _, tc := range []struct {
		hostIP, subnet string
		want           string
	}{
		{"192.0.2.1", "10.128.0.0/23", ""},
		{"192.0.2.1", "10.131.254.0/23", ""},
		{"192.0.2.1", "10.1.3.64/26", ""},
		{"192.0.2.1", "10.132.0.0/23", "subnet: 10.132.0.0/23 lies outside of the cluster network 10.128.0.0/14, 10.1.0.0/16"},
		{"192.0.2.1", "10.0.0.0/8", "subnet: 10.0.0.0/8 lies outside of the cluster network 10.128.0.0/14, 10.1.0.0/16"},
		{"192.0.2.1", "10.128.0.0/8", "subnet: 10.128.0.0/8 lies outside of the cluster network 10.128.0.0/14, 10.1.0.0/16"},
		{"192.0.2.1", "10.128.0.0/24", "subnet: 10.128.0.0/24 is a /24, but in the cluster network 10.128.0.0/14 with 9 host bits a node has a /23"},
		{"192.0.2.1", "10.128.0.0/14", "subnet: 10.128.0.0/14 is a /14, but in the cluster network 10.128.0.0/14 with 9 host bits a node has a /23"},
		{"10.130.0.1", "10.128.0.0/23", "hostIP: 10.130.0.1 lies inside the cluster network 10.128.0.0/14: a node needs an address of the underlay"},
		{"172.30.0.1", "10.128.0.0/24", "subnet: 10.128.0.0/24 is a /24, but in the cluster network 10.128.0.0/14 with 9 host bits a node has a /23\n" +
			"hostIP: 172.30.0.1 lies inside the service network 172.30.0.0/16: a node needs an address of the underlay"},
	} {
		h := &HostSubnet{Node: "node1", HostIP: netip.MustParseAddr(tc.hostIP), Subnets: prefixes(tc.subnet)}
		got := ""
		if err := n.CheckHostSubnet(h); err != nil {
			got = err.Error()
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s %s: %s", tc.hostIP, tc.subnet, diff)
		}
	}
}

// FuzzParseHostSubnet: what parses and fits the network is safe to make flows of.
func FuzzParseHostSubnet(f *testing.F) {
	f.Add("node1", "192.0.2.11", "10.128.0.0/23", false)
	f.Add("node1", "192.0.2.11", "", true)
	f.Add("", "0.0.0.0", "10.128.0.0/33", false)
	f.Add("node1", "::ffff:192.0.2.1", "10.128.0.1/23", false)
	f.Fuzz(func(t *testing.T, host, hostIP, subnet string, external bool) {
		o := &networkv1.HostSubnet{Host: host, HostIP: hostIP, Subnet: subnet}
		o.Name = host
		if external {
			o.Annotations = map[string]string{networkv1.AssignHostSubnetAnnotation: ""}
		}
		h, err := ParseHostSubnet(o)
		if err != nil {
			return
		}
		if h.Node == "" || !h.HostIP.Is4() || len(h.Subnets) == 0 && !external {
			t.Errorf("%+v", h)
		}
		for _, s := range h.Subnets {
			if s != s.Masked() || !s.Addr().Is4() {
				t.Errorf("subnet %s", s)
			}
		}
		n := openShift()
		if n.CheckHostSubnet(h) != nil {
			return
		}
		for _, s := range h.Subnets {
			if s.Bits() != 23 || !n.ClusterNetworks[0].Prefix.Contains(s.Addr()) {
				t.Errorf("subnet %s", s)
			}
		}
		if n.ClusterNetworks[0].Prefix.Contains(h.HostIP) || n.ServiceNetwork.Contains(h.HostIP) {
			t.Errorf("host IP %s", h.HostIP)
		}
	})
}

func TestNodeDeletedSince(t *testing.T) {
	o := hostSubnet()
	if _, ok := NodeDeletedSince(o); ok || IsRetained(o) {
		t.Error("got a deleted Node without the annotation")
	}
	for value, want := range map[string]bool{"2026-01-02T03:04:05Z": true, "2026-01-02T03:04:05+01:00": true, "": false, "1767323045": false} {
		o.Annotations[NodeDeletedAnnotation] = value
		if _, ok := NodeDeletedSince(o); ok != want || !IsRetained(o) {
			t.Errorf("%q: got valid %t, retained %t; want %t, true", value, ok, IsRetained(o), want)
		}
	}
}

// For what only one of several HostSubnets can have: those of Nodes, then those of machines, then those of deleted Nodes.
func TestCompareHostSubnets_deletedNode(t *testing.T) {
	live, deleted, machine := hostSubnet(), hostSubnet(), hostSubnet()
	deleted.Name, machine.Name, live.Name = "a", "b", "c"
	deleted.Annotations[NodeDeletedAnnotation] = "2026-01-02T03:04:05Z"
	machine.Annotations = nil
	order := []*networkv1.HostSubnet{live, machine, deleted}
	for i, a := range order {
		for j, b := range order {
			if got := CompareHostSubnets(a, b); got != max(-1, min(1, i-j)) {
				t.Errorf("%s and %s: got %d", a.Name, b.Name, got)
			}
		}
	}
}
