package testcluster

import (
	"testing"

	"github.com/mattfenwick/cyclonus/pkg/matcher"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/ovsdn/ovsdn/pkg/sdn/oracle"
)

// deaf is a watcher that ignores all changes.
type deaf struct{}

func (deaf) SetNamespace(*corev1.Namespace)                           {}
func (deaf) DeleteNamespace(*corev1.Namespace)                        {}
func (deaf) SetPod(*corev1.Pod)                                       {}
func (deaf) DeletePod(*corev1.Pod)                                    {}
func (deaf) SetPolicy(*networkingv1.NetworkPolicy)                    {}
func (deaf) DeletePolicy(*networkingv1.NetworkPolicy)                 {}
func (deaf) SetClusterPolicy(*policyv1alpha2.ClusterNetworkPolicy)    {}
func (deaf) DeleteClusterPolicy(*policyv1alpha2.ClusterNetworkPolicy) {}

// Two independent implementations of the specification agree on all cases of cyclonus.
func TestAgreesWithCyclonus(t *testing.T) {
	cases := Cases()
	if len(cases) < 200 {
		t.Fatalf("only %d cases", len(cases))
	}
	asked := 0
	for _, c := range cases {
		c.Play(deaf{}, func(step int, w *World) {
			policy := matcher.BuildNetworkPolicies(false, w.Policies)
			for _, conn := range w.caseConnections() {
				asked++
				want := policy.IsTrafficAllowed(w.traffic(conn)).IsAllowed()
				if got := w.Evaluate(conn); got.Allowed != want {
					t.Errorf("%s, step %d: %s/%s to %s/%s, %s %d: %+v, want %v as cyclonus", c.Name, step, conn.From.Pod.Namespace,
						conn.From.Pod.Name, conn.To.Pod.Namespace, conn.To.Pod.Name, conn.Protocol, conn.Port, got, want)
				}
			}
		})
	}
	t.Logf("%d cases, %d questions", len(cases), asked)
}

// caseConnections are the connections of each pod to each other pod on the served ports. A pod's connections to itself are left out:
// cyclonus evaluates them like any other.
func (w *World) caseConnections() []oracle.Connection {
	var all []oracle.Connection
	for _, from := range w.Endpoints() {
		for _, to := range w.Endpoints() {
			if from.Pod == nil || to.Pod == nil || from.Pod == to.Pod {
				continue
			}
			for _, protocol := range Protocols()[:3] {
				for _, port := range []int32{80, 81} {
					all = append(all, oracle.Connection{From: from, To: to, Protocol: protocol, Port: port})
				}
			}
		}
	}
	return all
}

func (w *World) traffic(c oracle.Connection) *matcher.Traffic {
	peer := func(e oracle.Endpoint) *matcher.TrafficPeer {
		return &matcher.TrafficPeer{IP: e.Addr.String(), Internal: &matcher.InternalPeer{
			PodLabels: e.Pod.Labels, NamespaceLabels: w.namespace(e.Pod.Namespace).Labels, Namespace: e.Pod.Namespace,
		}}
	}
	return &matcher.Traffic{
		Source: peer(c.From), Destination: peer(c.To),
		ResolvedPort: int(c.Port), ResolvedPortName: portName(c.Port, c.Protocol), Protocol: c.Protocol,
	}
}
