package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/egressip"
	"github.com/ovsdn/ovsdn/test/tier"
)

func egressNode(number int, egress ...string) *networkv1.HostSubnet {
	name := fmt.Sprint("node", number)
	o := &networkv1.HostSubnet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{networkv1.NodeUIDAnnotation: name}},
		Host:       name, HostIP: fmt.Sprint("192.168.0.", number), Subnet: fmt.Sprintf("10.128.%d.0/23", 2*number),
	}
	for _, e := range egress {
		if strings.Contains(e, "/") {
			o.EgressCIDRs = append(o.EgressCIDRs, networkv1.HostSubnetEgressCIDR(e))
		} else {
			o.EgressIPs = append(o.EgressIPs, networkv1.HostSubnetEgressIP(e))
		}
	}
	return o
}

func egressNamespace(name string, ips ...networkv1.NetNamespaceEgressIP) *networkv1.NetNamespace {
	return &networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: name}, NetName: name, NetID: 100, EgressIPs: ips}
}

func egressOf(objects ...any) *egress {
	network := &config.Network{
		Mode: config.ModeMultitenant, ClusterNetworks: []config.ClusterNetwork{{Prefix: netip.MustParsePrefix("10.128.0.0/14"), HostBits: 9}},
		ServiceNetwork: netip.MustParsePrefix("172.30.0.0/16"),
	}
	c := &egress{
		table: egressip.New(egressip.Reserved(network)), network: network,
		netNamespaces: map[string]*networkv1.NetNamespace{}, hostSubnets: map[string]*networkv1.HostSubnet{},
	}
	for _, o := range objects {
		switch o := o.(type) {
		case *networkv1.NetNamespace:
			c.setNamespace(o)
		case *networkv1.HostSubnet:
			c.setNode(o)
		}
	}
	return c
}

