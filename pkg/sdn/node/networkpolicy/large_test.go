package networkpolicy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/tier"
)

// pause pauses the compilation of a large change after one of its parts.
type pause struct {
	reached chan struct{} // receives when the compilation is paused
	release chan struct{} // closed: the compilation continues
}

func newPause() *pause { return &pause{reached: make(chan struct{}), release: make(chan struct{})} }

func (s *pause) afterPart() {
	select {
	case s.reached <- struct{}{}:
		<-s.release
	case <-s.release:
	}
}

// largePolicies returns the policies of a namespace that together are a large change.
func largePolicies(namespace string) (all []*networkingv1.NetworkPolicy) {
	for i := range 3 {
		all = append(all, largePolicy(namespace, "large"+strings.Repeat("x", i), maxClauses, false))
	}
	return all
}

// addTogether adds policies of one namespace. The engine gets all of them at once.
func (f *fixture) addTogether(policies []*networkingv1.NetworkPolicy) {
	f.t.Helper()
	f.Policies.mu.Lock() // Policies takes no change from its queue
	defer f.Policies.mu.Unlock()
	for _, np := range policies {
		f.networkPolicies.Add(np)
	}
	await.OK(f.t, testTimeout, func(context.Context) error {
		f.changes.mu.Lock()
		defer f.changes.mu.Unlock()
		if n := len(f.changes.policies[policies[0].Namespace]); n != len(policies) {
			return fmt.Errorf("informers have %d of %d policies", n, len(policies))
		}
		return nil
	})
}

// newPaused returns a fixture with a pod in namespace bomb, where the compilation of a large change of that namespace is paused until release is called.
func newPaused(t *testing.T) (f *fixture, release func()) {
	t.Helper()
	s := newPause()
	f = newFixture(t, func(f *fixture) {
		f.afterPart = s.afterPart
		f.tenant("bomb", 11, team("bomb"))
		f.tenant("a", 10, team("a"))
		f.tenant("b", 12, team("b"))
		f.pods.Add(podObject("b", "peer", "1", "10.129.0.9", labels("peer")))
		f.networkPolicies.Add(allow("a", "web", "b", 8080))
		f.networkPolicies.Add(allow("bomb", "web", "b", 8080))
	})
	f.attachPod(podObject("bomb", "victim", "u0", "10.128.0.9", labels("web")), "sb-victim", 9, "10.128.0.9")
	f.InitialSyncDone()
	f.addTogether(largePolicies("bomb"))
	<-s.reached
	var released bool
	release = func() {
		if !released {
			close(s.release)
		}
		released = true
	}
	t.Cleanup(release) // runs before the fixture's cleanup
	return f, release
}

// The compilation of one namespace's large change does not block pods of other namespaces.
func TestLargeChange_podsOfOtherNamespacesStart(t *testing.T) {
	tier.Parallel(t)
	f, release := newPaused(t)
	f.attachPod(podObject("a", "web", "2", "", labels("web")), "s1", 3, "10.128.0.5")
	if err := errors.Join(has(1, "table=81,", "reg2=0x3,")(f.policyFlows()), has(0, "nw_src=192.")(f.policyFlows())); err != nil {
		t.Error(err)
	}
	f.detachPod("s1")
	release()
	f.eventually(has(3*maxClauses, "nw_src=192."))
}

// A pod of the namespace itself waits for the large change, and is isolated until then.
func TestLargeChange_podOfTheNamespaceWaits(t *testing.T) {
	tier.Parallel(t)
	f, release := newPaused(t)
	key := policy.PodKey{Namespace: "bomb", Name: "new", UID: "2"}
	done := f.Attach(t.Context(), owner("s1"), key, pod(3, "10.128.0.5"), podObject("bomb", "new", "2", "", labels("web")))
	if got := f.podPolicies(key); !got.Evaluated || !got.Ingress || !got.Egress {
		t.Errorf("got policies %+v, want isolation both ways", got)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := done(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v before the policies are installed, want context.Canceled", err)
	}
	release()
	f.must(done(t.Context()))
	if got := f.podPolicies(key); !got.Ingress || got.Egress {
		t.Errorf("got policies %+v, want isolation of ingress", got)
	}
	if err := has(3*maxClauses, "nw_src=192.")(f.policyFlows()); err != nil {
		t.Error(err)
	}
}

// Changes during the compilation of a large change result in the same flows as changes before it.
func TestLargeChange_changesInTheMeantime(t *testing.T) {
	tier.Parallel(t)
	f, release := newPaused(t)
	change := func(f *fixture) {
		f.networkPolicies.Delete(largePolicies("bomb")[0])
		f.networkPolicies.Modify(allow("bomb", "web", "b", 9090))
		f.pods.Add(podObject("b", "peer2", "7", "10.129.0.10", labels("peer")))
		f.pods.Add(podObject("bomb", "victim", "u0", "10.128.0.9", labels("none")))
	}
	change(f)
	f.attachPod(podObject("a", "web", "2", "", labels("web")), "s1", 3, "10.128.0.5")
	release()
	again := newFixture(t, func(f *fixture) {
		f.tenant("bomb", 11, team("bomb"))
		f.tenant("a", 10, team("a"))
		f.tenant("b", 12, team("b"))
		f.pods.Add(podObject("b", "peer", "1", "10.129.0.9", labels("peer")))
		f.networkPolicies.Add(allow("a", "web", "b", 8080))
		f.networkPolicies.Add(allow("bomb", "web", "b", 8080))
		for _, np := range largePolicies("bomb") {
			f.networkPolicies.Add(np)
		}
		change(f)
	})
	again.attachPod(podObject("bomb", "victim", "u0", "10.128.0.9", labels("none")), "sb-victim", 9, "10.128.0.9")
	again.attachPod(podObject("a", "web", "2", "", labels("web")), "s1", 3, "10.128.0.5")
	want := again.policyFlows()
	f.eventually(func(flows []string) error {
		if !slices.Equal(flows, want) {
			return fmt.Errorf("flows differ (-want +got):\n%s", cmp.Diff(want, flows))
		}
		return nil
	})
}

// The target flows of a pod that stops are removed at once, since another pod may get its port.
func TestLargeChange_podStops(t *testing.T) {
	tier.Parallel(t)
	f, release := newPaused(t)
	f.detachPod("sb-victim")
	if err := has(0, "reg2=0x9,")(f.policyFlows()); err != nil {
		t.Error(err)
	}
	release()
	f.eventually(has(0, "nw_src=192."))
}

// A pod whose start causes a large change waits for it, and is isolated until then.
func TestLargeChange_firstPodOfTheNamespace(t *testing.T) {
	tier.Parallel(t)
	s := newPause()
	f := newFixture(t, func(f *fixture) {
		f.afterPart = s.afterPart
		f.tenant("bomb", 11, nil)
		for _, np := range largePolicies("bomb") {
			f.networkPolicies.Add(np)
		}
	})
	f.InitialSyncDone()
	key := policy.PodKey{Namespace: "bomb", Name: "first", UID: "2"}
	done := f.Attach(t.Context(), owner("s1"), key, pod(3, "10.128.0.5"), podObject("bomb", "first", "2", "", nil))
	<-s.reached
	if got := f.podPolicies(key); got != (pipeline.PodPolicies{Evaluated: true, Ingress: true, Egress: true}) {
		t.Errorf("got policies %+v, want isolation both ways", got)
	}
	close(s.release)
	f.must(done(t.Context()))
	if got := f.podPolicies(key); !got.Ingress || got.Egress {
		t.Errorf("got policies %+v, want isolation of ingress", got)
	}
}
