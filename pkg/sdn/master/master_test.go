package master_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/master"
	"github.com/ovsdn/ovsdn/test/apitest"
	"github.com/ovsdn/ovsdn/test/lab/controlplane"
)

// TestMaster runs the controller against a real API server, with the permissions in deploy/rbac.
func TestMaster(t *testing.T) {
	admin := apitest.Start(t)
	if err := controlplane.Apply(t.Context(), admin, os.DirFS("../../../deploy/rbac")); err != nil {
		t.Fatal(err)
	}
	c := &cluster{admin: admin, master: apitest.AsServiceAccount(admin, "ovsdn-system", "ovsdn-controller")}
	c.kube, c.network = apitest.Clients(t, admin)
	for _, tc := range []struct {
		name string
		test func(*testing.T, *cluster)
	}{
		{"creates the ClusterNetwork from its flags", testCreatesClusterNetwork},
		{"uses a ClusterNetwork that differs from its flags", testUsesStoredNetwork},
		{"waits until an invalid ClusterNetwork is corrected", testWaitsForCorrection},
		{"allocates subnets in OpenShift's order", testOrder},
		{"reconciles changes during its restart", testRestart},
		{"assigns an address to one node only", testUniqueHostIP},
		{"updates a node's address", testHostIP},
		{"gives a returning Node its subnet back", testNodeReturns},
		{"gives no Node the subnet of another with its address", testAddressInTurn},
		{"releases the subnet of a deleted Node for a waiting one", testReleasesRetained},
		{"reports an edited HostSubnet", testEditedHostSubnet},
		{"reports a full range, and allocates when a subnet is released", testFullRange},
		{"accepts additional and extended ranges", testExtendsRanges},
		{"accepts any change before nodes exist", testNothingInUse},
		{"refuses changes that conflict with subnets in use", testRefusesChange},
		{"accepts a refused change when nothing in use conflicts with it", testAcceptsLater},
		{"retains the accepted network", testRetainsAccepted},
		{"does not create a deleted ClusterNetwork from its flags", testDeletedClusterNetwork},
		{"does not allocate subnets of external machines", testExternal},
		{"allocates subnets of external machines", testExternalWithoutSubnet},
		{"allocates VNIDs, and changes them in mode multitenant only", testNetNamespaces},
		{"reports policies that can't be enforced", testPolicies},
		{"reports what is not supported", testUnsupported},
		{"sets the conditions of EgressNetworkPolicies", testEgressPolicies},
		{"assigns egress IPs, and reports conflicts", testEgressIPs},
		{"writes only objects that the CRDs accept", testCRDs},
		{"one of two leads, and releases the lease when it stops", testTakeover},
		{"a leader without the API server stops leading, and leads again", testUnreachableAPIServer},
		{"late writes of a leader allocate nothing twice", testLateWrites},
		{"a superseded leader does not write the ClusterNetwork", testSuperseded},
		{"a write of another leader between two terms conflicts", testTwoTerms},
		{"waits for the API server", testWaitsForServer},
		{"waits for the CRDs", testWaitsForCRDs}, // last, because it deletes CRDs
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Cleanup(func() { c.wipe(t) })
			tc.test(t, c)
		})
	}
}

func testCreatesClusterNetwork(t *testing.T, c *cluster) {
	c.run(t, func(cfg *master.Config) {
		cfg.ClusterNetworks = []string{"10.128.0.0/14", "10.1.0.0/16"}
		cfg.MTU = 1400
	})
	got := c.clusterNetwork(t)
	if len(got.ManagedFields) != 1 || got.ManagedFields[0].Manager != "ovsdn-controller" {
		t.Errorf("managed fields do not name ovsdn-controller: %v", got.ManagedFields)
	}
	port, mtu := uint32(4789), uint32(1400)
	want := &networkv1.ClusterNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Network:    "10.128.0.0/14", HostSubnetLength: 9,
		ServiceNetwork: "172.30.0.0/16",
		PluginName:     "redhat/openshift-ovs-subnet",
		ClusterNetworks: []networkv1.ClusterNetworkEntry{
			{CIDR: "10.128.0.0/14", HostSubnetLength: 9}, {CIDR: "10.1.0.0/16", HostSubnetLength: 9},
		},
		VXLANPort: &port, MTU: &mtu,
	}
	got.ObjectMeta = metav1.ObjectMeta{Name: got.Name}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	c.accepted(t, "True", "Accepted", "active: 10.128.0.0/14 with 9 host bits, 10.1.0.0/16 with 9 host bits; services 172.30.0.0/16; mode subnet; VXLAN port 4789; MTU 1400",
		"10.128.0.0/14 with 9 host bits", "10.1.0.0/16 with 9 host bits")
}

