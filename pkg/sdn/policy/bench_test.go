package policy

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// addr is the i-th address of the pod network.
func addr(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 128 + byte(i>>16), byte(i >> 8), byte(i)})
}

func labelled(namespace, name string, addr netip.Addr, set map[string]string) Pod {
	return Pod{PodKey: PodKey{Namespace: namespace, Name: name}, Labels: set, Addrs: []netip.Addr{addr}}
}

// allowFrom is a policy for all pods of the namespace, from the pods with one of the labels, on a port.
func allowFrom(namespace, name string, port int, apps ...string) *networkingv1.NetworkPolicy {
	number := intstr.FromInt(port)
	rule := networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{{Port: &number}}}
	for _, app := range apps {
		rule.From = append(rule.From, networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}})
	}
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{rule}},
	}
}

// compileAll compiles the changed clauses, and returns the number of their flows: one for a clause in a direction and level.
func compileAll(e *Engine) (flows int) {
	for _, p := range e.Drain() {
		if p.Kind == Outcome {
			flows++
			continue
		}
		flows += len(e.Compile(p))
	}
	return flows
}

// 100 rules of 502 addresses each: 250 that all rules share, 250 of its own, and two targets.
func BenchmarkCompile(b *testing.B) {
	pods := []Pod{labelled("ns", "t1", addr(1), nil), labelled("ns", "t2", addr(2), nil)}
	for i := range 250 {
		pods = append(pods, labelled("ns", fmt.Sprintf("shared%d", i), addr(100+i), map[string]string{"app": "shared"}))
	}
	for r := range 100 {
		for i := range 250 {
			pods = append(pods, labelled("ns", fmt.Sprintf("own%d-%d", r, i), addr(1000+1000*r+i), map[string]string{"app": fmt.Sprintf("own%d", r)}))
		}
	}
	b.ReportAllocs()
	flows := 0
	for b.Loop() {
		b.StopTimer()
		e := New()
		e.SetNamespace("ns", nil)
		for _, p := range pods {
			e.SetPod(p)
		}
		e.Attach(pods[0].PodKey, pods[0].Addrs...)
		e.Attach(pods[1].PodKey, pods[1].Addrs...)
		compileAll(e)
		b.StartTimer()
		for r := range 100 {
			if err := e.SetNetworkPolicy(allowFrom("ns", fmt.Sprintf("np%d", r), 1000+r, "shared", fmt.Sprintf("own%d", r))); err != nil {
				b.Fatal(err)
			}
		}
		flows = compileAll(e)
	}
	b.ReportMetric(float64(flows), "flows")
}

// A cluster of 10,000 pods in 100 namespaces, with ten policies each, of which this node has two pods each.
func bigCluster(b *testing.B) *Engine {
	b.Helper()
	e := New()
	for n := range 100 {
		ns := fmt.Sprintf("ns%d", n)
		e.SetNamespace(ns, map[string]string{"name": ns})
		e.SetVNID(ns, uint32(10+n)) //nolint:gosec // small
		for i := range 100 {
			p := labelled(ns, fmt.Sprintf("p%d", i), addr(1000*n+i), map[string]string{"app": fmt.Sprintf("a%d", i%10)})
			e.SetPod(p)
			if i < 2 {
				e.Attach(p.PodKey, p.Addrs...)
			}
		}
		for i := range 10 {
			if err := e.SetNetworkPolicy(allowFrom(ns, fmt.Sprintf("np%d", i), 8000+i, fmt.Sprintf("a%d", i), "new")); err != nil {
				b.Fatal(err)
			}
		}
	}
	compileAll(e)
	return e
}

// A pod that is a peer of all the policies of its namespace is added and deleted.
func BenchmarkAddPod(b *testing.B) {
	e := bigCluster(b)
	p := labelled("ns7", "new", netip.MustParseAddr("10.200.0.1"), map[string]string{"app": "new"})
	b.ReportAllocs()
	for b.Loop() {
		e.SetPod(p)
		compileAll(e)
		e.DeletePod(p.PodKey)
		compileAll(e)
	}
}

// A pod of this node is added and deleted.
func BenchmarkAttachPod(b *testing.B) {
	e := bigCluster(b)
	p := labelled("ns7", "new", netip.MustParseAddr("10.200.0.1"), map[string]string{"app": "a1"})
	b.ReportAllocs()
	for b.Loop() {
		e.SetPod(p)
		e.Attach(p.PodKey, p.Addrs...)
		compileAll(e)
		e.Detach(p.PodKey)
		e.DeletePod(p.PodKey)
		compileAll(e)
	}
}

// The flows grow with the sum of targets and peers.
func TestFlowsGrowWithTheSum(t *testing.T) {
	e := New()
	e.SetNamespace("ns", nil)
	const targets, peers = 200, 200
	for i := range targets {
		p := labelled("ns", fmt.Sprintf("t%d", i), addr(i), map[string]string{"app": "target"})
		e.SetPod(p)
		e.Attach(p.PodKey, p.Addrs...)
	}
	for i := range peers {
		e.SetPod(labelled("ns", fmt.Sprintf("p%d", i), addr(1000+i), map[string]string{"app": "peer"}))
	}
	compileAll(e)
	np := allowFrom("ns", "np", 80, "peer")
	np.Spec.PodSelector = metav1.LabelSelector{MatchLabels: map[string]string{"app": "target"}}
	if err := e.SetNetworkPolicy(np); err != nil {
		t.Fatal(err)
	}
	if got, want := compileAll(e), targets+peers+2; got != want {
		t.Errorf("flows: got %d, want %d: one for each target and peer, the port and the outcome", got, want)
	}
}

// A shared clause is one flow, however many rules share it.
func TestSharedPeersAreSharedFlows(t *testing.T) {
	e := New()
	e.SetNamespace("ns", nil)
	e.SetPod(labelled("ns", "t", addr(1), nil))
	e.Attach(PodKey{Namespace: "ns", Name: "t"}, addr(1))
	for i := range 100 {
		e.SetPod(labelled("ns", fmt.Sprintf("p%d", i), addr(1000+i), map[string]string{"app": "peer"}))
	}
	for i := range 50 {
		if err := e.SetNetworkPolicy(allowFrom("ns", fmt.Sprintf("np%d", i), 80, "peer")); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := compileAll(e), 100+1+1+50; got != want {
		t.Errorf("flows: got %d, want %d: each peer, the target and the port once, an outcome for each policy", got, want)
	}
	if parts := e.Compile(Clause{Kind: Port, PortMatch: PortMatch{corev1.ProtocolTCP, 80, exactPort}}); len(parts) != 1 || len(parts[0].Conj) != 50 {
		t.Errorf("parts of the port: got %+v, want one with 50 rules", parts)
	}
}
