package remotenodes

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	"github.com/openshift/client-go/network/clientset/versioned/fake"
	networklisters "github.com/openshift/client-go/network/listers/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/fakeapi"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

const timeout = 90 * time.Second

func hostSubnet(node, hostIP, subnet string) *networkv1.HostSubnet {
	return &networkv1.HostSubnet{
		ObjectMeta: metav1.ObjectMeta{Name: node}, Host: node, HostIP: hostIP, Subnet: subnet,
	}
}

// fixture runs the feature on a switch, as the agent of node1.
type fixture struct {
	*testing.T
	client networkclient.Interface
	vteps  *fakeVTEPs
	flows  func() []string
	stop   func()
}

// fakeBridge is a switch that starts empty.
type fakeBridge struct{ *ovs.Fake }

func (fakeBridge) DumpFlows(context.Context) ([]ovs.DumpedFlow, error) { return nil, nil }

func start(t *testing.T, objects ...*networkv1.HostSubnet) *fixture {
	t.Helper()
	fake := ovs.NewFake("br0")
	if err := fake.EnsureBridge(t.Context(), ovs.Bridge{Name: "br0", DatapathType: "netdev"}); err != nil {
		t.Fatal(err)
	}
	return startOn(t, fakeBridge{fake}, fake.Flows, objects...)
}

// startOn runs the feature on the bridge until stop, or the test's end.
func startOn(t *testing.T, bridge interface {
	ovs.Interface
	Bridge
}, flows func() []string, objects ...*networkv1.HostSubnet) *fixture {
	t.Helper()
	return startIn(t, config.ModeSubnet, bridge, flows, objects...)
}

