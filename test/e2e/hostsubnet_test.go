package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
)

// The first nodes get the same subnets as with OpenShift SDN.
func TestAllocationOrder(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: needs the shared lab; the order is that of the unit tests of the allocator")
	}
	c := newCluster(t)
	got := map[netip.Prefix]bool{}
	for _, node := range []string{fixture.Node1, fixture.Node2} {
		got[c.Subnet(t, node)] = true
	}
	// Which of the two registers first is chance.
	want := map[netip.Prefix]bool{netip.MustParsePrefix("10.128.0.0/23"): true, netip.MustParsePrefix("10.129.0.0/23"): true}
	if diff := cmp.Diff(fmt.Sprint(want), fmt.Sprint(got)); diff != "" {
		t.Error(diff)
	}
}

// All nodes reach a node that joins, and delete the flows of a node that leaves.
func TestNodeJoinsAndLeaves(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: TestCapabilities adds and removes a node")
	}
	testNodeJoinsAndLeaves(t, newTrio(t))
}

func testNodeJoinsAndLeaves(t *testing.T, x *trio) {
	x.settle(t)
	before := x.footprints(t, fixture.Node1, fixture.Node2)
	added := x.addNode(t)
	subnet := x.Subnet(t, added)
	d := x.Run(t, x.namespace, fixture.Netexec("d", added))[0]
	if !subnet.Contains(d.Addr) {
		t.Errorf("pod %s on %s has the address %s, which is not of %s", d.Name, added, d.Addr, subnet)
	}
	for _, path := range [][2]end{
		{x.a.End(), d.End()}, {x.c.End(), d.End()}, {d.End(), x.a.End()}, {d.End(), x.c.End()},
	} {
		fixture.Meet(t, path[0].NetNS, path[1].Addr)
		testTCP(t, path[0], path[1], path[0].Addr)
	}
	for _, m := range []machine{x.node1, x.node2} {
		fixture.Meet(t, m.NetNS, d.Addr)
	}

	x.leave(t, d, added)
	x.returnsTo(t, before)
	t.Run("subnet is free", func(t *testing.T) {
		// The controller warns of HostSubnets that overlap. First what it must not mind, then what it must.
		began := time.Now()
		x.makeHostSubnet(t, "reuses", "172.31.0.200", subnet.String())
		x.makeHostSubnet(t, "overlaps", "172.31.0.201", x.Subnet(t, fixture.Node2).String())
		x.Warned(t, began, "HostSubnet", "overlaps", "overlaps", fixture.Node2)
		x.notWarned(t, began, "HostSubnet", "reuses", controllerService)
	})
	x.returnsTo(t, before) // the next part compares with the current state
}

