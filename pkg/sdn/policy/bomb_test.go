package policy

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// bombTime bounds the processor time of one object on a slow machine. Without budgets the slowest bomb takes minutes.
const bombTime = 5 * time.Second

// alternating returns a block with n exceptions, every second address of it.
func alternating(n int) *networkingv1.IPBlock {
	b := &networkingv1.IPBlock{CIDR: "0.0.0.0/0"}
	for i := range n {
		b.Except = append(b.Except, netip.PrefixFrom(netip.AddrFrom4([4]byte{192, byte(i >> 15), byte(i >> 7), byte(i << 1)}), 32).String())
	}
	return b
}

// bombs are policies of the maximum size that the API accepts, in namespace bomb.
func bombs() map[string]*networkingv1.NetworkPolicy {
	np := func(name string, spec networkingv1.NetworkPolicySpec) *networkingv1.NetworkPolicy {
		return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "bomb", Name: name}, Spec: spec}
	}
	var blocks []networkingv1.NetworkPolicyPeer
	var names []networkingv1.NetworkPolicyPort
	for i := range 20_000 {
		addr := netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)})
		blocks = append(blocks, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: addr.String() + "/32"}})
		names = append(names, networkingv1.NetworkPolicyPort{Port: new(intstr.FromString(fmt.Sprintf("p%d", i)))})
	}
	return map[string]*networkingv1.NetworkPolicy{
		"exceptions": np("exceptions", networkingv1.NetworkPolicySpec{
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{IPBlock: alternating(40_000)}}}},
		}),
		"named port and blocks": np("named", networkingv1.NetworkPolicySpec{
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
			Egress:      []networkingv1.NetworkPolicyEgressRule{{To: blocks, Ports: names[:1]}},
		}),
		"named ports and blocks": np("products", networkingv1.NetworkPolicySpec{
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
			Egress:      []networkingv1.NetworkPolicyEgressRule{{To: blocks, Ports: names}},
		}),
		"rules": np("rules", networkingv1.NetworkPolicySpec{Ingress: manyRules()}),
	}
}

func manyRules() []networkingv1.NetworkPolicyIngressRule {
	return make([]networkingv1.NetworkPolicyIngressRule, 500_000)
}

// bombed returns an engine with pods in two namespaces, of which both have one on this node.
func bombed(t testing.TB) *Engine {
	t.Helper()
	e := New()
	for n, ns := range []string{"bomb", "other"} {
		e.SetNamespace(ns, nil)
		for i := range 100 {
			p := labelled(ns, fmt.Sprintf("p%d", i), addr(1000*n+i), nil)
			p.Ports = []NamedPort{{"p0", "TCP", 80}}
			e.SetPod(p)
		}
		e.Attach(PodKey{Namespace: ns, Name: "p0"}, addr(1000*n))
	}
	compileAll(e)
	return e
}

// A bomb exceeds its budget: it only changes which pods are isolated. A pod of another namespace then changes only the clause of its address.
func TestPolicyBomb(t *testing.T) {
	for name, p := range bombs() {
		t.Run(name, func(t *testing.T) {
			e := bombed(t)
			if err := e.SetNetworkPolicy(p); err == nil {
				t.Error("got no error, want one about its size")
			}
			clauses, flows := e.Drain(), 0
			for _, c := range clauses {
				if c.Kind != Outcome {
					flows += len(e.Compile(c))
				}
			}
			if len(clauses) != 1 || flows > 0 {
				t.Errorf("got %d clauses with %d flows, want one without flows", len(clauses), flows)
			}
			e.DeletePod(PodKey{Namespace: "other", Name: "p7"})
			e.SetPod(labelled("other", "p7", addr(1007), nil))
			if clauses := e.Drain(); len(clauses) > 1 {
				t.Errorf("a pod of another namespace changes the clauses %v, want only that of its address", clauses)
			}
		})
	}
}

func TestPolicyBomb_duration(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: bounds of durations")
	}
	for name, p := range bombs() {
		t.Run(name, func(t *testing.T) {
			e := bombed(t)
			start := time.Now()
			err := e.SetNetworkPolicy(p)
			flows := compileAll(e)
			took := time.Since(start)
			t.Logf("compiled %d flows in %v; %v", flows, took, err)
			if took > bombTime {
				t.Errorf("compiled in %v, want at most %v", took, bombTime)
			}
			start = time.Now()
			e.DeletePod(PodKey{Namespace: "other", Name: "p7"})
			e.SetPod(labelled("other", "p7", addr(1007), nil))
			compileAll(e)
			if took := time.Since(start); took > bombTime/50 {
				t.Errorf("a pod of another namespace took %v, want at most %v", took, bombTime/50)
			}
		})
	}
}
