package networkpolicy

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/oracle"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/seed"
	"github.com/ovsdn/ovsdn/test/testcluster"
	"github.com/ovsdn/ovsdn/test/tier"
)

var (
	seeds  = flag.Int("seeds", 24, "number of random clusters")                                 //nolint:gochecknoglobals // a test binary parses its flags before any test runs
	sample = flag.Int("sample", 100, "number of connections that are traced after each change") //nolint:gochecknoglobals // as above
)

// allConnections returns all connections between the endpoints of a world. Connections of a pod to itself reach the switch through services only.
func allConnections(w *testcluster.World) []oracle.Connection {
	var all []oracle.Connection
	ends := w.Endpoints()
	for _, from := range ends {
		for _, to := range ends {
			if from.Pod == nil && to.Pod == nil || to.Through != "" {
				continue
			}
			for _, protocol := range testcluster.Protocols() {
				for _, port := range testcluster.Ports(protocol) {
					all = append(all, oracle.Connection{From: from, To: to, Protocol: protocol, Port: port, Hairpin: from.Pod == to.Pod})
				}
			}
		}
	}
	return all
}

// sampleConnections returns at most n random connections.
func sampleConnections(w *testcluster.World, r *rand.Rand, n int) []oracle.Connection {
	var conns []oracle.Connection
	ends, protocols := w.Endpoints(), testcluster.Protocols()
	for range n {
		from, to, protocol := ends[r.IntN(len(ends))], ends[r.IntN(len(ends))], protocols[r.IntN(len(protocols))]
		if ports := testcluster.Ports(protocol); (from.Pod != nil || to.Pod != nil) && to.Through == "" {
			conns = append(conns, oracle.Connection{From: from, To: to, Protocol: protocol, Port: ports[r.IntN(len(ports))], Hairpin: from.Pod == to.Pod})
		}
	}
	return conns
}

// clusters returns the number of random clusters.
func clusters(t *testing.T) int {
	t.Helper()
	return tier.Size(t, 5, *seeds, "one random cluster for each mode and conntrack")
}

// cases returns the cases of cyclonus, in the short tier every tenth.
func cases(t *testing.T) (some []testcluster.Case) {
	t.Helper()
	all := testcluster.Cases()
	count := tier.Size(t, (len(all)+9)/10, len(all), "every tenth case of cyclonus")
	for group := range slices.Chunk(all, (len(all)+count-1)/count) {
		some = append(some, group[0])
	}
	return some
}

// newPool returns a pool of pairs of nodes, one for each processor.
func newPool(t *testing.T) chan *testNodes {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	idle := make(chan *testNodes, runtime.GOMAXPROCS(0))
	for range cap(idle) {
		idle <- &testNodes{all: [2]*testNode{newTestNode(t, 0), newTestNode(t, 1)}}
	}
	return idle
}

// The switch allows the connections that the oracle allows, in random clusters in mode networkpolicy or multitenant, with the conntrack of the kernel or of
// the userspace datapath: a sample after each of fifty changes, all at the end, and five times those to services with endpoints outside of the pod network.
// Those to outside leave with the sources of the oracle, and five times the egress IPs of all namespaces and nodes change. Each fifth cluster is in mode
// subnet, which has egress firewalls only.
func TestSwitchAgreesWithTheOracle(t *testing.T) {
	idle := newPool(t)
	var traced atomic.Int64
	first := seed.Value(t)
	t.Cleanup(func() { t.Logf("%d connections", traced.Load()) })
	for i := range clusters(t) {
		s := first + uint64(i) //nolint:gosec // positive
		t.Run(fmt.Sprintf("seed %d", s), func(t *testing.T) {
			t.Parallel()
			n := <-idle
			defer func() { idle <- n }()
			t.Logf("to reproduce: go test ./pkg/sdn/node/networkpolicy -run TestSwitchAgreesWithTheOracle -seeds=1 -rapid.seed=%d", s)
			traced.Add(int64(n.compareSeed(t, s)))
		})
	}
}

