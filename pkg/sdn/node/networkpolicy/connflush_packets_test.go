package networkpolicy

import (
	"net/netip"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/tier"
)

// A connection that a new policy forbids is denied in both directions. One that it allows continues, also if its opener sends nothing, and so does a probe
// of the node. A flushed connection continues after it is allowed again.
func TestFlush_forbiddenConnections(t *testing.T) {
	tier.Parallel(t)
	s := newPacketNode(t)
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

// The connections of a deleted pod are flushed, since another pod may get its address.
func TestFlush_connectionsOfDeletedPod(t *testing.T) {
	tier.Parallel(t)
	s := newPacketNode(t)
	pods := s.node.Pods
	s.allow(t, "0", "1")
	to := netip.AddrPortFrom(pods[2].Addr, 80)
	l := pods[2].ListenTCP(t, 80)
	deleted, other := pods[0].Dial(t, to, l), pods[1].Dial(t, to, l)
	deleted.MustPass(t)
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
		t.Fatalf("got %d and %d connections, want 1 each", count(pods[0].Addr), count(pods[1].Addr))
	}
	s.flush(t, pods[0].Addr)
	if count(pods[0].Addr) != 0 || count(pods[1].Addr) != 1 {
		t.Errorf("got %d connections of the deleted pod, want 0; %d of the other, want 1", count(pods[0].Addr), count(pods[1].Addr))
	}
	datapath.MustPass(t, other.Server, other.Client)
}

// Rules with ports allow fragmented packets, of which only the first fragment has ports.
func TestLargePacketsPassByTheirPort(t *testing.T) {
	tier.Parallel(t)
	s := newPacketNode(t)
	pods := s.node.Pods
	in, out := allowFrom("a", "0", onUDP(53)), allowFrom("a", "2", onUDP(53))
	in.Name, in.Spec.PodSelector.MatchLabels = "in", map[string]string{"app": "2"}
	out.Name, out.Spec.PodSelector.MatchLabels = "out", map[string]string{"app": "0"}
	for _, p := range []*networkingv1.NetworkPolicy{in, out} {
		if err := s.engine.SetNetworkPolicy(p); err != nil {
			t.Fatal(err)
		}
	}
	s.apply(t)
	client, dns, other := pods[0].UDP(t, 0), pods[2].UDP(t, 53), pods[2].UDP(t, 54)
	client.MustNotReachWith(t, other.Addr(), other, client.Large)
	client.MustReachWith(t, dns.Addr(), dns, client.Large)
	dns.MustReachWith(t, client.Addr(), client, dns.Large)
	client.MustNotReachWith(t, other.Addr(), other, client.Large)

	stranger := pods[1].UDP(t, 0)
	stranger.MustNotReachWith(t, dns.Addr(), dns, stranger.Large)
}

// A connection that was not committed, since no policy selected its pods, is denied when the first policy forbids it: further packets of the server do not
// commit it as a connection that the server opened.
func TestFirstPolicyDeniesUncommittedConnection(t *testing.T) {
	tier.Parallel(t)
	for name, isolates := range map[string]struct {
		app       string
		direction networkingv1.PolicyType
	}{
		"the server": {"2", networkingv1.PolicyTypeIngress},
		"the client": {"0", networkingv1.PolicyTypeEgress},
	} {
		t.Run(name, func(t *testing.T) {
			tier.Parallel(t)
			s := newPacketNode(t)
			first := allowFrom("a", "none")
			s.engine.DeleteNetworkPolicy("a", first.Name)
			s.apply(t)
			const port = 9000
			c := s.node.Pods[0].Dial(t, netip.AddrPortFrom(s.node.Pods[2].Addr, port), s.node.Pods[2].ListenTCP(t, port))
			c.MustPass(t)

			first.Spec.PodSelector.MatchLabels = map[string]string{"app": isolates.app}
			first.Spec.PolicyTypes = []networkingv1.PolicyType{isolates.direction}
			if err := s.engine.SetNetworkPolicy(first); err != nil {
				t.Fatal(err)
			}
			s.apply(t)
			datapath.MustPass(t, c.Server, c.Client)
			datapath.MustNotPass(t, c.Client, c.Server)
		})
	}
}