func testUsesStoredNetwork(t *testing.T, c *cluster) {
	stored := c.store(t, "redhat/openshift-ovs-networkpolicy", "10.9.0.0/16")
	c.addNode(t, "node1", "192.0.2.1")
	c.run(t, nil)
	c.hostSubnet(t, "node1", has("10.9.0.0/23"))
	c.event(t, "ClusterNetwork", "default", "DiffersFromFlags",
		"mode is networkpolicy in the object, and subnet in the flags; "+
			"cluster network is [10.9.0.0/16 with 9 host bits] in the object, and [10.128.0.0/14 with 9 host bits] in the flags")
	c.accepted(t, "True", "Accepted", "", "10.9.0.0/16 with 9 host bits")
	got := c.clusterNetwork(t)
	got.ObjectMeta, stored.ObjectMeta = metav1.ObjectMeta{}, metav1.ObjectMeta{} // the controller writes annotations only
	if diff := cmp.Diff(stored, got); diff != "" {
		t.Error(diff)
	}
}

func testWaitsForCorrection(t *testing.T, c *cluster) {
	c.store(t, "subnet", "10.9.0.7/16")
	c.addNode(t, "node1", "192.0.2.1")
	address := reserveAddress(t)
	c.run(t, func(cfg *master.Config) { cfg.HealthzAddress = address })
	c.event(t, "ClusterNetwork", "default", "InvalidClusterNetwork", "10.9.0.7/16 has bits set behind its mask: write 10.9.0.0/16")
	wantProbe(t, address, "/healthz", http.StatusOK, "ok\n")
	wantProbe(t, address, "/readyz", http.StatusServiceUnavailable, "waiting for a valid ClusterNetwork default\n")
	c.edit(t, func(o *networkv1.ClusterNetwork) { o.ClusterNetworks[0].CIDR = "10.9.0.0/16" })
	c.hostSubnet(t, "node1", has("10.9.0.0/23"))
	c.accepted(t, "True", "Accepted", "", "10.9.0.0/16 with 9 host bits")
	wantProbe(t, address, "/readyz", http.StatusOK, "ok\n")
}

func testOrder(t *testing.T, c *cluster) {
	c.run(t, withoutElection) // in one term: the allocator of the next term starts with the first subnet
	for i, want := range []string{
		"10.128.0.0/23", "10.129.0.0/23", "10.130.0.0/23", "10.131.0.0/23", "10.128.2.0/23", "10.129.2.0/23",
	} {
		name := fmt.Sprint("node", i+1)
		node := c.addNode(t, name, fmt.Sprint("192.0.2.", i+1))
		got := c.hostSubnet(t, name, nil)
		got.ObjectMeta = metav1.ObjectMeta{Name: got.Name, Annotations: got.Annotations}
		if diff := cmp.Diff(&networkv1.HostSubnet{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"pod.network.openshift.io/node-uid": string(node.UID)}},
			Host:       name, HostIP: fmt.Sprint("192.0.2.", i+1), Subnet: want,
		}, got); diff != "" {
			t.Error(diff)
		}
	}
	// A released subnet is allocated again only after all others.
	c.deleteNode(t, "node2")
	c.waitCount(t, 5)
	c.addNode(t, "node7", "192.0.2.7")
	c.hostSubnet(t, "node7", has("10.130.2.0/23"))
}

