package policy

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
			cost += Cost(p)
			return cost > l.namespace || !local[policyKey{ns, p.Spec.PodSelector.MatchLabels["app"]}]
		})
		for _, p := range byNamespace[ns] {
			sums[ns] += Cost(p)
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
			if cost += Cost(p); cost <= share {
				built = append(built, ns+"/"+p.Name)
			}
		}
	}
	slices.Sort(built)
	return built
}

// Which policies have rules follows from the policies and the pods of this node, whatever the order in which they came and went.
func TestBudgetsDoNotDependOnTheOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6)) //nolint:gosec // a test's
	for round := range 100 {
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
				key := PodKey{ns, app}
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
			beyond := 0
			for key, p := range all {
				if app := p.Spec.PodSelector.MatchLabels["app"]; local[policyKey{p.Namespace, app}] && !e.policies[key].built {
					beyond++
				}
			}
			if len(e.Beyond()) != beyond {
				t.Fatalf("round %d, step %d: %d policies beyond the budgets, want %d", round, step, len(e.Beyond()), beyond)
			}
		}
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

// A policy beyond a budget isolates its pods and allows nothing; it gets its rules when there is room.
func TestBudgetFailsClosed(t *testing.T) {
	e := New()
	e.limits = limits{policy: 20, namespace: 30, node: 1000}
	e.SetNamespace("ns", nil)
	for i, app := range []string{"target", "peer"} {
		e.SetPod(labelled("ns", app, addr(i), map[string]string{"app": app}))
	}
	e.Attach(PodKey{"ns", "target"}, addr(0))
	fromPeer := Packet{Peer: addr(1), Protocol: "TCP", Port: 80}
	check := func(what string, want bool) {
		t.Helper()
		e.Drain()
		ingress, _ := e.Isolated(PodKey{"ns", "target"})
		if got := e.Allows(Ingress, PodKey{"ns", "target"}, fromPeer); got != want || !ingress {
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
	check("the second beyond the namespace's budget", false)
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
		e.Attach(PodKey{ns, "target"}, addr(n))
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

// What Compact leaves is evaluated and reported as the whole policy.
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
		if isolates(&small.Spec) != isolates(&p.Spec) || Cost(small) != Cost(p) && len(got) == 0 {
			t.Errorf("%s: isolates %v, want %v; cost %d, want %d", name, isolates(&small.Spec), isolates(&p.Spec), Cost(small), Cost(p))
		}
	}
	p := allowFrom("ns", "np", 80, "web")
	if diff := gocmp.Diff(p.Spec, Compact(p).Spec); diff != "" {
		t.Error(diff)
	}
}

// The ledger of the controller agrees with the engine about who is beyond the namespace's budget.
func TestLedger(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8)) //nolint:gosec // a test's
	l, all := NewLedger(), map[policyKey]*networkingv1.NetworkPolicy{}
	l.budget = 120
	for range 300 {
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
		got := slices.Sorted(slices.Values(l.Beyond()))
		slices.Sort(want)
		if !gocmp.Equal(got, want, cmpopts.EquateEmpty()) {
			t.Fatalf("beyond the budget: got %v, want %v", got, want)
		}
	}
}
