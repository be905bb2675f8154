package networkpolicy

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/test/tier"
)

// largePolicy returns a policy with a block for each of n addresses, or one block with that many exceptions.
func largePolicy(namespace, name string, n int, exceptions bool) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	rule := networkingv1.NetworkPolicyIngressRule{}
	all := &networkingv1.IPBlock{CIDR: "0.0.0.0/0"}
	for i := range n {
		cidr := netip.AddrFrom4([4]byte{192, byte(len(name)), byte(i >> 7), byte(i << 1)}).String() + "/32"
		all.Except = append(all.Except, cidr)
		if !exceptions {
			rule.From = append(rule.From, block(cidr))
		}
	}
	if exceptions {
		rule.From = []networkingv1.NetworkPolicyPeer{{IPBlock: all}}
	}
	p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{rule}
	return p
}

// Three policies of the maximum size in one namespace do not delay the start of pods in another.
func TestLargePoliciesDoNotDelayPods(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: compares durations")
	}
	f := newFixture(t, func(f *fixture) {
		f.tenant("bomb", 11, nil)
		f.tenant("other", 12, nil)
	})
	f.attachPod(podObject("bomb", "victim", "u0", "10.128.0.9", nil), "sb-victim", 9, "10.128.0.9")
	// start starts pods, at least 200 and until the condition holds.
	start := func(done func() bool) (p99, longest time.Duration) {
		var took []time.Duration
		for i := 0; i < 200 || !done(); i++ {
			addr, sandbox := fmt.Sprintf("10.128.1.%d", 2+i%200), fmt.Sprintf("sb%d", i)
			began := time.Now()
			f.attachPod(podObject("other", sandbox, sandbox, addr, nil), sandbox, 100+i%200, addr)
			took = append(took, time.Since(began))
			f.detachPod(sandbox)
		}
		slices.Sort(took)
		return took[len(took)*99/100-1], took[len(took)-1]
	}
	f.InitialSyncDone()
	without, _ := start(func() bool { return true })
	f.networkPolicies.Add(largePolicy("bomb", "exceptions", 40_000, true)) // beyond its budget
	f.networkPolicies.Add(largePolicy("bomb", "blocks", 4_990, false))     // the largest within its budget
	many := largePolicy("bomb", "rules", 0, false)
	many.Spec.Ingress = slices.Repeat(many.Spec.Ingress, 9_000)
	f.networkPolicies.Add(many)
	with, longest := start(func() bool { return count(f.policyFlows(), "table=81", "conjunction") >= 9_980 })
	t.Logf("p99 of pods: %v, with large policies %v, longest %v; compiled %+v", without, with, longest, f.CompileTime())
	// A complete ADD takes at least 20 ms, so shorter delays do not matter.
	if limit := 5 * max(without, 20*time.Millisecond); with > limit {
		t.Errorf("p99 %v with large policies, want at most %v", with, limit)
	}
}

// An Event on the Node names the policies that exceed a budget.
func TestPoliciesOverBudgetAreReported(t *testing.T) {
	tier.Parallel(t)
	f := newFixture(t, func(f *fixture) {
		f.tenant("bomb", 11, nil)
		for i := range maxNamedPolicies + 12 { // the first 10 are within the namespace's budget
			p := largePolicy("bomb", fmt.Sprintf("np%02d", i), 0, false)
			p.Spec.Ingress[0].From = []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: labels("none")}}} // no flows
			p.Spec.Ingress = slices.Repeat(p.Spec.Ingress, 3_300)                                                                        // with a cost of 3 each
			f.networkPolicies.Add(p)
		}
	})
	f.attachPod(podObject("bomb", "victim", "u0", "10.128.0.9", nil), "sb-victim", 9, "10.128.0.9")
	f.networkPolicies.Delete(largePolicy("bomb", "np21", 0, false))
	want := eventreason.NetworkPoliciesBeyondBudgets + ": NetworkPolicies bomb/np10, bomb/np11, bomb/np12, bomb/np13, bomb/np14, bomb/np15, bomb/np16, bomb/np17, bomb/np18, bomb/np19 and 1 more exceed"
	f.eventually(func([]string) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if n := len(f.warned); n == 0 || !strings.HasPrefix(f.warned[n-1], want) {
			return fmt.Errorf("Events %q, want the last to begin with %q", f.warned, want)
		}
		return nil
	})
}

// Annotations may be large; the agent caches only those that it reads.
func TestTransform_removesAnnotations(t *testing.T) {
	meta := func() metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: "o", Annotations: map[string]string{"example.com/large": strings.Repeat("x", 1<<18), config.LogDeniedAnnotation: "true"}}
	}
	for _, object := range []metav1.Object{
		&corev1.Pod{ObjectMeta: meta()}, &corev1.Node{ObjectMeta: meta()}, &networkingv1.NetworkPolicy{ObjectMeta: meta()},
		&policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: meta()}, &corev1.Namespace{ObjectMeta: meta()},
	} {
		transformed, err := Transform(object)
		if err != nil {
			t.Fatal(err)
		}
		o, _ := transformed.(metav1.Object)
		want := map[string]string{}
		if _, is := object.(*corev1.Namespace); is {
			want[config.LogDeniedAnnotation] = "true"
		}
		if got := o.GetAnnotations(); !maps.Equal(got, want) {
			t.Errorf("%T: got %d annotations, want %v", object, len(got), want)
		}
		if len(object.GetAnnotations()) != 2 {
			t.Errorf("%T: Transform changed its argument", object)
		}
	}
}
