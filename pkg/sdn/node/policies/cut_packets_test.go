package policies

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/policy"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/store"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// site is a node with packets, whose flows are the product's.
type site struct {
	station
	node   *datapath.Node
	world  *datapath.Host
	bridge *ovs.Native
	lock   sync.Mutex
	cuts   *Cuts

	outside map[netip.AddrPort]pipeline.OutsideEndpoints // of services
}

// newSite makes a node with three pods in the namespace "a", which have the labels app=0 to app=2 and are isolated.
func newSite(t *testing.T) *site {
	t.Helper()
	network := datapath.New(t, 1)
	n := network.Nodes[0]
	for range 3 {
		n.AddPod(t)
	}
	bridge := ovs.NewNative(ovstest.Bridge, n.Switch.RunDir)
	t.Cleanup(bridge.Close)
	s := &site{
		node: n, world: network.Outside, bridge: bridge, outside: map[netip.AddrPort]pipeline.OutsideEndpoints{},
		station: station{store: store.New(bridge), written: map[pipeline.Owner]bool{}, Compiler: NewCompiler(pipeline.Node{
			Mode:            config.ModeNetworkPolicy,
			ClusterNetworks: []netip.Prefix{netip.MustParsePrefix(datapath.ClusterNetwork)},
			ServiceNetwork:  netip.MustParsePrefix(datapath.ServiceNetwork),
			Subnets:         []netip.Prefix{n.Subnet},
			VTEP:            n.VTEP,
			VXLANPort:       4789,
			StatelessSCTP:   ovstest.DatapathType(t) == ovstest.DatapathNetdev,
			LaterFragments:  ovstest.DatapathType(t) == ovstest.DatapathNetdev,
		}, policy.New())},
	}
	cluster := Cluster{OutsideEndpoints: func(addr netip.Addr, _ goovs.Protocol, port uint16) pipeline.OutsideEndpoints {
		return s.outside[netip.AddrPortFrom(addr, port)]
	}}
	s.cuts = newCuts(bridge, &s.lock, (&Policies{compiler: s.Compiler, cluster: cluster}).judge)
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error)
	go func() { stopped <- s.store.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
	s.engine.SetNamespace("a", nil)
	for i, p := range n.Pods {
		app := []string{"0", "1", "2"}[i]
		key := policy.PodKey{Namespace: "a", Name: app}
		s.engine.SetPod(policy.Pod{PodKey: key, Labels: map[string]string{"app": app}, Addrs: []netip.Addr{p.Addr}})
		s.Place(key, pipeline.Owner{Kind: pipeline.KindPod, Key: app}, pipeline.Pod{OFPort: p.OFPort, MAC: p.MAC, Addrs: []netip.Addr{p.Addr}})
		s.engine.Attach(key, p.Addr)
	}
	// They get replies only, and what else policies allow.
	isolated := allowFrom("a", "nobody")
	isolated.Spec.PolicyTypes, isolated.Spec.Egress = isolated.Spec.PolicyTypes[:1], nil
	if err := s.engine.SetNetworkPolicy(isolated); err != nil {
		t.Fatal(err)
	}
	return s
}

// follow puts the policies on the switch, and cuts what they forbid.
func (s *site) follow(t *testing.T) {
	t.Helper()
	s.write(t, false)
	s.cut(t)
}

