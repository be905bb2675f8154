package networkpolicy

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/oracle"
	"github.com/ovsdn/ovsdn/test/balanced"
	"github.com/ovsdn/ovsdn/test/seed"
	"github.com/ovsdn/ovsdn/test/testcluster"
	"github.com/ovsdn/ovsdn/test/tier"
)

// The switch and the host do with connections to services (--service-proxy=ovs) what the oracle expects, in random clusters of all modes: they forward, reject or drop
// them, the group has exactly the expected endpoints, and the packet to each of them passes if policies, egress firewalls and VNIDs allow it.
func TestBalancedServicesAgreeWithTheOracle(t *testing.T) {
	idle := newPool(t)
	var compared balancedCount
	first := seed.Value(t)
	t.Run("seeds", func(t *testing.T) {
		for i := range clusters(t) {
			s := first + uint64(i) //nolint:gosec // positive
			t.Run(fmt.Sprintf("seed %d", s), func(t *testing.T) {
				t.Parallel()
				n := <-idle
				defer func() { idle <- n }()
				t.Logf("to reproduce: go test ./pkg/sdn/node/networkpolicy -run TestBalancedServicesAgreeWithTheOracle -seeds=1 -rapid.seed=%d", s)
				n.compareBalanced(t, s, &compared)
			})
		}
	})
	compared.check(t, clusters(t) >= allKinds)
}

// allKinds is a number of clusters with connections of all kinds: one of each mode.
const allKinds = 5

// balancedCount is the number of compared connections by outcome, and of endpoints that are allowed or denied.
type balancedCount struct{ none, forwarded, rejected, dropped, allowed, denied atomic.Int64 }

func (c *balancedCount) add(v oracle.ServiceVerdict) {
	map[oracle.ServiceOutcome]*atomic.Int64{
		oracle.ServiceNone: &c.none, oracle.ServiceForwarded: &c.forwarded, oracle.ServiceRejected: &c.rejected, oracle.ServiceDropped: &c.dropped,
	}[v.Outcome].Add(1)
	for _, e := range v.Endpoints {
		if e.Verdict.Allowed {
			c.allowed.Add(1)
		} else {
			c.denied.Add(1)
		}
	}
}

// check logs the counts. With wantAll it fails if one of them is 0.
func (c *balancedCount) check(t *testing.T, wantAll bool) {
	t.Helper()
	t.Logf("connections: %d forwarded, %d rejected, %d dropped, %d to no service; endpoints: %d allowed, %d denied",
		c.forwarded.Load(), c.rejected.Load(), c.dropped.Load(), c.none.Load(), c.allowed.Load(), c.denied.Load())
	for _, count := range []*atomic.Int64{&c.none, &c.forwarded, &c.rejected, &c.dropped, &c.allowed, &c.denied} {
		if wantAll && count.Load() == 0 && !t.Failed() {
			t.Error("got a count of 0, want connections of each kind")
		}
	}
}

// compareBalanced compares connections to services in the world of a seed.
func (n *testNodes) compareBalanced(t *testing.T, s uint64, compared *balancedCount) {
	t.Helper()
	node := nodeOf(s)
	node.BalancesServices = true
	isSubnet := node.Mode == config.ModeSubnet
	n.reset(node)
	w := testcluster.NewWorld(s, n)
	w.VNIDs, w.FirewallVNIDs = n.vnids, n.vnids
	if node.Mode != config.ModeMultitenant {
		w.VNIDs = nil
	}
	if isSubnet {
		w.FirewallVNIDs = nil
	}
	r := rand.New(rand.NewPCG(s, 4)) //nolint:gosec // to be repeatable
	protocols := testcluster.Protocols()[:3]
	if node.Userspace {
		protocols = protocols[:2] // its conntrack can't translate SCTP
	}
	perRound := tier.Size(t, 40, *sample, "connections of each node to each set of services")
	for round := range tier.Size(t, 3, 6, "sets of services") {
		for range 5 {
			w.Step(n)
		}
		if isSubnet {
			w.Policies, w.ClusterPolicies = nil, nil // which this mode ignores
		}
		w.DrawFirewalls(r)
		n.setFirewalls(t, w)
		w.DrawBalancedServices(r, 8, protocols)
		for _, sw := range n.all {
			sw.write(t, n.clear)
		}
		n.clear = false
		for _, sw := range n.all {
			installed := sw.installBalanced(t, w, n.vnids)
			conns := w.BalancedConnections(sw.name())
			r.Shuffle(len(conns), func(i, j int) { conns[i], conns[j] = conns[j], conns[i] })
			for _, conn := range conns[:min(len(conns), perRound)] {
				want := w.EvaluateBalancedService(conn)
				got, err := n.traceBalanced(t.Context(), sw, installed, conn)
				if err != nil {
					t.Fatal(err)
				}
				if difference := got.compare(want); difference != "" {
					t.Fatalf("round %d: %s at %s to %s %s: %s: %s", round, end(conn.From), conn.At, conn.Protocol, conn.To, difference, want.Why)
				}
				compared.add(want)
			}
			sw.removeBalanced(t, installed)
		}
	}
}

func (s *testNode) name() string { return fmt.Sprintf("n%d", s.index+1) }

// installBalanced installs the services of the world.
func (s *testNode) installBalanced(t *testing.T, w *testcluster.World, vnids map[string]uint32) *balanced.Installed {
	t.Helper()
	installed := balanced.Install(t, s.store, balanced.Services{
		Node:   &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.name(), Labels: w.NodeLabels[s.name()]}},
		Config: s.node, VNIDs: vnids, All: w.Services, Slices: w.EndpointSlices,
	})
	for _, owner := range installed.Owners {
		s.written[owner] = true
	}
	return installed
}

// removeBalanced removes the flows of services.
func (s *testNode) removeBalanced(t *testing.T, installed *balanced.Installed) {
	t.Helper()
	for _, owner := range installed.Owners {
		if err := s.store.Delete(owner).Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