// nodeOf returns the configuration of the nodes in the world of a seed: all modes, and with the limitations of the userspace datapath's conntrack or without.
func nodeOf(s uint64) pipeline.Node {
	switch s % 5 {
	case 0:
		return pipeline.Node{Mode: config.ModeMultitenant, Userspace: true}
	case 1:
		return pipeline.Node{Mode: config.ModeNetworkPolicy, Userspace: true}
	case 2:
		return pipeline.Node{Mode: config.ModeMultitenant}
	case 3:
		return pipeline.Node{Mode: config.ModeNetworkPolicy}
	}
	return pipeline.Node{Mode: config.ModeSubnet}
}

// compareSeed compares the nodes with the oracle in the world of a seed, and returns the number of traced connections.
func (n *testNodes) compareSeed(t *testing.T, s uint64) (traced int) {
	t.Helper()
	node := nodeOf(s)
	isSubnet := node.Mode == config.ModeSubnet
	n.reset(node)
	r := rand.New(rand.NewPCG(s, 1)) //nolint:gosec // to be repeatable
	w := testcluster.NewWorld(s, n)
	w.VNIDs, w.FirewallVNIDs = n.vnids, n.vnids
	if node.Mode != config.ModeMultitenant {
		w.VNIDs = nil
	}
	if isSubnet {
		w.FirewallVNIDs, w.Policies, w.ClusterPolicies = nil, nil, nil
	}
	firewalls := rand.New(rand.NewPCG(s, 2)) //nolint:gosec // to be repeatable
	egressIPs := rand.New(rand.NewPCG(s, 3)) //nolint:gosec // as above
	compare := func(when string, conns []oracle.Connection) {
		t.Helper()
		n.compare(t, when, w, conns)
		traced += len(conns)
	}
	compare("at the start", sampleConnections(w, r, *sample))
	for i := range 50 {
		what := w.Step(n)
		if isSubnet {
			w.Policies, w.ClusterPolicies = nil, nil // which this mode ignores
		}
		compare(fmt.Sprintf("step %d, %s", i, what), sampleConnections(w, r, *sample))
		if i%10 == 9 {
			w.DrawFirewalls(firewalls)
			n.setFirewalls(t, w)
			compare(fmt.Sprintf("step %d, egress firewalls", i), sampleConnections(w, r, *sample))
			if isSubnet {
				continue // without egress IPs and evaluated services
			}
			traced += n.compareServices(t, fmt.Sprintf("step %d, services", i), w, w.DrawProxiedServices(r, 8))
			w.DrawEgressIPs(egressIPs)
			n.setEgressIPs(t, w)
			leaving, _ := split(allConnections(w))
			compare(fmt.Sprintf("step %d, egress IPs", i), leaving)
		}
	}
	compare("at the end", allConnections(w))
	t.Logf("%d pods, %d namespaces, %d policies, %d ClusterNetworkPolicies, %d connections",
		len(w.Pods), len(w.Namespaces), len(w.Policies), len(w.ClusterPolicies), traced)
	return traced
}

// The switch allows the connections that the oracle allows in the cases of cyclonus: after each step all pairs of pods on the ports that they serve, and a
// sample of the others.
func TestSwitchAgreesOnCases(t *testing.T) {
	idle := newPool(t)
	for _, c := range cases(t) {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			n := <-idle
			defer func() { idle <- n }()
			n.reset(pipeline.Node{Mode: config.ModeNetworkPolicy})
			r := seed.Rand(t)
			c.Play(n, func(step int, w *testcluster.World) {
				all := slices.DeleteFunc(allConnections(w), func(c oracle.Connection) bool {
					return c.From.Pod == nil || c.To.Pod == nil || c.Port != 80 && c.Port != 81
				})
				n.compare(t, fmt.Sprintf("step %d", step), w, append(all, sampleConnections(w, r, *sample)...))
			})
		})
	}
}