func (s *site) cut(t *testing.T) {
	t.Helper()
	if err := errors.Join(s.bridge.AwaitDatapath(t.Context()), s.cuts.cut(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// allow lets pods with the labels in to the pod 2, and no others.
func (s *site) allow(t *testing.T, apps ...string) {
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
	s.follow(t)
}

// A connection that a new policy forbids is dead in both directions. One that it allows goes on, also where its opener is silent; and so
// does a probe of the node. What was cut goes on when it is allowed again.
func TestForbiddenConnectionsAreCut(t *testing.T) {
	s := newSite(t)
	pods := s.node.Pods
	s.allow(t, "0", "1")
	to := netip.AddrPortFrom(pods[2].Addr, 80)
	l := pods[2].ListenTCP(t, 80)
	forbidden, silent, probe := pods[0].Dial(t, to, l), pods[1].Dial(t, to, l), s.node.Dial(t, to, l)
	forbidden.MustPass(t)
	silent.MustPass(t)

	s.allow(t, "1")
	datapath.MustNotPass(t, forbidden.Server, forbidden.Client)
	datapath.MustNotPass(t, forbidden.Client, forbidden.Server)
	datapath.MustPass(t, silent.Server, silent.Client)
	datapath.MustPass(t, probe.Server, probe.Client)

	s.allow(t, "0", "1")
	datapath.MustPass(t, forbidden.Client, forbidden.Server)
	datapath.MustPass(t, silent.Server, silent.Client)
}

// Who gets the address of a pod that went is no party to its connections.
func TestNoConnectionOutlivesItsPod(t *testing.T) {
	s := newSite(t)
	pods := s.node.Pods
	s.allow(t, "0", "1")
	to := netip.AddrPortFrom(pods[2].Addr, 80)
	l := pods[2].ListenTCP(t, 80)
	gone, other := pods[0].Dial(t, to, l), pods[1].Dial(t, to, l)
	gone.MustPass(t)
	other.MustPass(t)
	count := func(addr netip.Addr) (n int) {
		t.Helper()
		if err := s.bridge.ListConnections(t.Context(), pipeline.Zones(), func(c ovs.Connection) {
			if c.Original.Src == addr || c.Original.Dst == addr {
				n++
			}
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if count(pods[0].Addr) != 1 || count(pods[1].Addr) != 1 {
		t.Fatalf("%d connections, and %d", count(pods[0].Addr), count(pods[1].Addr))
	}
	s.cuts.Forget(pods[0].Addr)
	s.cut(t)
	if count(pods[0].Addr) != 0 || count(pods[1].Addr) != 1 {
		t.Errorf("%d connections of the pod that went, want 0; %d of the other, want 1", count(pods[0].Addr), count(pods[1].Addr))
	}
	datapath.MustPass(t, other.Server, other.Client)
}

// Rules with ports let packets through that come in fragments, of which only the first has ports.
func TestLargePacketsPassByTheirPort(t *testing.T) {
	s := newSite(t)
	pods := s.node.Pods
	in, out := allowFrom("a", "0", onUDP(53)), allowFrom("a", "2", onUDP(53))
	in.Name, in.Spec.PodSelector.MatchLabels = "in", map[string]string{"app": "2"}
	out.Name, out.Spec.PodSelector.MatchLabels = "out", map[string]string{"app": "0"}
	for _, p := range []*networkingv1.NetworkPolicy{in, out} {
		if err := s.engine.SetNetworkPolicy(p); err != nil {
			t.Fatal(err)
		}
	}
	s.follow(t)
	asking, dns, other := pods[0].UDP(t, 0), pods[2].UDP(t, 53), pods[2].UDP(t, 54)
	asking.MustNotReachWith(t, other.Addr(), other, asking.Large)
	asking.MustReachWith(t, dns.Addr(), dns, asking.Large)
	dns.MustReachWith(t, asking.Addr(), asking, dns.Large)
	asking.MustNotReachWith(t, other.Addr(), other, asking.Large)

	stranger := pods[1].UDP(t, 0)
	stranger.MustNotReachWith(t, dns.Addr(), dns, stranger.Large)
}

// A connection that nobody kept, since no policy was about its pods, is dead when the first one forbids it: what the server goes on to send makes
// it no connection of the server's.
func TestFirstPolicyCutsWhatNobodyKept(t *testing.T) {
	for name, isolates := range map[string]struct {
		app       string
		direction networkingv1.PolicyType
	}{
		"the server": {"2", networkingv1.PolicyTypeIngress},
		"the client": {"0", networkingv1.PolicyTypeEgress},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			first := allowFrom("a", "nobody")
			s.engine.DeleteNetworkPolicy("a", first.Name)
			s.follow(t)
			const port = 9000
			c := s.node.Pods[0].Dial(t, netip.AddrPortFrom(s.node.Pods[2].Addr, port), s.node.Pods[2].ListenTCP(t, port))
			c.MustPass(t)

			first.Spec.PodSelector.MatchLabels = map[string]string{"app": isolates.app}
			first.Spec.PolicyTypes = []networkingv1.PolicyType{isolates.direction}
			if err := s.engine.SetNetworkPolicy(first); err != nil {
				t.Fatal(err)
			}
			s.follow(t)
			datapath.MustPass(t, c.Server, c.Client)
			datapath.MustNotPass(t, c.Client, c.Server)
		})
	}
}