func startIn(t *testing.T, mode config.Mode, bridge interface {
	ovs.Interface
	Bridge
}, flows func() []string, objects ...*networkv1.HostSubnet) *fixture {
	t.Helper()
	f := &fixture{T: t, client: fake.NewSimpleClientset(), vteps: &fakeVTEPs{}, flows: flows}
	if fake, ok := bridge.(fakeBridge); ok {
		f.vteps.flows = fake.Flows
	}
	for _, o := range objects {
		f.create(o)
	}
	network := &config.Network{
		Mode:            mode,
		ClusterNetworks: []config.ClusterNetwork{{Prefix: netip.MustParsePrefix("10.128.0.0/14"), HostBits: 9}},
		ServiceNetwork:  netip.MustParsePrefix("172.30.0.0/16"),
		VXLANPort:       config.DefaultVXLANPort,
	}
	informer := fakeapi.NewInformer(f.client.NetworkV1().HostSubnets(), &networkv1.HostSubnet{})
	st := flowstore.New(bridge)
	node := pipeline.Node{Mode: mode, VTEP: netip.MustParseAddr("172.31.0.11"), Subnets: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/23")}}
	p, err := New("node1", network, node,
		networklisters.NewHostSubnetLister(informer.GetIndexer()), informer, bridge, f.vteps, st)
	if err != nil {
		t.Fatal(err)
	}
	f.stop = fakeapi.Run(t, informer, p, st)
	return f
}

func (f *fixture) create(o *networkv1.HostSubnet) {
	f.Helper()
	if _, err := f.client.NetworkV1().HostSubnets().Create(f.Context(), o, metav1.CreateOptions{}); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) update(o *networkv1.HostSubnet) {
	f.Helper()
	if _, err := f.client.NetworkV1().HostSubnets().Update(f.Context(), o, metav1.UpdateOptions{}); err != nil {
		f.Fatal(err)
	}
}

// want waits until the switch has exactly this replication list of multicast and these remote subnets with their VTEPs.
func (f *fixture) want(multicast string, remote map[string]string) {
	f.Helper()
	await.OK(f, timeout, func(context.Context) error {
		got, list := f.state()
		if list != multicast || !maps.Equal(got, remote) {
			return fmt.Errorf("got remote subnets %v and multicast to %q, want %v and %q", got, list, remote, multicast)
		}
		return nil
	})
}

func between(s, from, to string) string {
	_, rest, _ := strings.Cut(s, from)
	in, _, _ := strings.Cut(rest, to)
	return in
}

func (f *fixture) state() (remote map[string]string, multicast string) {
	remote = map[string]string{}
	for _, flow := range f.flows() {
		switch {
		case strings.Contains(flow, "table=90") && !strings.Contains(flow, "->eth_src"):
			_, match, _ := strings.Cut(flow, "nw_dst=")
			remote[match[:strings.IndexAny(match, ", ")]] = between(flow, "set_field:", "->")
		case strings.Contains(flow, "table=111"):
			var vteps []string
			for _, part := range strings.Split(flow, "set_field:")[1:] {
				vtep, _, _ := strings.Cut(part, "->")
				vteps = append(vteps, vtep)
			}
			multicast = strings.Join(vteps, " ")
		}
	}
	return remote, multicast
}

func TestHostSubnet_createUpdateDelete(t *testing.T) {
	tier.Parallel(t)
	f := start(t,
		hostSubnet("node1", "172.31.0.11", "10.128.0.0/23"), // this node
		hostSubnet("node2", "172.31.0.12", "10.129.0.0/23"))
	f.want("172.31.0.12", map[string]string{"10.129.0.0/23": "172.31.0.12"})

	f.create(hostSubnet("node3", "172.31.0.13", "10.130.0.0/23"))
	f.want("172.31.0.12 172.31.0.13", map[string]string{"10.129.0.0/23": "172.31.0.12", "10.130.0.0/23": "172.31.0.13"})

	f.update(hostSubnet("node3", "172.31.0.23", "10.130.0.0/23"))
	f.want("172.31.0.12 172.31.0.23", map[string]string{"10.129.0.0/23": "172.31.0.12", "10.130.0.0/23": "172.31.0.23"})

	if err := f.client.NetworkV1().HostSubnets().Delete(t.Context(), "node3", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.want("172.31.0.12", map[string]string{"10.129.0.0/23": "172.31.0.12"})
}

// A machine with a fixed VNID treats all multicast as that VNID's, so it must get none of other VNIDs.
func TestMulticast_skipsMachineWithFixedVNID(t *testing.T) {
	tier.Parallel(t)
	machine := hostSubnet("machine", "172.31.0.99", "10.131.0.0/23")
	machine.Annotations = map[string]string{networkv1.FixedVNIDHostAnnotation: "48"}
	f := start(t, machine, hostSubnet("node2", "172.31.0.12", "10.129.0.0/23"))
	remote := map[string]string{"10.129.0.0/23": "172.31.0.12", "10.131.0.0/23": "172.31.0.99"}
	f.want("172.31.0.12", remote)
	machine.Annotations = nil
	f.update(machine)
	f.want("172.31.0.12 172.31.0.99", remote)
}

func TestHostIP_swappedBetweenNodes(t *testing.T) {
	f := start(t, hostSubnet("node2", "172.31.0.12", "10.129.0.0/23"), hostSubnet("node3", "172.31.0.13", "10.130.0.0/23"))
	f.want("172.31.0.12 172.31.0.13", map[string]string{"10.129.0.0/23": "172.31.0.12", "10.130.0.0/23": "172.31.0.13"})

	f.update(hostSubnet("node2", "172.31.0.13", "10.129.0.0/23"))
	f.update(hostSubnet("node3", "172.31.0.12", "10.130.0.0/23"))
	f.want("172.31.0.12 172.31.0.13", map[string]string{"10.129.0.0/23": "172.31.0.13", "10.130.0.0/23": "172.31.0.12"})

	known := slices.DeleteFunc(f.flows(), func(flow string) bool { return !strings.Contains(flow, "tun_src=") })
	const flowsOfEach = 4 // IP and ARP of its subnet, foreign sources, other packets
	if len(known) != 2*flowsOfEach {
		t.Errorf("flows for tunnel sources: got %d, want %d: %v", len(known), 2*flowsOfEach, known)
	}
	f.sources("172.31.0.12", "goto_table:30")
	f.sources("172.31.0.13", "goto_table:30")
}

// While both nodes have the same address, it belongs to the senior one. The flows of neither depend on those of the other.
func TestHostIP_swappedBetweenNodesInModeNetworkPolicy(t *testing.T) {
	tier.Parallel(t)
	fake := ovs.NewFake("br0")
	if err := fake.EnsureBridge(t.Context(), ovs.Bridge{Name: "br0", DatapathType: "netdev"}); err != nil {
		t.Fatal(err)
	}
	node2 := func(ip string) *networkv1.HostSubnet { return node(hostSubnet("node2", ip, "10.129.0.0/23")) }
	node3 := func(ip string) *networkv1.HostSubnet { return node(hostSubnet("node3", ip, "10.130.0.0/23")) }
	f := startIn(t, config.ModeNetworkPolicy, fakeBridge{fake}, fake.Flows, node2("172.31.0.12"), node3("172.31.0.13"))
	f.want("172.31.0.12 172.31.0.13", map[string]string{"10.129.0.0/23": "172.31.0.12", "10.130.0.0/23": "172.31.0.13"})
	f.update(node2("172.31.0.13"))
	f.want("172.31.0.13", map[string]string{"10.129.0.0/23": "172.31.0.13"})
	f.update(node3("172.31.0.12"))
	f.want("172.31.0.12 172.31.0.13", map[string]string{"10.129.0.0/23": "172.31.0.13", "10.130.0.0/23": "172.31.0.12"})
	own := slices.DeleteFunc(f.flows(), func(flow string) bool { return !strings.Contains(flow, "dl_src=0e:58:0a:81:00:01") })
	if len(own) != 2 || strings.Count(strings.Join(own, " "), "tun_src=172.31.0.13") != 2 {
		t.Errorf("got %v for the own packets of node2, want two flows for 172.31.0.13", own)
	}
}

func TestSubnet_movesToAnotherNode(t *testing.T) {
	tier.Parallel(t)
	f := start(t, hostSubnet("node2", "172.31.0.12", "10.129.0.0/23"))
	// The flows of node3 conflict with those of node2 until node2 is deleted.
	f.create(hostSubnet("node3", "172.31.0.13", "10.129.0.0/23"))
	if err := f.client.NetworkV1().HostSubnets().Delete(t.Context(), "node2", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.want("172.31.0.13", map[string]string{"10.129.0.0/23": "172.31.0.13"})
}

func TestInvalidHostSubnet_retainsPreviousState(t *testing.T) {
	tier.Parallel(t)
	f := start(t, hostSubnet("node2", "172.31.0.12", "10.129.0.0/23"))
	f.update(hostSubnet("node2", "172.31.0.12", "10.129.0.77/23"))
	f.create(hostSubnet("node3", "172.31.0.13", "10.130.0.0/23")) // handled after the invalid edit
	f.want("172.31.0.12 172.31.0.13", map[string]string{"10.129.0.0/23": "172.31.0.12", "10.130.0.0/23": "172.31.0.13"})
}

func proposed(o *networkv1.HostSubnet) *networkv1.HostSubnet {
	o.Annotations = map[string]string{config.ProposedAnnotation: ""}
	return o
}

func TestProposedSubnet_ignored(t *testing.T) {
	tier.Parallel(t)
	f := start(t, proposed(hostSubnet("node2", "172.31.0.12", "10.129.0.0/23")), hostSubnet("node3", "172.31.0.13", "10.130.0.0/23"))
	f.want("172.31.0.13", map[string]string{"10.130.0.0/23": "172.31.0.13"})
	f.update(hostSubnet("node2", "172.31.0.12", "10.129.0.0/23"))
	f.want("172.31.0.12 172.31.0.13", map[string]string{"10.129.0.0/23": "172.31.0.12", "10.130.0.0/23": "172.31.0.13"})
	// The node was deleted and created again.
	f.update(proposed(hostSubnet("node2", "172.31.0.12", "10.131.0.0/23")))
	f.want("172.31.0.13", map[string]string{"10.130.0.0/23": "172.31.0.13"})
}

func TestInvalidHostSubnet_recoveredFromFlows(t *testing.T) {
	tier.Parallel(t)
	sw := ovstest.Start(t)
	bridge := native.New(ovstest.Bridge, sw.RunDir)
	t.Cleanup(bridge.Close)
	if err := bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: ovstest.Bridge, DatapathType: "netdev"}); err != nil {
		t.Fatal(err)
	}
	flows := func() []string { return sw.Dump(t) }
	f := startOn(t, bridge, flows, hostSubnet("node2", "172.31.0.12", "10.129.0.0/23"), hostSubnet("node3", "172.31.0.13", "10.130.0.0/23"),
		hostSubnet("node4", "172.31.0.14", "10.131.0.0/23"))
	f.want("172.31.0.12 172.31.0.13 172.31.0.14", map[string]string{
		"10.129.0.0/23": "172.31.0.12", "10.130.0.0/23": "172.31.0.13", "10.131.0.0/23": "172.31.0.14",
	})
	f.stop()

	t.Log("node2 and node4 are invalid, and node6 has the subnet of node4; node3 was deleted; node5 was never valid")
	f = startOn(t, bridge, flows,
		hostSubnet("node2", "172.31.0.12", "10.129.0.77/23"),
		hostSubnet("node4", "172.31.0.14", ""), hostSubnet("node6", "172.31.0.16", "10.131.0.0/23"),
		hostSubnet("node5", "172.31.0.15", "192.168.0.0/23"))
	f.want("172.31.0.12 172.31.0.14 172.31.0.16", map[string]string{"10.129.0.0/23": "172.31.0.12", "10.131.0.0/23": "172.31.0.16"})

	t.Log("node2 is corrected")
	f.update(hostSubnet("node2", "172.31.0.12", "10.128.2.0/23"))
	f.want("172.31.0.12 172.31.0.14 172.31.0.16", map[string]string{"10.128.2.0/23": "172.31.0.12", "10.131.0.0/23": "172.31.0.16"})
}

// fixed turns the HostSubnet into that of a machine outside of the cluster with this fixed VNID.
func fixed(o *networkv1.HostSubnet, vnid string) *networkv1.HostSubnet {
	o.Annotations = map[string]string{networkv1.AssignHostSubnetAnnotation: "true", networkv1.FixedVNIDHostAnnotation: vnid}
	return o
}

// sources waits until the flow that classifies the VTEP's packets by source has these actions; "": until there is no such flow.
func (f *fixture) sources(vtep, actions string) {
	f.Helper()
	await.OK(f, timeout, func(context.Context) error {
		got := ""
		for _, flow := range f.flows() {
			if strings.Contains(flow, "priority=100,ip,tun_src="+vtep+",nw_src=") {
				_, got, _ = strings.Cut(flow, "actions=")
			}
		}
		if got != actions {
			return fmt.Errorf("packets from %s: got actions %q, want %q", vtep, got, actions)
		}
		return nil
	})
}

// The last valid fixed VNID remains active across restarts: VNIs in the machine's packets are not trusted.
func TestInvalidFixedVNID_recoveredFromFlows(t *testing.T) {
	for _, before := range []config.Mode{config.ModeSubnet, config.ModeMultitenant, config.ModeNetworkPolicy} {
		for _, after := range []config.Mode{config.ModeSubnet, config.ModeMultitenant, config.ModeNetworkPolicy} {
			t.Run(before.String()+" to "+after.String(), func(t *testing.T) {
				tier.Parallel(t)
				sw := ovstest.Start(t)
				bridge := native.New(ovstest.Bridge, sw.RunDir)
				t.Cleanup(bridge.Close)
				if err := bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: ovstest.Bridge, DatapathType: "netdev"}); err != nil {
					t.Fatal(err)
				}
				flows := func() []string { return sw.Dump(t) }
				machine := func(vnid string) *networkv1.HostSubnet {
					return fixed(hostSubnet("machine", "172.31.0.99", "10.131.0.0/23"), vnid)
				}
				f := startIn(t, before, bridge, flows, machine("48"), hostSubnet("node2", "172.31.0.12", "10.129.0.0/23"))
				f.sources("172.31.0.99", "load:0x30->NXM_NX_REG0[],goto_table:30")
				f.stop()

				f = startIn(t, after, bridge, flows, machine("48x"),
					fixed(hostSubnet("other", "172.31.0.98", "10.130.0.0/23"), "1"), hostSubnet("node2", "172.31.0.12", "10.129.0.0/23"))
				f.sources("172.31.0.12", "goto_table:30")
				f.sources("172.31.0.99", "load:0x30->NXM_NX_REG0[],goto_table:30")
				f.sources("172.31.0.98", "") // it never had a valid one
				f.stop()

				f = startIn(t, before, bridge, flows, machine("49"))
				f.sources("172.31.0.99", "load:0x31->NXM_NX_REG0[],goto_table:30")
			})
		}
	}
}