func TestPrintEgressIPs(t *testing.T) {
	unreachable := egressNode(3, "192.0.2.30")
	unreachable.Annotations[config.EgressUnreachableAnnotation] = "2026-01-01T00:00:00Z"
	c := egressOf(egressNode(1, "192.0.2.0/24", "192.0.2.9"), egressNode(2, "192.0.2.10", "192.0.2.11"), unreachable,
		egressNamespace("shop", "192.0.2.10", "192.0.2.9"), egressNamespace("dev", "192.0.2.30", "192.0.2.40", "192.0.2.50"), egressNamespace("test", "192.0.2.50"))
	for name, tc := range map[string]struct {
		format    string
		noHeaders bool
		ips       []string
		want      string
		wantErr   string
	}{
		"table": {want: `
IP           NAMESPACE   NODE     STATE
192.0.2.9    shop        node1    Active
192.0.2.10   shop        node2    Active
192.0.2.11   <none>      node2    Unused
192.0.2.30   dev         node3    Unreachable
192.0.2.40   dev         <none>   Unhosted
192.0.2.50   dev,test    <none>   Conflict
`},
		"wide": {format: "wide", ips: []string{"192.0.2.50", "192.0.2.9"}, want: `
IP           NAMESPACE   NODE     STATE      ASSIGNED    NOTE
192.0.2.50   dev,test    <none>   Conflict   <none>      several namespaces have it
192.0.2.9    shop        node1    Active     automatic   <none>
`},
		"names": {format: "name", ips: []string{"192.0.2.9", "192.0.2.11"}, want: `
egressip.ovsdn.io/192.0.2.9
egressip.ovsdn.io/192.0.2.11
`},
		"one as YAML": {format: "yaml", ips: []string{"192.0.2.30"}, want: `
apiVersion: ovsdn.io/v1
kind: EgressIP
metadata:
  name: 192.0.2.30
namespaces:
- dev
nodes:
- node3
note: its node is not reachable
state: Unreachable
`},
		"without headers": {noHeaders: true, ips: []string{"192.0.2.40"}, want: `
192.0.2.40   dev   <none>   Unhosted
`},
		"one of no object": {noHeaders: true, ips: []string{"192.0.2.99", "192.0.2.11"}, want: `
192.0.2.11   <none>   node2   Unused
`, wantErr: "egress IP 192.0.2.99 not found: no NetNamespace and no HostSubnet has it"},
	} {
		streams, _, out, _ := genericiooptions.NewTestIOStreams()
		flags := genericclioptions.NewPrintFlags("")
		flags.OutputFormat = &tc.format
		printer, err := tableOrObjects(flags, tc.noHeaders)
		if err != nil {
			t.Fatal(err)
		}
		ips, err := parseIPs(tc.ips)
		if err != nil {
			t.Fatal(err)
		}
		if got := errorText(c.print(streams, printer, ips)); got != tc.wantErr {
			t.Errorf("%s: got error %q, want %q", name, got, tc.wantErr)
		}
		if diff := cmp.Diff(strings.TrimPrefix(tc.want, "\n"), out.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A node reports which of its egress IPs the host can't forward. Nodes of IPs with another problem are not asked.
func TestEgressIPs_notPlaced(t *testing.T) {
	unreachable := egressNode(3, "192.0.2.30")
	unreachable.Annotations[config.EgressUnreachableAnnotation] = "2026-01-01T00:00:00Z"
	active := egressOf().network
	active.VXLANPort = config.DefaultVXLANPort
	accepted, err := active.Accepted()
	if err != nil {
		t.Fatal(err)
	}
	network := &networkv1.ClusterNetwork{ObjectMeta: metav1.ObjectMeta{
		Name: networkv1.ClusterNetworkDefault, Annotations: map[string]string{config.AcceptedAnnotation: accepted},
	}}
	status := readyStatus()
	status.EgressIPsNotPlaced = []diagnostics.EgressIPNotPlaced{{IP: "198.51.100.9", Problem: "no interface of the host is in its network"}}
	silent := diagnostics.NodeStatusStatus{Error: "the agent does not answer: connection refused"}
	all := nodeStatuses(status, silent)
	const api = "/apis/network.openshift.io/v1"
	f := newFakeAPI(t, map[string]any{
		api + "/clusternetworks/default": network,
		api + "/netnamespaces": networkv1.NetNamespaceList{Items: []networkv1.NetNamespace{
			*egressNamespace("shop", "192.0.2.10", "198.51.100.9", "192.0.2.20", "192.0.2.30"),
		}},
		api + "/hostsubnets": networkv1.HostSubnetList{Items: []networkv1.HostSubnet{
			*egressNode(1, "192.0.2.10", "198.51.100.9"), *egressNode(2, "192.0.2.20"), *unreachable,
		}},
		diagnosticsPath + "/nodestatuses/node1": all.Items[0],
		diagnosticsPath + "/nodestatuses/node2": all.Items[1],
	})
	f.wants(t, exitOK, `
IP             NAMESPACE   NODE    STATE         ASSIGNED   NOTE
192.0.2.10     shop        node1   Active        manual     <none>
192.0.2.20     shop        node2   Unknown       manual     node2 did not answer whether its host forwards packets with this IP
192.0.2.30     shop        node3   Unreachable   manual     its node is not reachable
198.51.100.9   shop        node1   NotPlaced     manual     node1 drops packets with it: no interface of the host is in its network
`, "can't read for 1 of 2 nodes whether their hosts forward packets with egress IPs: node2: the agent does not answer: connection refused; check that the agents run", "egress-ips", "-o", "wide")
	f.wants(t, exitOK, "NotPlaced", "", "egress-ips", "198.51.100.9", "-o", "jsonpath={.state}")
}

// A node lists a part of the egress IPs that its host can't forward: of the others the state is unknown.
func TestEgress_stateOfPartialPlacement(t *testing.T) {
	c := egressOf()
	c.placements = placements{"node1": {notPlaced: map[string]string{"192.0.2.10": "link down"}, partial: true}, "node2": {}}
	for where, want := range map[string]string{"192.0.2.10 node1": "NotPlaced", "192.0.2.11 node1": "Unknown", "192.0.2.12 node2": "Active"} {
		addr, node, _ := strings.Cut(where, " ")
		if got, note := c.stateOf(egressip.IP{Addr: netip.MustParseAddr(addr), Nodes: []string{node}}); got != want {
			t.Errorf("%s: got state %s (%s), want %s", where, got, note, want)
		}
	}
}

func TestConflicts(t *testing.T) {
	c := egressOf(egressNode(1, "192.0.2.0/24", "192.0.2.9"), egressNode(2, "192.0.2.9", "192.0.2.10"), egressNode(3, "192.0.2.10"),
		egressNamespace("shop", "192.0.2.11", "10.128.0.7"), egressNamespace("dev", "192.0.2.11"))
	for ip, want := range map[string]string{
		"192.0.2.9":   "", // ovsdn-controller removes it from node1
		"192.0.2.12":  "",
		"192.0.2.10":  "egress IP 192.0.2.10: several nodes host it: node2, node3",
		"192.0.2.11":  "egress IP 192.0.2.11: several namespaces have it: dev, shop",
		"10.128.0.7":  "egress IP 10.128.0.7: it lies in the cluster network or the service network",
		"192.168.0.2": "",
	} {
		if got := errorText(c.conflicts([]netip.Addr{netip.MustParseAddr(ip)})); got != want {
			t.Errorf("%s: got %q, want %q", ip, got, want)
		}
	}
}

// TestEgressIPs runs a user's session on a real API server with the real controller.
func TestEgressIPs(t *testing.T) {
	tier.Parallel(t)
	u := newUser(t)
	u.create(t, nil, "shop", "dev")
	stop := u.mode(t, "redhat/openshift-ovs-multitenant")
	defer func() { stop() }()
	u.vnid(t, "shop")
	u.vnid(t, "dev")
	stop()
	stop = func() {} // so that the nodes' HostSubnets remain
	for n := 1; n <= 2; n++ {
		if _, err := u.network.NetworkV1().HostSubnets().Create(t.Context(), egressNode(n), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	u.wants(t, exitOK, "", "No resources found", "egress-ips")
	u.wants(t, exitOK, "namespace/shop has egress IPs 192.0.2.10,192.0.2.11\n", "", "egress-ips", "set-namespace", "shop", "192.0.2.10", "192.0.2.11")
	u.wants(t, exitOK, "node/node1 hosts egress IPs 192.0.2.10\n", "", "egress-ips", "set-node", "node1", "192.0.2.10")
	u.wants(t, exitOK, "192.0.2.10   shop        node1    Unknown\n192.0.2.11   shop        <none>   Unhosted\n",
		"can't read for 1 of 1 nodes whether their hosts forward packets with egress IPs: node1: ", "egress-ips")
	u.wants(t, exitOK, "node/node2 hosts egress IPs of 192.0.2.0/24\n", "", "egress-ips", "set-node", "node2", "--cidr=192.0.2.0/24")

	u.wants(t, exitFailed, "", "egress IP 192.0.2.10: several namespaces have it: dev, shop", "egress-ips", "set-namespace", "dev", "192.0.2.10")
	u.wants(t, exitFailed, "", "egress IP 192.0.2.10: several nodes host it: node1, node2", "egress-ips", "set-node", "node2", "192.0.2.10")
	u.wants(t, exitFailed, "", "egress IP 192.168.0.1: it is the address of a node", "egress-ips", "set-namespace", "dev", "192.168.0.1")
	u.wants(t, exitFailed, "", "egressIPs[0]: 127.0.0.1 can't be reached", "egress-ips", "set-namespace", "dev", "127.0.0.1")
	u.wants(t, exitFailed, "", "egressCIDRs[0]: 192.0.2.7/24 has bits set behind its mask: write 192.0.2.0/24", "egress-ips", "set-node", "node2", "--cidr=192.0.2.7/24")
	u.wants(t, exitFailed, "", "namespace nowhere has no VNID", "egress-ips", "set-namespace", "nowhere", "192.0.2.12")
	u.wants(t, exitFailed, "", "node nowhere has no subnet", "egress-ips", "set-node", "nowhere", "192.0.2.12")
	nn, err := u.network.NetworkV1().NetNamespaces().Get(t.Context(), "dev", metav1.GetOptions{})
	if err != nil || len(nn.EgressIPs) > 0 {
		t.Errorf("a refused change wrote %v, error %v", nn.EgressIPs, err)
	}

	u.wants(t, exitOK, "node/node2 hosts egress IPs <none>\n", "", "egress-ips", "set-node", "node2", "--none")
	u.wants(t, exitOK, "namespace/shop has egress IPs <none>\n", "", "egress-ips", "set-namespace", "shop", "--none")
	eventually(t, func() error {
		list, err := u.network.NetworkV1().HostSubnets().List(context.Background(), metav1.ListOptions{})
		if err == nil && slices.ContainsFunc(list.Items, func(o networkv1.HostSubnet) bool { return len(o.EgressCIDRs) > 0 }) {
			err = fmt.Errorf("ranges remain: %v", list.Items)
		}
		return err
	})
	for _, args := range [][]string{
		{"set-namespace"}, {"set-namespace", "shop"}, {"set-namespace", "shop", "x"}, {"set-namespace", "shop", "192.0.2.10", "192.0.2.10"}, {"set-namespace", "shop", "--none", "192.0.2.10"},
		{"set-node"}, {"set-node", "node1"}, {"set-node", "node1", "--none", "--cidr=192.0.2.0/24"}, {"set-node", "node1", "192.0.2.1", "--cidr=192.0.2.0/24"}, {"x"},
	} {
		u.wants(t, exitUsage, "", "--help' for usage", append([]string{"egress-ips"}, args...)...)
	}
}
