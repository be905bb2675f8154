package policy

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/ovsdn/ovsdn/pkg/sdn/oracle"
	"github.com/ovsdn/ovsdn/test/seed"
	"github.com/ovsdn/ovsdn/test/testcluster"
	"github.com/ovsdn/ovsdn/test/tier"
)

var (
	seeds = flag.Int("seeds", 24, "number of random clusters") //nolint:gochecknoglobals // a test binary parses its flags before any test runs
)

// nodes is the compiled state of every node of a world, as its watcher.
type nodes struct {
	byName map[string]*compiled
	vnids  map[string]uint32
}

func (n *nodes) SetNamespace(ns *corev1.Namespace) {
	// VNIDs change with the labels: some namespaces share one, some have their own, some have none.
	n.vnids[ns.Name] = map[string]uint32{"a": 10, "b": 11, "c": 12}[ns.Labels["app"]]
	for _, c := range n.byName {
		c.engine.SetNamespace(ns.Name, ns.Labels)
		c.engine.SetVNID(ns.Name, n.vnids[ns.Name])
	}
}

func (n *nodes) DeleteNamespace(ns *corev1.Namespace) {
	for _, c := range n.byName {
		c.engine.DeleteNamespace(ns.Name)
		c.engine.SetVNID(ns.Name, 0)
	}
}

func (n *nodes) SetPod(p *corev1.Pod) {
	key := PodKey{Namespace: p.Namespace, Name: p.Name}
	for name, c := range n.byName {
		if name == p.Spec.NodeName && p.Status.PodIP != "" && p.Status.Phase == "" && !c.local[key] {
			c.local[key] = true
			c.engine.Attach(key, netip.MustParseAddr(p.Status.PodIP))
		} else if p.Status.Phase != "" && c.local[key] {
			delete(c.local, key)
			c.engine.Detach(key)
		}
		c.engine.SetPod(NewPod(p))
	}
}

func (n *nodes) DeletePod(p *corev1.Pod) {
	key := PodKey{Namespace: p.Namespace, Name: p.Name}
	for _, c := range n.byName {
		if c.local[key] {
			delete(c.local, key)
			c.engine.Detach(key)
		}
		c.engine.DeletePod(key)
	}
}

func (n *nodes) SetPolicy(p *networkingv1.NetworkPolicy) {
	for _, c := range n.byName {
		if err := c.engine.SetNetworkPolicy(p); err != nil {
			panic(err)
		}
	}
}

func (n *nodes) DeletePolicy(p *networkingv1.NetworkPolicy) {
	for _, c := range n.byName {
		c.engine.DeleteNetworkPolicy(p.Namespace, p.Name)
	}
}

func (n *nodes) SetClusterPolicy(p *policyv1alpha2.ClusterNetworkPolicy) {
	for _, c := range n.byName {
		if err := c.engine.SetClusterNetworkPolicy(p); err != nil {
			panic(err)
		}
	}
}

func (n *nodes) DeleteClusterPolicy(p *policyv1alpha2.ClusterNetworkPolicy) {
	for _, c := range n.byName {
		c.engine.DeleteClusterNetworkPolicy(p.Name)
	}
}

// newNodes are a world's two nodes.
func newNodes() *nodes {
	n := &nodes{byName: map[string]*compiled{"n1": newCompiled(), "n2": newCompiled()}, vnids: map[string]uint32{}}
	for _, c := range n.byName {
		for i, app := range []string{"a", "b"} {
			name := fmt.Sprintf("n%d", i+1)
			c.engine.SetNode(name, map[string]string{"app": app}, testcluster.NodeAddr(i), testcluster.NodeIP(i))
			c.engine.SetNodeNetwork(name, testcluster.NodeIP(i), testcluster.NodeAddr(i))
		}
	}
	return n
}

// evaluate returns a function that reports whether the nodes allow connections of a protocol and port between two ends.
func (n *nodes) evaluate(from, to oracle.Endpoint) func(corev1.Protocol, uint16) bool {
	if exempt(from, to) {
		return func(corev1.Protocol, uint16) bool { return true }
	}
	var vnid uint32
	out := func(corev1.Protocol, uint16) bool { return true }
	in := out
	if pod := from.Pod; pod != nil {
		vnid = n.vnids[pod.Namespace]
		c, key := n.byName[pod.Spec.NodeName], PodKey{Namespace: pod.Namespace, Name: pod.Name}
		ends := c.between(Egress, key, to.Addr, 0)
		out = func(protocol corev1.Protocol, port uint16) bool { return c.verdict(Egress, key, ends, protocol, port) }
	}
	if pod := to.Pod; pod != nil {
		c, key := n.byName[pod.Spec.NodeName], PodKey{Namespace: pod.Namespace, Name: pod.Name}
		ends := c.between(Ingress, key, from.Addr, vnid)
		if from.Node != "" {
			c.matchNode(ends, otherAddr(from))
		}
		in = func(protocol corev1.Protocol, port uint16) bool { return c.verdict(Ingress, key, ends, protocol, port) }
	}
	return func(protocol corev1.Protocol, port uint16) bool { return out(protocol, port) && in(protocol, port) }
}

