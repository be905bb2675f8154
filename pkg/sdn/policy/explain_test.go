package policy

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func podAt(namespace, name, addr string) Pod {
	return Pod{PodKey: PodKey{Namespace: namespace, Name: name}, Addrs: []netip.Addr{netip.MustParseAddr(addr)}}
}

// isolating is a policy that selects all pods of its namespace, and allows nothing.
func isolating(namespace, name string, directions ...networkingv1.PolicyType) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: networkingv1.NetworkPolicySpec{PolicyTypes: directions},
	}
}

func TestPodByAddr(t *testing.T) {
	e := New()
	addr := netip.MustParseAddr("10.128.0.5")
	want := func(when string, want PodKey) {
		t.Helper()
		if got, ok := e.PodByAddr(addr); got != want || ok != (want != PodKey{}) {
			t.Errorf("%s: got %v, %v; want %v", when, got, ok, want)
		}
	}
	want("of no pod", PodKey{})
	e.SetPod(podAt("a", "old", addr.String()))
	want("of a pod", PodKey{Namespace: "a", Name: "old"})
	e.Attach(PodKey{Namespace: "a", Name: "new"}, addr)
	want("also of a pod on this node", PodKey{Namespace: "a", Name: "new"})
	e.Detach(PodKey{Namespace: "a", Name: "new"})
	e.DeletePod(PodKey{Namespace: "a", Name: "old"})
	want("after both pods were deleted", PodKey{})
	e.SetNode("n1", nil, addr)
	want("of a node", PodKey{Namespace: "", Name: "n1"})
}

func TestIsolators(t *testing.T) {
	e := New()
	key := PodKey{Namespace: "a", Name: "web"}
	e.SetPod(podAt("a", "web", "10.128.0.5"))
	want := func(when string, d Direction, want string) {
		t.Helper()
		names, more := e.Isolators(key, d, 2)
		if got := fmt.Sprintf("%s +%d", strings.Join(names, " "), more); got != want {
			t.Errorf("%s: got %s, want %s", when, got, want)
		}
	}
	for _, p := range []*networkingv1.NetworkPolicy{
		isolating("a", "p3", networkingv1.PolicyTypeIngress), isolating("a", "p1", networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress),
		isolating("a", "p4", networkingv1.PolicyTypeIngress), isolating("a", "p2", networkingv1.PolicyTypeIngress), isolating("b", "p0"),
	} {
		if err := e.SetNetworkPolicy(p); err != nil {
			t.Fatal(err)
		}
	}
	want("on another node", Ingress, " +0")
	e.Attach(key)
	want("by four", Ingress, "a/p1 a/p2 +2")
	want("by one", Egress, "a/p1 +0")
	e.DeleteNetworkPolicy("a", "p1")
	want("by none", Egress, " +0")
	want("by three", Ingress, "a/p2 a/p3 +1")
}

func TestRuleName(t *testing.T) {
	e := New()
	e.SetPod(podAt("a", "web", "10.128.0.5"))
	e.Attach(PodKey{Namespace: "a", Name: "web"})
	p := isolating("a", "open", networkingv1.PolicyTypeIngress)
	udp := corev1.ProtocolUDP
	p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{}, {Ports: []networkingv1.NetworkPolicyPort{{Protocol: &udp}}}}
	if err := e.SetNetworkPolicy(p); err != nil {
		t.Fatal(err)
	}
	var id uint32
	for _, clause := range e.Drain() {
		if clause.Kind == Port {
			id = e.Compile(clause)[0].Conj[0].ID
		}
	}
	if name, ok := e.RuleName(id); name != "a/open/ingress/1" || !ok {
		t.Errorf("got %q, %v, want a/open/ingress/1", name, ok)
	}
	e.DeleteNetworkPolicy("a", "open")
	if name, ok := e.RuleName(id); ok {
		t.Errorf("after the policy was deleted: got %q, want no name", name)
	}
}

func TestRuleIDs(t *testing.T) {
	e := New()
	p := isolating("a", "open", networkingv1.PolicyTypeIngress)
	p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{}}
	for _, p := range []*networkingv1.NetworkPolicy{p, isolating("a", "closed", networkingv1.PolicyTypeEgress)} {
		if err := e.SetNetworkPolicy(p); err != nil {
			t.Fatal(err)
		}
	}
	want := func(when, name string, rules int, isolates, ok bool) {
		t.Helper()
		ids, gotIsolates, gotOK := e.RuleIDs("a", name)
		if len(ids) != rules || gotIsolates != isolates || gotOK != ok {
			t.Errorf("%s: got IDs %v, %t, %t, want %d, %t, %t", when, ids, gotIsolates, gotOK, rules, isolates, ok)
		}
	}
	e.SetPod(podAt("a", "web", "10.128.0.5"))
	want("on another node", "open", 0, false, false)
	e.Attach(PodKey{Namespace: "a", Name: "web"})
	want("with a rule", "open", 1, true, true)
	want("without rules", "closed", 0, true, true)
	want("of another name", "none", 0, false, false)
	ids, _, _ := e.RuleIDs("a", "open")
	if name, ok := e.RuleName(ids[0]); name != "a/open/ingress/0" || !ok {
		t.Errorf("got the rule %q, %t", name, ok)
	}
}
