package policy

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/test/seed"
	"github.com/ovsdn/ovsdn/test/tier"
)

// costOf returns the policy's part in the budgets.
func costOf(p *networkingv1.NetworkPolicy) int { return policyWithCost(p).cost }

// costly returns a policy for the pods with label app=APP, with a rule of that many peers.
func costly(namespace, name, app string, age time.Duration, peers int) *networkingv1.NetworkPolicy {
	p := allowFrom(namespace, name, 80, slices.Repeat([]string{"peer"}, peers)...)
	p.CreationTimestamp = metav1.NewTime(time.Unix(1_000_000, 0).Add(age))
	p.Spec.PodSelector.MatchLabels = map[string]string{"app": app}
	return p
}

// wantBuilt is the model: which policies have rules, computed from all policies at once.
func wantBuilt(all map[policyKey]*networkingv1.NetworkPolicy, local map[policyKey]bool, l limits) []string {
	byNamespace := map[string][]*networkingv1.NetworkPolicy{}
	for _, p := range all {
		byNamespace[p.Namespace] = append(byNamespace[p.Namespace], p)
	}
	sums := map[string]int{}
	for ns, list := range byNamespace {
		slices.SortFunc(list, func(x, y *networkingv1.NetworkPolicy) int {
			return cmp.Or(x.CreationTimestamp.Compare(y.CreationTimestamp.Time), cmp.Compare(x.Name, y.Name))
		})
		cost := 0
		byNamespace[ns] = slices.DeleteFunc(list, func(p *networkingv1.NetworkPolicy) bool {
			cost += costOf(p)
			return cost > l.namespace || !local[policyKey{ns, p.Spec.PodSelector.MatchLabels["app"]}]
		})
		for _, p := range byNamespace[ns] {
			sums[ns] += costOf(p)
		}
	}
	share := 1 << 30
	for ; share > 0; share /= 2 {
		sum := 0
		for _, n := range sums {
			sum += min(n, share)
		}
		if sum <= l.node {
			break
		}
	}
	var built []string
	for ns, list := range byNamespace {
		cost := 0
		for _, p := range list {
			if cost += costOf(p); cost <= share {
				built = append(built, ns+"/"+p.Name)
			}
		}
	}
	slices.Sort(built)
	return built
}

// Which policies have rules follows from the policies and the pods of this node, not from the order of events.
func TestBudgetsDoNotDependOnTheOrder(t *testing.T) {
	random := seed.Rand(t)
	for round := range tier.Size(t, 10, 100, "random orders of events") {
		e := New()
		e.limits = limits{policy: maxPolicyCost, namespace: 120, node: 200}
		all, local := map[policyKey]*networkingv1.NetworkPolicy{}, map[policyKey]bool{}
		namespaces := []string{"a", "b", "c"}
		for _, ns := range namespaces {
			e.SetNamespace(ns, nil)
		}
		for step := range 60 {
			ns := namespaces[random.IntN(len(namespaces))]
			switch name := fmt.Sprintf("np%d", random.IntN(8)); random.IntN(6) {
			case 0:
				e.DeleteNetworkPolicy(ns, name)
				delete(all, policyKey{ns, name})
			case 1:
				app := fmt.Sprintf("app%d", random.IntN(2))
				key := PodKey{Namespace: ns, Name: app}
				local[policyKey{ns, app}] = !local[policyKey{ns, app}]
				if at := addr(10*slices.Index(namespaces, ns) + int(app[3])); local[policyKey{ns, app}] {
					e.SetPod(labelled(ns, app, at, map[string]string{"app": app}))
					e.Attach(key, at)
				} else {
					e.Detach(key)
					e.DeletePod(key)
				}
			default:
				p := costly(ns, name, fmt.Sprintf("app%d", random.IntN(2)), time.Duration(random.IntN(4))*time.Second, random.IntN(30))
				if err := e.SetNetworkPolicy(p); err != nil {
					t.Fatal(err)
				}
				all[policyKey{ns, name}] = p
			}
			if random.IntN(3) > 0 {
				continue // more than one change at once
			}
			e.Drain()
			if got, want := builtOf(e), wantBuilt(all, local, e.limits); !gocmp.Equal(got, want, cmpopts.EquateEmpty()) {
				t.Fatalf("round %d, step %d: policies with rules: got %v, want %v", round, step, got, want)
			}
			var over []string
			for key, p := range all {
				if app := p.Spec.PodSelector.MatchLabels["app"]; local[policyKey{p.Namespace, app}] && !e.policies[key].built {
					over = append(over, key.String())
				}
			}
			slices.Sort(over)
			if got := e.OverBudget(); !slices.Equal(got, over) {
				t.Fatalf("round %d, step %d: policies over budget: got %v, want %v", round, step, got, over)
			}
		}
	}
}