// makeHostSubnet makes one for a machine that there is not, which goes with the test.
func (c *cluster) makeHostSubnet(t *testing.T, name, hostIP, subnet string) {
	t.Helper()
	_, err := c.Network.NetworkV1().HostSubnets().Create(t.Context(), &networkv1.HostSubnet{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Host: name, HostIP: hostIP, Subnet: subnet,
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), fixture.SyncTime)
		defer cancel()
		if err := c.Network.NetworkV1().HostSubnets().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// editHostSubnet changes fields, as `kubectl edit` would.
func (c *cluster) editHostSubnet(t *testing.T, name string, fields map[string]string) {
	t.Helper()
	var pairs []string
	for field, value := range fields {
		pairs = append(pairs, fmt.Sprintf("%q:%q", field, value))
	}
	patch := []byte("{" + strings.Join(pairs, ",") + "}")
	if _, err := c.Network.NetworkV1().HostSubnets().Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// While nodes swap their addresses, both have the same one for a moment.
func TestHostIPsSwapped(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: needs the shared lab; remotenodes has unit tests of shared addresses")
	}
	c := newCluster(t)
	c.settle(t)
	before := c.footprints(t, fixture.Node1)
	const left, right = "172.31.0.201", "172.31.0.202"
	const leftSubnet, rightSubnet = "10.131.200.0/23", "10.131.202.0/23"
	t.Run("swapped", func(t *testing.T) {
		c.makeHostSubnet(t, "left", left, leftSubnet)
		c.makeHostSubnet(t, "right", right, rightSubnet)
		fixture.Eventually(t, fixture.SyncTime, "tunnels lead to both", c.tunnels(fixture.Node1, map[string]string{leftSubnet: left, rightSubnet: right}))
		c.editHostSubnet(t, "left", map[string]string{"hostIP": right})
		c.editHostSubnet(t, "right", map[string]string{"hostIP": left})
		fixture.Eventually(t, fixture.SyncTime, "tunnels are swapped", c.tunnels(fixture.Node1, map[string]string{leftSubnet: right, rightSubnet: left}))
		// Again with time in between: the shared address belongs to the older, or the first by name.
		c.editHostSubnet(t, "left", map[string]string{"hostIP": left})
		fixture.Eventually(t, fixture.SyncTime, "a tunnel leads to one", c.tunnels(fixture.Node1, map[string]string{leftSubnet: left}))
		c.editHostSubnet(t, "right", map[string]string{"hostIP": right})
		fixture.Eventually(t, fixture.SyncTime, "tunnels are swapped back", c.tunnels(fixture.Node1, map[string]string{leftSubnet: left, rightSubnet: right}))
	})
	c.returnsTo(t, before)
}

// tunnels finds fault unless a node sends to the subnets through these addresses, takes packets from these, and of the
// made-up ones from no other.
func (c *cluster) tunnels(node string, want map[string]string) func(context.Context) error {
	return func(ctx context.Context) error {
		flows, err := c.DumpFlows(ctx, node, "-O", "OpenFlow13")
		if err != nil {
			return err
		}
		expect := func(table, text string) {
			if !slices.Contains(fixture.TableOf(flows, table), text) {
				err = errors.Join(err, fmt.Errorf("table %s has no %q", table, text))
			}
		}
		sources := map[string]bool{}
		for subnet, vtep := range want {
			sources[vtep] = true
			actions := " actions=move:NXM_NX_REG0[]->NXM_NX_TUN_ID[0..31],set_field:" + vtep + "->tun_dst,output:1"
			expect("10", "priority=100,ip,tun_src="+vtep+",nw_src="+subnet+" actions=goto_table:30")
			expect("50", "priority=100,arp,arp_tpa="+subnet+",arp_op=1"+actions)
			expect("90", "priority=100,ip,nw_dst="+subnet+actions)
		}
		known := 0
		for _, f := range fixture.TableOf(flows, "10") {
			if strings.HasPrefix(f, "priority=50,tun_src=172.31.0.20") {
				known++
			}
		}
		if known != len(sources) {
			err = errors.Join(err, fmt.Errorf("table 10 knows %d of the made-up sources, want %d", known, len(sources)))
		}
		return err
	}
}

// sends finds fault unless a node sends to the subnet through the address.
func (c *cluster) sends(node, subnet, vtep string) func(context.Context) error {
	return func(ctx context.Context) error {
		flows, err := c.DumpFlows(ctx, node, "-O", "OpenFlow13")
		if err != nil {
			return err
		}
		want := "priority=100,ip,nw_dst=" + subnet + " actions=move:NXM_NX_REG0[]->NXM_NX_TUN_ID[0..31],set_field:" + vtep + "->tun_dst,output:1"
		if !slices.Contains(fixture.TableOf(flows, "90"), want) {
			return fmt.Errorf("table 90 has no %q", want)
		}
		return nil
	}
}

// An invalid HostSubnet is reported in an Event, and interrupts no traffic, not even with agents that start.
func TestInvalidHostSubnet(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: asserts that no ping is lost; TestCapabilities sees an invalid HostSubnet")
	}
	x := newTrio(t)
	x.settle(t)
	before := x.footprints(t, fixture.Node1, fixture.Node2)
	old := x.Subnet(t, fixture.Node2).String()
	x.losesNothing(t, func() { testNonsense(t, x, before, old) }, streamOf(x.a, x.c))
	t.Run("an unused address", func(t *testing.T) {
		// This the controller knows better.
		x.editHostSubnet(t, fixture.Node2, map[string]string{"hostIP": "172.31.0.77"})
		x.corrected(t, fixture.Node2)
	})
	x.returnsTo(t, before)
}

func testNonsense(t *testing.T, x *trio, before map[string]footprint, old string) {
	for _, tc := range []struct {
		name, subnet string
	}{
		{"outside of the cluster network", "192.168.0.0/23"},
		{"of another size", "10.140.0.0/24"},
		{"with bits behind the mask", "10.129.0.77/23"},
		{"no network at all", "10.129.0.0/0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			began := time.Now()
			x.editHostSubnet(t, fixture.Node2, map[string]string{"subnet": tc.subnet})
			x.Warned(t, began, "Node", fixture.Node2, "HostSubnet "+fixture.Node2, "write back "+old)
			x.killAgent(t, fixture.Node1)
			x.observed(t, fixture.Node1, fixture.Node2)
			x.returnsTo(t, before)
		})
		x.editHostSubnet(t, fixture.Node2, map[string]string{"subnet": old})
	}
}

