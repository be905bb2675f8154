package master_test

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkv1 "github.com/openshift/api/network/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/master"
)

// setRanges writes the ranges, with 9 host bits each.
func setRanges(cidrs ...string) func(*networkv1.ClusterNetwork) {
	return func(o *networkv1.ClusterNetwork) {
		o.Network, o.HostSubnetLength, o.ClusterNetworks = "", 0, nil
		for _, cidr := range cidrs {
			o.ClusterNetworks = append(o.ClusterNetworks, networkv1.ClusterNetworkEntry{CIDR: cidr, HostSubnetLength: 9})
		}
	}
}

func (c *cluster) addNodes(t *testing.T, from, to int) {
	t.Helper()
	for i := from; i <= to; i++ {
		c.addNode(t, fmt.Sprint("node", i), fmt.Sprint("192.0.2.", i))
	}
}

// versions returns the resource versions of all HostSubnets, which change with every write.
func (c *cluster) versions(t *testing.T) map[string]string {
	t.Helper()
	list := map[string]string{}
	for name, hs := range c.hostSubnets(t) {
		list[name] = hs.ResourceVersion
	}
	return list
}

func testExtendsRanges(t *testing.T, c *cluster) {
	c.run(t, func(cfg *master.Config) { cfg.ClusterNetworks = []string{"10.128.0.0/22"} })
	c.addNodes(t, 1, 2)
	c.waitCount(t, 2)
	before := c.versions(t)
	c.addNodes(t, 3, 3)
	c.condition(t, "node3", "True", "NoHostSubnet", "no subnet is free")

	// A shorter mask.
	c.edit(t, setRanges("10.128.0.0/21"))
	c.accepted(t, "True", "Accepted", "active: 10.128.0.0/21 with 9 host bits", "10.128.0.0/21 with 9 host bits")
	c.hostSubnet(t, "node3", has("10.128.4.0/23"))
	c.condition(t, "node3", "True", "HostSubnetGiven", "10.128.4.0/23")
	c.eventOf(t, "Normal", "ClusterNetwork", "default", "AcceptedClusterNetwork", "10.128.0.0/21 with 9 host bits")

	// A second range.
	c.addNodes(t, 4, 4)
	c.hostSubnet(t, "node4", has("10.128.6.0/23"))
	c.addNodes(t, 5, 6)
	c.condition(t, "node5", "True", "NoHostSubnet", "no subnet is free in the cluster network 10.128.0.0/21")
	c.condition(t, "node6", "True", "NoHostSubnet", "no subnet is free in the cluster network 10.128.0.0/21")
	c.edit(t, setRanges("10.128.0.0/21", "10.9.0.0/22"))
	c.accepted(t, "True", "Accepted", "", "10.128.0.0/21 with 9 host bits", "10.9.0.0/22 with 9 host bits")
	six := c.waitCount(t, 6)
	outside := 0
	for _, hs := range six {
		if hs.Subnet == "10.9.0.0/23" || hs.Subnet == "10.9.2.0/23" {
			outside++
		}
	}
	if outside != 2 {
		t.Errorf("got %d subnets of the new range, want 2: %v", outside, six)
	}
	after := c.versions(t)
	maps.DeleteFunc(after, func(name, _ string) bool { return name != "node1" && name != "node2" })
	if diff := cmp.Diff(before, after); diff != "" {
		t.Error("HostSubnets of nodes that had a subnet were written:", diff)
	}
}

func testNothingInUse(t *testing.T, c *cluster) {
	c.run(t, nil)
	c.accepted(t, "True", "Accepted", "", "10.128.0.0/14 with 9 host bits")
	c.edit(t, func(o *networkv1.ClusterNetwork) {
		port, mtu := uint32(4790), uint32(1400)
		setRanges("10.9.0.0/16")(o)
		o.ServiceNetwork, o.VXLANPort, o.MTU = "172.16.0.0/16", &port, &mtu
		o.Annotations[config.RoutableMTUAnnotation], o.Annotations[config.NonMasqueradeCIDRsAnnotation] = "1300", "10.0.0.0/8"
	})
	c.accepted(t, "True", "Accepted", "services 172.16.0.0/16; mode subnet; VXLAN port 4790; MTU 1400 (routable 1300); not masqueraded [10.0.0.0/8]", "10.9.0.0/16 with 9 host bits")
	c.edit(t, func(o *networkv1.ClusterNetwork) { o.Annotations[config.NonMasqueradeCIDRsAnnotation] = "10.0.0.0" })
	c.accepted(t, "False", "Invalid", `annotation ovsdn.io/non-masquerade-cidrs: "10.0.0.0" is not an IPv4 network`, "10.9.0.0/16 with 9 host bits")
	c.addNode(t, "node1", "192.0.2.1")
	c.hostSubnet(t, "node1", has("10.9.0.0/23"))
}