// otherAddr returns the address that tables 0 and 10 load into reg6 for packets of a node itself.
func otherAddr(e oracle.Endpoint) netip.Addr {
	i := map[string]int{"n1": 0, "n2": 1}[e.Node]
	if e.Addr == testcluster.NodeIP(i) {
		return testcluster.NodeAddr(i)
	}
	return testcluster.NodeIP(i)
}

// exempt reports whether the tables allow a connection before any rule: from a pod to itself, and from a node to its own pods.
func exempt(from, to oracle.Endpoint) bool {
	own := from.Pod != nil && from.Pod == to.Pod
	probe := from.Node != "" && to.Pod != nil && to.Pod.Spec.NodeName == from.Node
	return own || probe
}

// compare compares the verdicts on pairs of endpoints, all or a sample, with those of the oracle.
func (n *nodes) compare(w *testcluster.World, sample func() bool) error {
	for _, c := range n.byName {
		c.drain()
	}
	ends := w.Endpoints()
	for _, from := range ends {
		for _, to := range ends {
			if from.Pod == nil && to.Pod == nil || to.Through != "" || !sample() {
				continue
			}
			allowed := n.evaluate(from, to)
			for _, protocol := range testcluster.Protocols() {
				for _, port := range testcluster.Ports(protocol) {
					conn := oracle.Connection{From: from, To: to, Protocol: protocol, Port: port}
					if got, want := allowed(protocol, uint16(port)), w.Evaluate(conn); got != want.Allowed { //nolint:gosec // small
						return fmt.Errorf("%s to %s, %s %d: allowed %v, want %v: %s", end(from), end(to), protocol, port, got, want.Allowed, want.Why)
					}
				}
			}
		}
	}
	return nil
}

func end(e oracle.Endpoint) string {
	if e.Pod != nil {
		return fmt.Sprintf("pod %s/%s (%s)", e.Pod.Namespace, e.Pod.Name, e.Addr)
	}
	return e.Node + " " + e.Addr.String()
}

// comparison compares the verdicts of nodes with those of the oracle, for some of the pairs of ends.
type comparison func(n *nodes, w *testcluster.World, sample func() bool) error

func all() bool { return true }

// clusters returns the number of random clusters.
func clusters(t *testing.T) int {
	t.Helper()
	return tier.Size(t, 3, *seeds, "the first of the complete tier's random clusters")
}

// inClusters compares in random clusters: all pairs at first and in the end, and some after each of fifty changes. Then it calls end.
func (compare comparison) inClusters(t *testing.T, end func(t *testing.T, n *nodes, w *testcluster.World)) {
	t.Helper()
	first := seed.Value(t)
	for i := range clusters(t) {
		s := first + uint64(i) //nolint:gosec // positive
		t.Run(fmt.Sprintf("seed %d", s), func(t *testing.T) {
			t.Parallel()
			n := newNodes()
			w := testcluster.NewWorld(s, n)
			r := rand.New(rand.NewPCG(s, 1)) //nolint:gosec // to be repeatable
			if err := compare(n, w, all); err != nil {
				t.Fatalf("at first: %v", err)
			}
			for i := range 50 {
				what := w.Step(n)
				if err := compare(n, w, func() bool { return r.IntN(40) == 0 }); err != nil {
					t.Fatalf("step %d, %s: %v", i, what, err)
				}
			}
			if err := compare(n, w, all); err != nil {
				t.Fatalf("in the end: %v", err)
			}
			end(t, n, w)
		})
	}
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

// onCases compares all pairs after each step of cyclonus' cases.
func (compare comparison) onCases(t *testing.T) {
	t.Helper()
	for _, c := range cases(t) {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			n := newNodes()
			c.Play(n, func(step int, w *testcluster.World) {
				if err := compare(n, w, all); err != nil {
					t.Errorf("step %d: %v", step, err)
				}
			})
		})
	}
}

// Verdicts in random clusters equal the oracle's after each of fifty changes, and the clauses in the end equal those of a new engine with the same
// objects.
func TestAgreesWithTheOracle(t *testing.T) {
	comparison((*nodes).compare).inClusters(t, compareRebuilt)
}

// Verdicts in all of cyclonus' cases equal the oracle's after each step.
func TestCases(t *testing.T) { comparison((*nodes).compare).onCases(t) }

func compareRebuilt(t *testing.T, n *nodes, w *testcluster.World) {
	t.Helper()
	rebuilt := newNodes()
	rebuilt.vnids = n.vnids
	for _, p := range w.ClusterPolicies {
		rebuilt.SetClusterPolicy(p)
	}
	for _, p := range w.Policies {
		rebuilt.SetPolicy(p)
	}
	for _, p := range w.Pods {
		rebuilt.SetPod(p)
	}
	for _, ns := range w.Namespaces {
		rebuilt.SetNamespace(ns)
	}
	for name, c := range rebuilt.byName {
		c.drain()
		if diff := c.differs(n.byName[name]); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