// A HostSubnet that a user creates over a node's own is reported, and has no effect on the node, even when agents start with it.
func TestHostSubnetsOverlap(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: asserts that no ping is lost")
	}
	x := newTrio(t)
	x.settle(t)
	before := x.footprints(t, fixture.Node1, fixture.Node2)
	x.losesNothing(t, func() {
		t.Run("made", func(t *testing.T) {
			began := time.Now()
			x.makeHostSubnet(t, "intruder", "172.31.0.203", x.Subnet(t, fixture.Node2).String())
			x.Warned(t, began, "HostSubnet", "intruder", "overlaps", fixture.Node2)
			for range 5 { // At its start an agent hears of both at once, in an order that is chance.
				x.killAgent(t, fixture.Node1)
				x.observed(t, fixture.Node1)
			}
		})
	}, streamOf(x.a, x.c))
	x.returnsTo(t, before)
}

// observed returns when agents have heard of all that happened to HostSubnets until now.
func (c *cluster) observed(t *testing.T, nodes ...string) {
	t.Helper()
	t.Run("observed", func(t *testing.T) {
		const vtep, subnet = "172.31.0.209", "10.131.240.0/23"
		c.makeHostSubnet(t, "marker", vtep, subnet)
		for _, node := range nodes {
			fixture.Eventually(t, fixture.PodTime, node+" has heard", c.sends(node, subnet, vtep))
		}
	})
}

// corrected waits until the controller has restored the fields of an edited HostSubnet.
func (c *cluster) corrected(t *testing.T, node string) {
	t.Helper()
	want := c.Addr(t, node).String()
	fixture.Eventually(t, fixture.ProgramTime, "the HostSubnet is corrected", func(ctx context.Context) error {
		h, err := c.Network.NetworkV1().HostSubnets().Get(ctx, node, metav1.GetOptions{})
		if err == nil && (h.HostIP != want || h.Host != node) {
			err = fmt.Errorf("it is for host %s at %s", h.Host, h.HostIP)
		}
		return err
	})
}

// A controller that restarts, or takes over from a killed leader, changes no node's subnet.
func TestControllerKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: TestCapabilities kills the leader")
	}
	c := newCluster(t)
	everyController := func() { c.service(t, lab.ControlPlane, controllerService, (*lab.Service).Kill) }
	testControllerKilled(t, c, everyController, everyController, func() { c.killLeader(t) })
}

// testControllerKilled kills controllers in several ways.
func testControllerKilled(t *testing.T, c *cluster, kills ...func()) {
	subnets := func() map[string]string {
		all := map[string]string{}
		hostSubnets, err := c.Network.NetworkV1().HostSubnets().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range hostSubnets.Items {
			all[h.Name] = h.HostIP + " " + h.Subnet
		}
		return all
	}
	before := subnets()
	for _, kill := range kills {
		kill()
		// Whatever it does wrong at its start, it has done when it corrects this.
		c.editHostSubnet(t, fixture.Node1, map[string]string{"host": "another"})
		c.corrected(t, fixture.Node1)
		if diff := cmp.Diff(before, subnets()); diff != "" {
			t.Errorf("the HostSubnets changed (-before +now):\n%s", diff)
		}
	}
}

// killLeader kills the controller that leads, and no other, and returns when another process leads.
func (c *cluster) killLeader(t *testing.T) {
	t.Helper()
	holder := func(ctx context.Context) (string, error) {
		lease, err := c.Kube.CoordinationV1().Leases("ovsdn-system").Get(ctx, controllerService, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
			return "", errors.New("no controller leads")
		}
		return *lease.Spec.HolderIdentity, nil
	}
	var leader string
	fixture.Eventually(t, fixture.ProgramTime, "a controller leads", func(ctx context.Context) (err error) {
		leader, err = holder(ctx)
		return err
	})
	machine, _, _ := strings.Cut(leader, "_") // the rest is of the process
	if c.Shape().Install == lab.Processes {
		machine = lab.ControlPlane
	}
	t.Logf("kill the leader %s on %s", leader, machine)
	c.service(t, machine, controllerService, (*lab.Service).Kill)
	fixture.Eventually(t, fixture.ProgramTime, "another controller leads", func(ctx context.Context) error {
		next, err := holder(ctx)
		if err == nil && next == leader {
			err = fmt.Errorf("%s leads", next)
		}
		return err
	})
}