func testRefusesChange(t *testing.T, c *cluster) {
	_, stop := c.run(t, nil)
	c.addNodes(t, 1, 2)
	c.waitCount(t, 2)
	const running = "10.128.0.0/14 with 9 host bits"
	revert := func(o *networkv1.ClusterNetwork) {
		port := uint32(4789)
		setRanges("10.128.0.0/14")(o)
		o.ServiceNetwork, o.PluginName, o.VXLANPort, o.MTU = "172.30.0.0/16", "redhat/openshift-ovs-subnet", &port, nil
	}
	for i, tc := range []struct {
		edit              func(*networkv1.ClusterNetwork)
		reason, event     string
		message, message2 string
	}{
		{setRanges("10.128.0.0/16"), "InUse", "RefusedClusterNetwork",
			"lies outside of the cluster network 10.128.0.0/16", "still active: " + running},
		{setRanges("10.9.0.0/16"), "InUse", "RefusedClusterNetwork",
			"HostSubnet node1 is in use: 10.12", "HostSubnet node2 is in use: 10.12"},
		{func(o *networkv1.ClusterNetwork) {
			setRanges("10.128.0.0/14")(o)
			o.ClusterNetworks[0].HostSubnetLength = 8
		}, "InUse", "RefusedClusterNetwork",
			"is a /23, but in the cluster network 10.128.0.0/14 with 8 host bits a node has a /24", ""},
		{setRanges("10.128.0.0/14", "192.0.0.0/16"), "InUse", "RefusedClusterNetwork",
			"node node1: its address 192.0.2.1 lies inside 192.0.0.0/16", ""},
		{func(o *networkv1.ClusterNetwork) { o.ServiceNetwork, o.PluginName = "172.31.0.0/16", "multitenant" }, "InUse", "RefusedClusterNetwork",
			"serviceNetwork: it can't move from 172.30.0.0/16 to 172.31.0.0/16", "mode subnet"},
		{func(o *networkv1.ClusterNetwork) { o.PluginName = "redhat/openshift-ovs-flat" }, "Invalid", "InvalidClusterNetwork",
			`"redhat/openshift-ovs-flat" is not a mode`, "still active: " + running},
		{setRanges("10.128.0.5/14", "10.129.0.0/16", "172.30.0.0/20"), "Invalid", "InvalidClusterNetwork",
			"10.128.0.5/14 has bits set behind its mask", "clusterNetworks[1].CIDR: 10.129.0.0/16 overlaps 10.128.0.0/14"},
	} {
		c.edit(t, tc.edit)
		c.accepted(t, "False", tc.reason, tc.message, running)
		c.accepted(t, "False", tc.reason, tc.message2, running)
		c.event(t, "ClusterNetwork", "default", tc.event, tc.message)
		// The accepted network stays active.
		name := fmt.Sprint("node", 3+i)
		c.addNode(t, name, fmt.Sprint("192.0.2.", 3+i))
		c.hostSubnet(t, name, fits)
		c.edit(t, revert)
		c.accepted(t, "True", "Accepted", "", running)
	}

	// A controller that starts with the invalid object does the same.
	c.edit(t, setRanges("10.9.0.0/16"))
	c.accepted(t, "False", "InUse", "", running)
	stop()
	before := c.versions(t)
	c.run(t, nil)
	c.addNode(t, "late", "192.0.2.100")
	c.hostSubnet(t, "late", fits)
	c.accepted(t, "False", "InUse", "", running)
	after := c.versions(t)
	delete(after, "late")
	if diff := cmp.Diff(before, after); diff != "" {
		t.Error(diff)
	}
	c.edit(t, revert)
	c.accepted(t, "True", "Accepted", "", running)
}

