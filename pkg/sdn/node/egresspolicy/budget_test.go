package egresspolicy

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/seed"
)

// Which namespaces are beyond the budget follows from their flows, not from the order of events.
func TestBudget_doesNotDependOnTheOrder(t *testing.T) {
	random := seed.Rand(t)
	for round := range 200 {
		b := newBudget()
		b.limit = 100
		refused := map[string]bool{} // as an agent knows them
		for step := range 50 {
			name := fmt.Sprintf("tenant%d", random.IntN(8))
			before := maps.Clone(b.refused)
			others := b.set(name, max(0, random.IntN(60)-10))
			for _, other := range append(others, name) {
				if refused[other] = b.refused[other]; !refused[other] {
					delete(refused, other)
				}
			}
			if slices.Contains(others, name) || slices.ContainsFunc(others, func(n string) bool { return before[n] == b.refused[n] }) {
				t.Fatalf("round %d, step %d: got others %v of %s, want those that changed", round, step, others, name)
			}
			want := wantRefused(b.flows, b.limit)
			if got := slices.Sorted(maps.Keys(refused)); !slices.Equal(got, want) {
				t.Fatalf("round %d, step %d: got %v beyond the budget, want %v of %v", round, step, got, want, b.flows)
			}
		}
	}
}

// wantRefused is the model: the smallest namespaces have their flows as long as the budget suffices.
func wantRefused(flows map[string]int, limit int) (refused []string) {
	names := slices.Collect(maps.Keys(flows))
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(flows[a]-flows[b], strings.Compare(a, b)) })
	for _, name := range names {
		if limit -= flows[name]; limit < 0 {
			refused = append(refused, name)
		}
	}
	slices.Sort(refused)
	return refused
}

func TestBudget_costsNothingWithinIt(t *testing.T) {
	b := newBudget()
	for i := range 500 {
		b.set(fmt.Sprintf("tenant%d", i), 10)
	}
	flows := 10
	if allocs := testing.AllocsPerRun(100, func() { flows++; b.set("tenant3", flows) }); allocs > 0 {
		t.Errorf("got %v allocations of a change within the budget, want none", allocs)
	}
}

// recordedEvents implements Events.
type recordedEvents struct {
	mu  sync.Mutex
	all []string
}

func (e *recordedEvents) WarnEgressNetworkPolicy(o *networkv1.EgressNetworkPolicy, reason, message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, fmt.Sprintf("%s/%s %s: %s", o.Namespace, o.Name, reason, message))
}

func (e *recordedEvents) list() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.all)
}

// rules returns rules for as many addresses.
func rules(n int) []string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("Allow 192.0.2.%d/32", i))
	}
	return all
}

// verdicts returns the number of flows of each namespace, and "closed" if it is the one that denies all.
func (a *agent) verdicts() map[string]string {
	all := map[string]string{}
	for _, name := range []string{"large", "middle", "small"} {
		id := a.number(name)
		if id == 0 {
			continue
		}
		flows := slices.DeleteFunc(a.flows(), func(f string) bool { return !strings.Contains(f, fmt.Sprintf("reg10=%#x,", id)) })
		all[name] = fmt.Sprint(len(flows))
		if slices.Equal(flows, []string{fmt.Sprintf("priority=100,reg10=%#x,actions=drop", id)}) {
			all[name] = "closed"
		}
	}
	return all
}

func (a *agent) wantVerdicts(what string, want map[string]string) {
	a.t.Helper()
	await.OK(a.t, testTimeout, func(context.Context) error {
		if got := a.verdicts(); !maps.Equal(got, want) {
			return fmt.Errorf("%s: got flows %v, want %v", what, got, want)
		}
		return nil
	})
}

// A namespace whose firewall is beyond the budget of the node is closed until there is room, whichever came first.
func TestPolicies_beyondBudget(t *testing.T) {
	sizes := map[string]int{"small": 10, "middle": 20, "large": 30}
	both := map[string]string{"small": "11", "middle": "21", "large": "closed"}
	for _, order := range [][]string{{"small", "middle", "large"}, {"large", "middle", "small"}} {
		t.Run(strings.Join(order, " "), func(t *testing.T) {
			c := newCluster(t)
			c.limit = 50
			a, stop := c.start(t)
			for i, name := range order {
				c.policies.Add(egressPolicy(name+"/default", rules(sizes[name])...))
				await.OK(t, testTimeout, func(context.Context) error {
					if len(a.objects(name)) == 0 {
						return fmt.Errorf("policy of %s: got none", name)
					}
					return nil
				})
				if err := a.attach(fmt.Sprintf("%s/%d", name, 10+i))(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			a.wantVerdicts("all", both)
			if namespaces, flows := a.BeyondBudget(); namespaces != 1 || flows != 31 {
				t.Errorf("got %d namespaces with %d flows beyond the budget, want 1 with 31", namespaces, flows)
			}
			want := "large/default " + eventreason.EgressFirewallBeyondBudget + ": the egress firewall of namespace large has 31 flows"
			if got := c.events.list(); len(got) != 1 || !strings.HasPrefix(got[0], want) {
				t.Errorf("got Events %q, want one that begins with %q", got, want)
			}

			c.policies.Modify(egressPolicy("small/default", rules(25)...))
			a.wantVerdicts("grown", map[string]string{"small": "26", "middle": "21", "large": "closed"})
			c.policies.Modify(egressPolicy("middle/default", rules(40)...))
			a.wantVerdicts("others first", map[string]string{"small": "26", "middle": "closed", "large": "closed"})
			c.policies.Modify(egressPolicy("middle/default", rules(20)...))
			c.policies.Modify(egressPolicy("small/default", rules(10)...))
			a.wantVerdicts("as before", both)
			stop()

			bundles := c.bridge.Changes()
			a, _ = c.start(t, "large/5", "small/6", "middle/7")
			a.wantVerdicts("restart", both)
			if got := c.bridge.Changes() - bundles; got != 0 {
				t.Errorf("got %d changes by the restart, want none", got)
			}
			if err := a.Detach(owner("middle/7"))(t.Context()); err != nil {
				t.Fatal(err)
			}
			a.wantVerdicts("room", map[string]string{"small": "11", "large": "31"})
			c.policies.Delete(egressPolicy("small/default"))
			a.wantVerdicts("no policy", map[string]string{"large": "31"})
		})
	}
}
