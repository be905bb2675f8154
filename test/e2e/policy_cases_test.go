package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/mattfenwick/cyclonus/pkg/generator"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
)

// allCasesVariable asks for all of cyclonus' cases, and not only for some that between them are about everything.
const allCasesVariable = "OVSDN_E2E_ALL_CASES"

// testPolicyCases applies the cases that cyclonus generates. After each step all senders probe all pods on all ports, and the arrivals match the
// oracle's verdicts on the API's objects.
func testPolicyCases(t *testing.T, c *cluster) {
	g := newGrid(t, c)
	cases := g.cases()
	if os.Getenv(allCasesVariable) == "" {
		cases = covering(cases)
	}
	g.play(t, cases)
}

// cases returns all that can be played.
func (g *grid) cases() []*generator.TestCase {
	last := g.stations[slices.IndexFunc(g.stations, func(s *station) bool { return s.Name == "pod z/c" })]
	return playable(generator.NewTestCaseGenerator(true, last.Addr.String(), g.namespaces, nil, nil).GenerateAllTestCases())
}

// play plays cases, between two rounds without policies.
func (g *grid) play(t *testing.T, cases []*generator.TestCase) {
	t.Helper()
	var took []time.Duration
	questions, stale, traces := 0, 0, 0
	step := func(t *testing.T, what string) {
		t.Helper()
		began := time.Now()
		all := g.evaluate(g.objects(t))
		questions += len(all)
		stale += g.follows(t, what, all)
		took = append(took, time.Since(began))
		traces += g.compareTraces(t, what, all)
	}
	g.answerTraces(t)
	step(t, "without policies")
	for _, tc := range cases {
		t.Run(tc.Description, func(t *testing.T) {
			g.reset(t)
			for i, s := range tc.Steps {
				for _, a := range s.Actions {
					g.act(t, a)
				}
				step(t, fmt.Sprintf("step %d", i+1))
			}
		})
	}
	g.reset(t)
	step(t, "without policies again")
	if err := g.late(); err != nil {
		fixture.Arrived(t, "%v", err)
	}
	slices.Sort(took)
	t.Logf("%d cases, %d steps, %d questions; from a change to the right answer to all: %v median, %v at most; %d times after the switches' caches were emptied; %d traces agree",
		len(cases), len(took), questions, took[len(took)/2], took[len(took)-1], stale, traces)
}

// staleTime is many times what nodes need to follow a change.
const staleTime = 3 * time.Second

// follows returns when the probes agree with the oracle.
//
// The userspace datapath of Open vSwitch 3.1 sometimes retains a cached flow that contradicts its tables, while packets use it;
// ovs-appctl revalidator/wait does not help. Answers that are wrong after staleTime must be right after the caches have been emptied once, which
// the result 1 reports.
func (g *grid) follows(t *testing.T, what string, all []evaluated) (emptied int) {
	t.Helper()
	began := time.Now()
	var last error
	defer func() {
		if errors.Is(last, errArrives) {
			fixture.Arrived(t, "%s: %v", what, last)
		}
	}()
	fixture.Eventually(t, fixture.SyncTime, what, func(ctx context.Context) error {
		err := g.ask(ctx, all)
		last = err
		if err == nil || emptied > 0 || g.Shape().Datapath != lab.Netdev || time.Since(began) < staleTime {
			return err
		}
		emptied = 1
		t.Logf("%s: the caches are emptied, since after %v: %v", what, time.Since(began), err)
		for _, node := range []string{fixture.Node1, fixture.Node2} {
			if _, err := g.TryOutput(ctx, node, "ovs-appctl", "revalidator/purge"); err != nil {
				return err
			}
		}
		return err
	})
	return emptied
}

// playable leaves out the cases in which pods come and go, for which other tests are.
func playable(all []*generator.TestCase) []*generator.TestCase {
	return slices.DeleteFunc(all, func(tc *generator.TestCase) bool {
		return slices.ContainsFunc(tc.Steps, func(s *generator.TestStep) bool {
			return slices.ContainsFunc(s.Actions, func(a *generator.Action) bool {
				return a.CreateNamespace != nil || a.DeleteNamespace != nil || a.CreatePod != nil || a.DeletePod != nil
			})
		})
	})
}

// covering picks cases that between them have all pairs of a tag and a direction that any case has, those with most of them first.
func covering(all []*generator.TestCase) []*generator.TestCase {
	pairs := func(tc *generator.TestCase) (found [][2]string) {
		for _, direction := range []string{generator.TagIngress, generator.TagEgress, ""} {
			if direction != "" && !tc.Tags[direction] {
				continue
			}
			for tag := range tc.Tags {
				found = append(found, [2]string{direction, tag})
			}
		}
		return found
	}
	seen := map[[2]string]bool{}
	unseen := func(tc *generator.TestCase) (n int) {
		for _, p := range pairs(tc) {
			if !seen[p] {
				n++
			}
		}
		return n
	}
	var picked []*generator.TestCase
	for {
		best := slices.MaxFunc(all, func(a, b *generator.TestCase) int { return unseen(a) - unseen(b) })
		if unseen(best) == 0 {
			return picked
		}
		picked = append(picked, best)
		for _, p := range pairs(best) {
			seen[p] = true
		}
	}
}

// reset takes all policies away, and gives all their own labels back.
func (g *grid) reset(t *testing.T) {
	t.Helper()
	for _, ns := range g.namespaces {
		g.deletePolicies(t, ns)
		g.labelNamespace(t, ns, map[string]string{"ns": ns})
		for _, name := range gridNames("a", "b", "c") {
			g.labelPod(t, ns, name, map[string]string{"pod": name})
		}
	}
}

func (g *grid) act(t *testing.T, a *generator.Action) {
	t.Helper()
	switch {
	case a.CreatePolicy != nil:
		g.SetPolicy(t, a.CreatePolicy.Policy)
	case a.UpdatePolicy != nil:
		g.SetPolicy(t, a.UpdatePolicy.Policy)
	case a.DeletePolicy != nil:
		if err := g.Kube.NetworkingV1().NetworkPolicies(a.DeletePolicy.Namespace).Delete(t.Context(), a.DeletePolicy.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	case a.SetNamespaceLabels != nil:
		g.labelNamespace(t, a.SetNamespaceLabels.Namespace, a.SetNamespaceLabels.Labels)
	case a.SetPodLabels != nil:
		g.labelPod(t, a.SetPodLabels.Namespace, a.SetPodLabels.Pod, a.SetPodLabels.Labels)
	}
}

func (c *cluster) labelNamespace(t *testing.T, name string, labels map[string]string) {
	t.Helper()
	if _, err := c.Kube.CoreV1().Namespaces().Patch(t.Context(), name, types.JSONPatchType, replaceLabels(t, labels), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) labelPod(t *testing.T, namespace, name string, labels map[string]string) {
	t.Helper()
	if _, err := c.Kube.CoreV1().Pods(namespace).Patch(t.Context(), name, types.JSONPatchType, replaceLabels(t, labels), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func replaceLabels(t *testing.T, labels map[string]string) []byte {
	t.Helper()
	patch, err := json.Marshal([]map[string]any{{"op": "replace", "path": "/metadata/labels", "value": labels}})
	if err != nil {
		t.Fatal(err)
	}
	return patch
}