func testAcceptsLater(t *testing.T, c *cluster) {
	if testing.Short() {
		t.Skip("complete tier: waits for a retry after 10 s")
	}
	c.run(t, nil)
	c.addNodes(t, 1, 1)
	c.hostSubnet(t, "node1", has("10.128.0.0/23"))
	c.addNodes(t, 2, 2)
	c.hostSubnet(t, "node2", has("10.129.0.0/23"))
	c.edit(t, setRanges("10.129.0.0/16"))
	c.accepted(t, "False", "InUse", "HostSubnet node1 is in use", "10.128.0.0/14 with 9 host bits")
	c.deleteNode(t, "node1")
	c.accepted(t, "True", "Accepted", "active: 10.129.0.0/16 with 9 host bits", "10.129.0.0/16 with 9 host bits")
	c.eventOf(t, "Normal", "ClusterNetwork", "default", "AcceptedClusterNetwork", "10.129.0.0/16 with 9 host bits")
	c.addNodes(t, 3, 3)
	c.hostSubnet(t, "node3", has("10.129.2.0/23"))
}

// fits returns an error unless the subnet is in 10.128.0.0/14.
func fits(hs *networkv1.HostSubnet) error {
	h, err := config.ParseHostSubnet(hs)
	if err == nil && !netip.MustParsePrefix("10.128.0.0/14").Contains(h.Subnets[0].Addr()) {
		err = fmt.Errorf("%s has %s", hs.Name, hs.Subnet)
	}
	return err
}

// The flags apply only in a cluster without a ClusterNetwork. The active network outlives its object and annotations.
func testRetainsAccepted(t *testing.T, c *cluster) {
	c.store(t, "subnet", "10.9.0.0/16")
	_, stop := c.run(t, nil)
	c.addNodes(t, 1, 1)
	c.hostSubnet(t, "node1", has("10.9.0.0/23"))
	const running = "10.9.0.0/16 with 9 host bits"
	other, err := config.ParseNetwork(&networkv1.ClusterNetwork{
		PluginName: "subnet", ServiceNetwork: "172.30.0.0/16",
		ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: "10.128.0.0/14", HostSubnetLength: 9}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{"nonsense", "{}", must(other.Accepted())(t), ""} {
		c.edit(t, func(o *networkv1.ClusterNetwork) {
			for _, key := range []string{config.AcceptedAnnotation, config.ConditionsAnnotation} {
				o.Annotations[key] = value
				if value == "" {
					delete(o.Annotations, key)
				}
			}
		})
		c.accepted(t, "True", "Accepted", "", running)
	}

	if err := c.network.NetworkV1().ClusterNetworks().Delete(t.Context(), "default", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.accepted(t, "True", "Accepted", "", running)
	if got := c.clusterNetwork(t); got.ClusterNetworks[0].CIDR != "10.9.0.0/16" {
		t.Errorf("re-created as %+v", got)
	}

	// Annotations that are lost while no controller runs: subnets of nodes are not allocated again.
	stop()
	c.edit(t, func(o *networkv1.ClusterNetwork) { o.Annotations = nil })
	c.run(t, nil)
	c.accepted(t, "True", "Accepted", "", running)
	c.addNodes(t, 2, 2)
	c.hostSubnet(t, "node2", has("10.9.2.0/23"))
	c.hostSubnet(t, "node1", has("10.9.0.0/23"))
}

// The object is deleted while no controller runs: nodes retain their subnets, and the next controller waits until the object is restored.
func testDeletedClusterNetwork(t *testing.T, c *cluster) {
	c.store(t, "subnet", "10.9.0.0/16")
	_, stop := c.run(t, nil)
	c.addNodes(t, 1, 1)
	c.hostSubnet(t, "node1", has("10.9.0.0/23"))
	stop()
	if err := c.network.NetworkV1().ClusterNetworks().Delete(t.Context(), "default", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.run(t, nil)
	c.event(t, "ClusterNetwork", "default", "ClusterNetworkDeleted", "nodes have HostSubnets, such as node1")
	if _, err := c.network.NetworkV1().ClusterNetworks().Get(t.Context(), "default", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("got ClusterNetwork default (error %v), want none", err)
	}
	c.store(t, "subnet", "10.9.0.0/16")
	c.addNodes(t, 2, 2)
	c.hostSubnet(t, "node2", has("10.9.2.0/23"))
	c.hostSubnet(t, "node1", has("10.9.0.0/23"))
}
