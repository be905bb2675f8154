package networkpolicy

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/oracle"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
	"github.com/ovsdn/ovsdn/test/testcluster"
)

// testNodes are the two nodes of a world. They implement the world's event handler.
type testNodes struct {
	all   [2]*testNode
	vnids map[string]uint32
	clear bool // the next write removes the flows of the previous world
}

// reset begins an empty world with nodes of the given configuration.
func (n *testNodes) reset(node pipeline.Node) {
	n.vnids, n.clear = map[string]uint32{}, true
	for _, s := range n.all {
		s.reset(node)
	}
}

// SetNamespace derives the VNID from the labels: some namespaces share one, some have their own, some have 0. In mode subnet all have 0.
func (n *testNodes) SetNamespace(ns *corev1.Namespace) {
	n.vnids[ns.Name] = map[string]uint32{"a": 10, "b": 11, "c": 12}[ns.Labels["app"]]
	if n.all[0].node.Mode == config.ModeSubnet {
		n.vnids[ns.Name] = 0
	}
	for _, s := range n.all {
		s.engine.SetNamespace(ns.Name, ns.Labels)
		s.engine.SetVNID(ns.Name, n.vnids[ns.Name])
		for key, pods := range s.local {
			for owner, pod := range pods {
				if key.Namespace == ns.Name {
					pod.VNID = config.VNID(n.vnids[ns.Name])
					pods[owner] = pod
				}
			}
		}
	}
}

func (n *testNodes) DeleteNamespace(ns *corev1.Namespace) {
	for _, s := range n.all {
		s.engine.DeleteNamespace(ns.Name)
		s.engine.SetVNID(ns.Name, 0)
	}
}

func (n *testNodes) SetPod(p *corev1.Pod) {
	key := policy.KeyOf(p)
	ended := p.Status.Phase != ""
	for _, s := range n.all {
		switch attached := s.local[key] != nil; {
		case s.isLocal(p) && p.Status.PodIP != "" && !ended && !attached:
			s.attach(p, n.vnids[p.Namespace])
		case ended && attached:
			s.detach(key)
		}
		s.engine.SetPod(policy.NewPod(p))
	}
}

func (n *testNodes) DeletePod(p *corev1.Pod) {
	key := policy.KeyOf(p)
	for _, s := range n.all {
		if s.local[key] != nil {
			s.detach(key)
		}
		s.engine.DeletePod(key)
	}
}

func (n *testNodes) SetPolicy(p *networkingv1.NetworkPolicy) {
	for _, s := range n.all {
		if err := s.engine.SetNetworkPolicy(p); err != nil {
			panic(err)
		}
	}
}

func (n *testNodes) DeletePolicy(p *networkingv1.NetworkPolicy) {
	for _, s := range n.all {
		s.engine.DeleteNetworkPolicy(p.Namespace, p.Name)
	}
}

func (n *testNodes) SetClusterPolicy(p *policyv1alpha2.ClusterNetworkPolicy) {
	for _, s := range n.all {
		if err := s.engine.SetClusterNetworkPolicy(p); err != nil {
			panic(err)
		}
	}
}

func (n *testNodes) DeleteClusterPolicy(p *policyv1alpha2.ClusterNetworkPolicy) {
	for _, s := range n.all {
		s.engine.DeleteClusterNetworkPolicy(p.Name)
	}
}

// setFirewalls compiles the EgressNetworkPolicies of the world. Their numbers are those of namespaces.
func (n *testNodes) setFirewalls(t *testing.T, w *testcluster.World) {
	t.Helper()
	firewalls := map[string]pipeline.EgressFirewall{}
	for i, ns := range w.Namespaces {
		of := slices.DeleteFunc(slices.Clone(w.EgressPolicies), func(p *networkv1.EgressNetworkPolicy) bool { return p.Namespace != ns.Name })
		rules, err := config.MergeEgressNetworkPolicies(of)
		if err != nil {
			t.Fatal(err)
		}
		if len(of) == 0 {
			continue
		}
		f := pipeline.EgressFirewall{ID: pipeline.EgressFirewallID(i + 1)} //nolint:gosec // few
		for _, r := range rules {
			f.Rules = append(f.Rules, pipeline.EgressFirewallRule{To: []netip.Prefix{r.To}, Deny: r.Deny})
		}
		firewalls[ns.Name] = f
	}
	for _, s := range n.all {
		s.firewalls = firewalls
	}
}

// allows traces the connections on the nodes of their sources, and those that are allowed there on the nodes of their destinations, if these are others.
func (n *testNodes) allows(conns []oracle.Connection) ([]bool, error) {
	allowed := make([]bool, len(conns))
	for i := range allowed {
		allowed[i] = true
	}
	atSource := func(s *testNode, c oracle.Connection) bool { return s.isLocal(c.From.Pod) }
	atDestination := func(s *testNode, c oracle.Connection) bool { return s.isLocal(c.To.Pod) && !s.isLocal(c.From.Pod) }
	for _, evaluates := range []func(*testNode, oracle.Connection) bool{atSource, atDestination} {
		var both errgroup.Group
		var places [2][]int
		var results [2][]bool
		for at, s := range n.all {
			var traced []oracle.Connection
			for i, conn := range conns {
				if allowed[i] && evaluates(s, conn) {
					places[at], traced = append(places[at], i), append(traced, conn)
				}
			}
			both.Go(func() (err error) {
				results[at], err = s.allows(traced, n.vnids)
				return err
			})
		}
		if err := both.Wait(); err != nil {
			return nil, err
		}
		for at := range n.all {
			for i, result := range results[at] {
				allowed[places[at][i]] = result
			}
		}
	}
	return allowed, nil
}

// compare updates the switches, and compares their traces of the connections with the oracle.
func (n *testNodes) compare(t *testing.T, when string, w *testcluster.World, conns []oracle.Connection) {
	t.Helper()
	for _, s := range n.all {
		s.write(t, n.clear)
	}
	n.clear = false
	leaving, conns := split(conns)
	n.compareDepartures(t, when, w, leaving)
	allowed, err := n.allows(conns)
	if err != nil {
		t.Fatal(err)
	}
	for i, conn := range conns {
		if got, want := allowed[i], w.Evaluate(conn); got != want.Allowed {
			t.Fatalf("%s: %s to %s, %s %d: got allowed %v, want %v: %s", when, end(conn.From), end(conn.To),
				conn.Protocol, conn.Port, got, want.Allowed, want.Why)
		}
	}
}

func end(e oracle.Endpoint) string {
	if e.Pod != nil {
		return fmt.Sprintf("pod %s/%s (%s) on %s", e.Pod.Namespace, e.Pod.Name, e.Addr, e.Pod.Spec.NodeName)
	}
	if e.Through != "" {
		return fmt.Sprintf("a client of %s's node port (%s)", e.Through, e.Addr)
	}
	return e.Node + " " + e.Addr.String()
}