func node(o *networkv1.HostSubnet) *networkv1.HostSubnet {
	o.Annotations = map[string]string{networkv1.NodeUIDAnnotation: o.Name + "-uid"}
	return o
}

// An invalid HostSubnet is still that of a node, according to its annotation or its flows.
func TestInvalidHostSubnet_remainsNode(t *testing.T) {
	tier.Parallel(t)
	sw := ovstest.Start(t)
	bridge := native.New(ovstest.Bridge, sw.RunDir)
	t.Cleanup(bridge.Close)
	if err := bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: ovstest.Bridge, DatapathType: "netdev"}); err != nil {
		t.Fatal(err)
	}
	flows := func() []string { return sw.Dump(t) }
	own := func() int {
		return len(slices.DeleteFunc(flows(), func(flow string) bool { return !strings.Contains(flow, "dl_src=0e:58:0a:81:00:01") }))
	}
	for _, run := range []struct {
		mode config.Mode
		o    *networkv1.HostSubnet
		want int
	}{
		{config.ModeSubnet, node(hostSubnet("node2", "172.31.0.12", "10.129.0.0/23")), 0},
		{config.ModeNetworkPolicy, node(hostSubnet("node2", "172.31.0.12", "10.129.0.77/23")), 2},
		{config.ModeMultitenant, hostSubnet("node2", "172.31.0.12", "10.129.0.77/23"), 2}, // the flows show it
		{config.ModeMultitenant, hostSubnet("node2", "172.31.0.12", "10.129.0.0/23"), 0},
	} {
		f := startIn(t, run.mode, bridge, flows, run.o)
		f.want("172.31.0.12", map[string]string{"10.129.0.0/23": "172.31.0.12"})
		await.OK(t, timeout, func(context.Context) error {
			if got := own(); got != run.want {
				return fmt.Errorf("mode %s: flows for packets of the node itself: got %d, want %d", run.mode, got, run.want)
			}
			return nil
		})
		f.stop()
	}
}
