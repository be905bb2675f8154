package networkpolicy

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/egressip"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// packetNode is a node with a datapath and pods that send packets, with the product's flows.
type packetNode struct {
	testNode
	node   *datapath.Node
	world  *datapath.Host
	bridge *native.Native

	outside map[netip.AddrPort]pipeline.OutsideEndpoints // of services
}

// newPacketNode returns a node with three pods in the namespace "a", which have the labels app=0 to app=2 and are isolated.
func newPacketNode(t *testing.T) *packetNode {
	t.Helper()
	network := datapath.New(t, 1)
	n := network.Nodes[0]
	for range 3 {
		n.AddPod(t)
	}
	bridge := native.New(ovstest.Bridge, n.Switch.RunDir)
	t.Cleanup(bridge.Close)
	s := &packetNode{
		node: n, world: network.Outside, bridge: bridge, outside: map[netip.AddrPort]pipeline.OutsideEndpoints{},
		testNode: testNode{store: flowstore.New(bridge), egressIPs: egressip.New(nil), written: map[pipeline.Owner]bool{}, Compiler: NewCompiler(pipeline.Node{
			Mode:            config.ModeNetworkPolicy,
			ClusterNetworks: []netip.Prefix{netip.MustParsePrefix(datapath.ClusterNetwork)},
			ServiceNetwork:  netip.MustParsePrefix(datapath.ServiceNetwork),
			Subnets:         []netip.Prefix{n.Subnet},
			VTEP:            n.VTEP,
			VXLANPort:       4789,
			Userspace:       ovstest.DatapathType(t) == ovstest.DatapathNetdev,
		}, policy.New())},
	}
	cluster := Cluster{OutsideEndpoints: func(addr netip.Addr, _ goovs.Protocol, port uint16) pipeline.OutsideEndpoints {
		return s.outside[netip.AddrPortFrom(addr, port)]
	}}
	s.store.EvaluateConnections(pipeline.Zones(), (&Policies{compiler: s.Compiler, cluster: cluster}).evaluateConnections)
	s.engine.SetNamespace("a", nil)
	for i, p := range n.Pods {
		app := []string{"0", "1", "2"}[i]
		key := policy.PodKey{Namespace: "a", Name: app}
		s.engine.SetPod(policy.Pod{PodKey: key, Labels: map[string]string{"app": app}, Addrs: []netip.Addr{p.Addr}})
		s.AddSandbox(key, pipeline.Owner{Kind: pipeline.KindPod, Key: app}, pipeline.Pod{OFPort: p.OFPort, MAC: p.MAC, Addrs: []netip.Addr{p.Addr}})
		s.engine.Attach(key, p.Addr)
	}
	// The pods are isolated for ingress.
	isolated := allowFrom("a", "none")
	isolated.Spec.PolicyTypes, isolated.Spec.Egress = isolated.Spec.PolicyTypes[:1], nil
	if err := s.engine.SetNetworkPolicy(isolated); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error)
	go func() { stopped <- s.store.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
	s.awaitEvaluation(t, 1) // after the restart
	return s
}

// apply installs the flows of the policies, and flushes the connections that they no longer allow.
func (s *packetNode) apply(t *testing.T) {
	t.Helper()
	s.write(t, false)
	s.flush(t)
}

// flush flushes the connections that are no longer valid, and those of the deleted addresses.
func (s *packetNode) flush(t *testing.T, deleted ...netip.Addr) {
	t.Helper()
	before, _ := s.store.Flushed()
	s.store.Update(flowstore.Update{Revoked: flowstore.Revocation{Permission: true, Addrs: deleted}})
	s.awaitEvaluation(t, before+1)
}

// awaitEvaluation waits until the store has evaluated the connections want times.
func (s *packetNode) awaitEvaluation(t *testing.T, want int) {
	t.Helper()
	waitFor(t, func() bool { n, _ := s.store.Flushed(); return n >= want }, func() string { return fmt.Sprintf("want %d evaluations of the connections", want) })
}

// allow allows connections of the pods with these labels to TCP port 80 of pod 2, and no others.
func (s *packetNode) allow(t *testing.T, apps ...string) {
	t.Helper()
	for _, app := range []string{"0", "1"} {
		p := allowFrom("a", app, onPort(80))
		p.Name = app
		p.Spec.PodSelector.MatchLabels = map[string]string{"app": "2"}
		p.Spec.PolicyTypes, p.Spec.Egress = p.Spec.PolicyTypes[:1], nil
		s.engine.DeleteNetworkPolicy("a", app)
		for _, wanted := range apps {
			if wanted != app {
				continue
			}
			if err := s.engine.SetNetworkPolicy(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.apply(t)
}