func testRestart(t *testing.T, c *cluster) {
	const count = 50
	nodes := map[string]*corev1.Node{}
	for i := range count {
		name := fmt.Sprint("node", i+1)
		nodes[name] = c.addNode(t, name, fmt.Sprint("192.0.2.", i+1))
	}
	_, stop := c.run(t, nil)
	first := c.waitCount(t, count)

	wantFirstSubnets(t, first, nodes)
	stop()

	// While no controller runs, a node is deleted, one is re-created, one changes its address, and one is created.
	c.deleteNode(t, "node7")
	c.deleteNode(t, "node8")
	recreated := c.addNode(t, "node8", "192.0.2.88")
	c.setAddress(t, "node9", "192.0.2.99")
	c.addNode(t, "node51", "192.0.2.51")

	c.run(t, nil)
	c.hostSubnet(t, "node8", func(hs *networkv1.HostSubnet) error {
		if hs.Annotations[networkv1.NodeUIDAnnotation] != string(recreated.UID) || hs.HostIP != "192.0.2.88" {
			return fmt.Errorf("got the HostSubnet of the deleted Node: %+v", hs)
		}
		return nil
	})
	c.hostSubnet(t, "node9", func(hs *networkv1.HostSubnet) error {
		if hs.HostIP != "192.0.2.99" || hs.Subnet != first["node9"].Subnet {
			return fmt.Errorf("got subnet %s and hostIP %s of node9", hs.Subnet, hs.HostIP)
		}
		return nil
	})
	c.hostSubnet(t, "node51", nil) // waitCount then returns when that of node7 is deleted
	second := c.waitCount(t, count)
	subnets := map[string]string{}
	for name, hs := range second {
		if other, twice := subnets[hs.Subnet]; twice {
			t.Errorf("got subnet %s of %s and of %s", hs.Subnet, name, other)
		}
		subnets[hs.Subnet] = name
		if before, ok := first[name]; ok && name != "node8" && name != "node9" && before.ResourceVersion != hs.ResourceVersion {
			t.Errorf("HostSubnet %s was written: %s, was %s", name, hs.Subnet, before.Subnet)
		}
	}
	if _, ok := second["node7"]; ok {
		t.Error("deleted node7 has a HostSubnet")
	}
}