// OverBudget is called for each update, so it must not cost anything while no budget is concerned, however many policies exceed one.
func TestOverBudgetCostsNothingWithoutChange(t *testing.T) {
	e := New()
	e.limits = limits{policy: maxPolicyCost, namespace: 120, node: 200}
	for n := range 10 {
		ns := fmt.Sprintf("ns%d", n)
		e.SetNamespace(ns, nil)
		e.SetPod(labelled(ns, "target", addr(n), map[string]string{"app": "target"}))
		e.Attach(PodKey{Namespace: ns, Name: "target"}, addr(n))
		for i := range 20 {
			if err := e.SetNetworkPolicy(costly(ns, fmt.Sprintf("np%d", i), "target", 0, 10)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := len(e.OverBudget()); got == 0 {
		t.Fatal("no policy is over budget, want some")
	}
	e.SetPod(labelled("ns0", "other", addr(100), nil))
	if allocs := testing.AllocsPerRun(10, func() { e.OverBudget() }); allocs > 0 {
		t.Errorf("%v allocations per call, want 0", allocs)
	}
	if e.overBudgetDirty {
		t.Error("after an event of a pod that no policy selects: got the list marked as changed, want it unchanged")
	}
}

// While the budget of the node is exceeded, a policy that gets or loses its first local pod costs nothing for other namespaces, as long as all have the
// same share.
func TestBudgetOfNode_podOfOneNamespace(t *testing.T) {
	const namespaces = 300
	e := New()
	e.limits = limits{policy: maxPolicyCost, namespace: 1000, node: 60 * namespaces}
	for n := range namespaces {
		ns := fmt.Sprintf("ns%d", n)
		e.SetNamespace(ns, nil)
		e.SetPod(labelled(ns, "target", addr(n), map[string]string{"app": "target"}))
		e.Attach(PodKey{Namespace: ns, Name: "target"}, addr(n))
		for i := range 5 {
			if err := e.SetNetworkPolicy(costly(ns, fmt.Sprintf("np%d", i), "target", 0, 10)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := e.SetNetworkPolicy(costly("ns0", "first", "first", -time.Hour, 1)); err != nil {
		t.Fatal(err)
	}
	first := PodKey{Namespace: "ns0", Name: "first"}
	e.SetPod(labelled("ns0", "first", addr(namespaces), map[string]string{"app": "first"}))
	e.Drain()
	share := e.share
	if share == math.MaxInt || len(e.OverBudget()) == 0 {
		t.Fatalf("got share %d, %d policies over budget, want a budget that is exceeded", share, len(e.OverBudget()))
	}
	allocs := testing.AllocsPerRun(10, func() {
		e.Attach(first, addr(namespaces))
		e.Drain()
		if !e.policies[policyKey{"ns0", "first"}].built {
			t.Error("the policy of the attached pod has no rules")
		}
		e.OverBudget()
		e.Detach(first)
		e.Drain()
		e.OverBudget()
	})
	if e.share != share {
		t.Fatalf("got share %d, want %d as before", e.share, share)
	}
	if allocs > namespaces {
		t.Errorf("got %v allocations, want at most %d: one for each namespace is too many", allocs, namespaces)
	}
}

func builtOf(e *Engine) (built []string) {
	for key, p := range e.policies {
		if p.built {
			built = append(built, key.String())
		}
	}
	slices.Sort(built)
	return built
}

// A policy over a budget isolates its pods and allows nothing; it gets its rules when the budget suffices.
func TestBudgetFailsClosed(t *testing.T) {
	e := New()
	e.limits = limits{policy: 20, namespace: 30, node: 1000}
	e.SetNamespace("ns", nil)
	for i, app := range []string{"target", "peer"} {
		e.SetPod(labelled("ns", app, addr(i), map[string]string{"app": app}))
	}
	e.Attach(PodKey{Namespace: "ns", Name: "target"}, addr(0))
	fromPeer := Packet{Peer: addr(1), Protocol: "TCP", Port: 80}
	check := func(what string, want bool) {
		t.Helper()
		e.Drain()
		ingress, _ := e.Isolated(PodKey{Namespace: "ns", Name: "target"})
		if got := e.Allows(Ingress, PodKey{Namespace: "ns", Name: "target"}, fromPeer); got != want || !ingress {
			t.Errorf("%s: allowed %v, isolated %v; want %v, true", what, got, ingress, want)
		}
	}
	if err := e.SetNetworkPolicy(costly("ns", "large", "target", 0, 30)); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("got error %v, want one about its size", err)
	}
	check("larger than a policy's budget", false)
	for age, name := range []string{"first", "second"} { // each costs 18
		if err := e.SetNetworkPolicy(costly("ns", name, map[bool]string{true: "nothing", false: "target"}[age == 0], time.Duration(age)*time.Second, 8)); err != nil {
			t.Fatal(err)
		}
	}
	check("the second over the namespace's budget", false)
	e.DeleteNetworkPolicy("ns", "first")
	check("the first deleted", true)
}

// A namespace that needs less than its share of a node loses nothing, whatever others have.
func TestBudgetOfNodeIsFair(t *testing.T) {
	e := New()
	e.limits = limits{policy: maxPolicyCost, namespace: 1000, node: 500}
	for n, ns := range []string{"old", "small", "new"} {
		e.SetNamespace(ns, nil)
		e.SetPod(labelled(ns, "target", addr(n), map[string]string{"app": "target"}))
		e.Attach(PodKey{Namespace: ns, Name: "target"}, addr(n))
		policies := 20
		if ns == "small" {
			policies = 2
		}
		for i := range policies {
			if err := e.SetNetworkPolicy(costly(ns, fmt.Sprintf("np%02d", i), "target", time.Duration(n)*time.Hour, 10)); err != nil {
				t.Fatal(err)
			}
		}
	}
	e.Drain()
	count := map[string]int{}
	for _, name := range builtOf(e) {
		count[strings.Split(name, "/")[0]]++
	}
	if count["small"] != 2 || count["old"] != count["new"] || count["old"] == 0 || count["old"] == 20 {
		t.Errorf("policies with rules: %v, want all of small, as many of old as of new", count)
	}
}

// The result of Compact is evaluated and reported like the original policy.
func TestCompact(t *testing.T) {
	for name, p := range bombs() {
		p.Annotations = map[string]string{"large": strings.Repeat("x", 1<<18)}
		small := Compact(p)
		if len(small.Annotations) > 1 || len(small.Annotations["large"]) > 0 {
			t.Errorf("%s: annotations %v", name, slices.Sorted(maps.Keys(small.Annotations)))
		}
		got, want := CheckNetworkPolicy(small), CheckNetworkPolicy(p)
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: faults %v, want %v", name, got, want)
		}
		if isolates(&small.Spec) != isolates(&p.Spec) || costOf(small) != costOf(p) && len(got) == 0 {
			t.Errorf("%s: isolates %v, want %v; cost %d, want %d", name, isolates(&small.Spec), isolates(&p.Spec), costOf(small), costOf(p))
		}
	}
	p := allowFrom("ns", "np", 80, "web")
	if diff := gocmp.Diff(p.Spec, Compact(p).Spec); diff != "" {
		t.Error(diff)
	}
}

// The controller's ledger finds the same policies over the namespace's budget as the model of the engine.
func TestLedger(t *testing.T) {
	random := seed.Rand(t)
	l, all := NewLedger(), map[policyKey]*networkingv1.NetworkPolicy{}
	l.budget = 120
	for range tier.Size(t, 100, 300, "random changes") {
		name := fmt.Sprintf("np%d", random.IntN(12))
		if random.IntN(4) == 0 {
			l.Delete(name)
			delete(all, policyKey{"ns", name})
		} else {
			p := costly("ns", name, "app", time.Duration(random.IntN(4))*time.Second, random.IntN(30))
			l.Set(p)
			all[policyKey{"ns", name}] = p
		}
		built := wantBuilt(all, map[policyKey]bool{{"ns", "app"}: true}, limits{namespace: l.budget, node: 1 << 20})
		var want []string
		for key := range all {
			if !slices.Contains(built, key.String()) {
				want = append(want, key.name)
			}
		}
		got := slices.Sorted(slices.Values(l.OverBudget()))
		slices.Sort(want)
		if !gocmp.Equal(got, want, cmpopts.EquateEmpty()) {
			t.Fatalf("policies over the budget: got %v, want %v", got, want)
		}
	}
}
