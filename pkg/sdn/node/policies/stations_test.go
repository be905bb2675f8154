package policies

import (
	"fmt"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/policy"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/oracle"
)

// stations are the two nodes of a world, as its watcher.
type stations struct {
	all   [2]*station
	vnids map[string]uint32
	anew  bool // of the former world nothing stays
}

// reset forgets the world, for one of such nodes.
func (n *stations) reset(node pipeline.Node) {
	n.vnids, n.anew = map[string]uint32{}, true
	for _, s := range n.all {
		s.reset(node)
	}
}

// SetNamespace lets VNIDs follow from labels: some namespaces share one, some have their own, some have 0.
func (n *stations) SetNamespace(ns *corev1.Namespace) {
	n.vnids[ns.Name] = map[string]uint32{"a": 10, "b": 11, "c": 12}[ns.Labels["app"]]
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

func (n *stations) DeleteNamespace(ns *corev1.Namespace) {
	for _, s := range n.all {
		s.engine.DeleteNamespace(ns.Name)
		s.engine.SetVNID(ns.Name, 0)
	}
}

func (n *stations) SetPod(p *corev1.Pod) {
	key := policy.PodKey{Namespace: p.Namespace, Name: p.Name}
	ended := p.Status.Phase != ""
	for _, s := range n.all {
		switch attached := s.local[key] != nil; {
		case s.here(p) && p.Status.PodIP != "" && !ended && !attached:
			s.attach(p, n.vnids[p.Namespace])
		case ended && attached:
			s.detach(key)
		}
		s.engine.SetPod(policy.NewPod(p))
	}
}

func (n *stations) DeletePod(p *corev1.Pod) {
	key := policy.PodKey{Namespace: p.Namespace, Name: p.Name}
	for _, s := range n.all {
		if s.local[key] != nil {
			s.detach(key)
		}
		s.engine.DeletePod(key)
	}
}

func (n *stations) SetPolicy(p *networkingv1.NetworkPolicy) {
	for _, s := range n.all {
		if err := s.engine.SetNetworkPolicy(p); err != nil {
			panic(err)
		}
	}
}

func (n *stations) DeletePolicy(p *networkingv1.NetworkPolicy) {
	for _, s := range n.all {
		s.engine.DeleteNetworkPolicy(p.Namespace, p.Name)
	}
}

func (n *stations) SetClusterPolicy(p *policyv1alpha2.ClusterNetworkPolicy) {
	for _, s := range n.all {
		if err := s.engine.SetClusterNetworkPolicy(p); err != nil {
			panic(err)
		}
	}
}

func (n *stations) DeleteClusterPolicy(p *policyv1alpha2.ClusterNetworkPolicy) {
	for _, s := range n.all {
		s.engine.DeleteClusterNetworkPolicy(p.Name)
	}
}

// allows asks the sources' nodes, and then, about what these let through, the destinations' if they are others.
func (n *stations) allows(conns []oracle.Connection) ([]bool, error) {
	allowed := make([]bool, len(conns))
	for i := range allowed {
		allowed[i] = true
	}
	atSource := func(s *station, c oracle.Connection) bool { return s.here(c.From.Pod) }
	atDestination := func(s *station, c oracle.Connection) bool { return s.here(c.To.Pod) && !s.here(c.From.Pod) }
	for _, concerned := range []func(*station, oracle.Connection) bool{atSource, atDestination} {
		var both errgroup.Group
		var places [2][]int
		var answers [2][]bool
		for at, s := range n.all {
			var asked []oracle.Connection
			for i, conn := range conns {
				if allowed[i] && concerned(s, conn) {
					places[at], asked = append(places[at], i), append(asked, conn)
				}
			}
			both.Go(func() (err error) {
				answers[at], err = s.allows(asked, n.vnids)
				return err
			})
		}
		if err := both.Wait(); err != nil {
			return nil, err
		}
		for at := range n.all {
			for i, answer := range answers[at] {
				allowed[places[at][i]] = answer
			}
		}
	}
	return allowed, nil
}

// compare brings the switches up to date and asks them what the oracle is asked.
func (n *stations) compare(t *testing.T, when string, w *oracle.World, questions []oracle.Connection) {
	t.Helper()
	for _, s := range n.all {
		s.write(t, n.anew)
	}
	n.anew = false
	answers, err := n.allows(questions)
	if err != nil {
		t.Fatal(err)
	}
	for i, conn := range questions {
		if got, want := answers[i], w.Judge(conn); got != want.Allowed {
			t.Fatalf("%s: %s to %s, %s %d: the switch allows it: %v, want %v: %s", when, end(conn.From), end(conn.To),
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