// wantFirstSubnets checks that the HostSubnets are of these nodes, and have the first subnets in order, which are disjoint.
func wantFirstSubnets(t *testing.T, hostSubnets map[string]networkv1.HostSubnet, nodes map[string]*corev1.Node) {
	t.Helper()
	var want, got []string
	for i := range len(nodes) {
		want = append(want, fmt.Sprintf("10.%d.%d.0/23", 128+i%4, i/4*2))
	}
	for name, hs := range hostSubnets {
		got = append(got, hs.Subnet)
		if uid := hs.Annotations[networkv1.NodeUIDAnnotation]; uid != string(nodes[name].UID) {
			t.Errorf("HostSubnet %s: got node UID %q, want %q", name, uid, nodes[name].UID)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func testHostIP(t *testing.T, c *cluster) {
	c.run(t, nil)
	c.addNode(t, "node1", "fd00::1")
	c.event(t, "Node", "node1", "NodeAddressUnusable", "is not an IPv4 address")
	c.condition(t, "node1", "True", "NoHostSubnet", "is not an IPv4 address")
	for _, address := range []string{"192.0.2.1", "192.0.2.2"} {
		c.setAddress(t, "node1", address)
		c.hostSubnet(t, "node1", func(hs *networkv1.HostSubnet) error {
			if hs.HostIP != address {
				return fmt.Errorf("got hostIP %s, want %s", hs.HostIP, address)
			}
			return nil
		})
	}
	hs := c.hostSubnet(t, "node1", nil)
	hs.HostIP = "192.0.2.200"
	must(c.network.NetworkV1().HostSubnets().Update(t.Context(), hs, metav1.UpdateOptions{}))(t)
	c.hostSubnet(t, "node1", func(hs *networkv1.HostSubnet) error {
		if hs.HostIP != "192.0.2.2" {
			return errors.New("the edited address was not corrected")
		}
		return nil
	})
}

// edited updates the HostSubnet and returns it.
func (c *cluster) edited(t *testing.T, name string, edit func(*networkv1.HostSubnet)) (hs *networkv1.HostSubnet) {
	t.Helper()
	eventually(t, func(ctx context.Context) (err error) {
		if hs, err = c.network.NetworkV1().HostSubnets().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		edit(hs)
		hs, err = c.network.NetworkV1().HostSubnets().Update(ctx, hs, metav1.UpdateOptions{})
		return err
	})
	return hs
}

func testEditedHostSubnet(t *testing.T, c *cluster) {
	c.run(t, withoutElection) // in one term: the allocator of the next term starts with the first subnet
	for i := range 2 {
		c.addNode(t, fmt.Sprint("node", i+1), fmt.Sprint("192.0.2.", i+1))
		c.hostSubnet(t, fmt.Sprint("node", i+1), nil)
	}
	write := func(subnet string) *networkv1.HostSubnet {
		t.Helper()
		return c.edited(t, "node1", func(hs *networkv1.HostSubnet) { hs.Subnet = subnet })
	}
	for subnet, message := range map[string]string{
		"10.9.0.0/23":   "10.9.0.0/23 lies outside of the cluster network 10.128.0.0/14: write back 10.128.0.0/23",
		"10.130.0.0/24": "is a /24, but in the cluster network 10.128.0.0/14 with 9 host bits a node has a /23: write back 10.128.0.0/23",
		"10.129.0.0/23": "10.129.0.0/23 overlaps 10.129.0.0/23 of HostSubnet node2: write back 10.128.0.0/23",
		"10.128.0.9/23": "10.128.0.9/23 has bits set behind its mask: write 10.128.0.0/23",
	} {
		edited := write(subnet)
		c.event(t, "Node", "node1", "InvalidHostSubnet", message)
		if now := c.hostSubnet(t, "node1", nil); now.ResourceVersion != edited.ResourceVersion {
			t.Errorf("the edited HostSubnet was overwritten: %+v", now)
		}
		write("10.128.0.0/23")
	}
	// The subnets of the edits are free again, and the node's own is not. The second correction of the address shows that the
	// reconciliation of the first has ended.
	for _, address := range []string{"192.0.2.200", "192.0.2.201"} {
		c.edited(t, "node1", func(hs *networkv1.HostSubnet) { hs.HostIP = address })
		c.hostSubnet(t, "node1", func(hs *networkv1.HostSubnet) error {
			if hs.HostIP != "192.0.2.1" {
				return errors.New("the edited address was not corrected")
			}
			return nil
		})
	}
	c.addNode(t, "node3", "192.0.2.3")
	c.hostSubnet(t, "node3", has("10.130.0.0/23"))

	// A deleted HostSubnet is re-created with the node's previous subnet.
	write("10.9.0.0/23")
	if err := c.network.NetworkV1().HostSubnets().Delete(t.Context(), "node1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.hostSubnet(t, "node1", has("10.128.0.0/23"))
}

func testFullRange(t *testing.T, c *cluster) {
	c.run(t, func(cfg *master.Config) { cfg.ClusterNetworks = []string{"10.128.0.0/22"} })
	c.addNode(t, "node1", "192.0.2.1")
	c.addNode(t, "node2", "192.0.2.2")
	released := c.waitCount(t, 2)["node1"].Subnet
	c.addNode(t, "node3", "192.0.2.3")
	const full = "no subnet is free in the cluster network 10.128.0.0/22 with 9 host bits"
	c.event(t, "Node", "node3", "NoHostSubnet", full)
	c.condition(t, "node3", "True", "NoHostSubnet", full)
	c.deleteNode(t, "node1")
	c.hostSubnet(t, "node3", has(released))
	c.condition(t, "node3", "True", "HostSubnetGiven", released)
	for _, name := range []string{"node2", "node3"} {
		node := must(c.kube.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{}))(t)
		if c := config.NetworkUnavailable(node); (c == nil) != (name == "node2") {
			t.Errorf("Node %s: got NetworkUnavailable %+v", name, c)
		}
	}
}

func testExternal(t *testing.T, c *cluster) {
	external := &networkv1.HostSubnet{
		ObjectMeta: metav1.ObjectMeta{Name: "f5", Annotations: map[string]string{networkv1.AssignHostSubnetAnnotation: "true"}},
		Host:       "f5", HostIP: "192.0.2.100", Subnet: "10.128.0.0/23",
	}
	manual := &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: "manual"}, Host: "manual", HostIP: "192.0.2.101", Subnet: "10.129.1.0/24"}
	for _, hs := range []*networkv1.HostSubnet{external, manual} {
		must(c.network.NetworkV1().HostSubnets().Create(t.Context(), hs, metav1.CreateOptions{}))(t)
	}
	before := c.hostSubnets(t)
	c.run(t, nil)
	c.addNode(t, "node1", "192.0.2.1")
	c.hostSubnet(t, "node1", has("10.130.0.0/23"))
	after := c.hostSubnets(t)
	delete(after, "node1")
	if diff := cmp.Diff(before, after); diff != "" {
		t.Error(diff)
	}
}
