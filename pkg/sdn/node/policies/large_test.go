package policies

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/policy"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// stopped stops the compilation of a large change between two of its parts.
type stopped struct {
	at      chan struct{} // receives when it has stopped
	release chan struct{} // closed: it never stops again
}

func (s *stopped) between() {
	select {
	case s.at <- struct{}{}:
		<-s.release
	case <-s.release:
	}
}

// large returns the policies of a namespace that together are a large change.
func large(namespace string) (all []*networkingv1.NetworkPolicy) {
	for i := range 3 {
		all = append(all, bomb(namespace, "large"+strings.Repeat("x", i), sendPieces, false))
	}
	return all
}

// newStopped returns a fixture with a pod in namespace bomb, whose policies are being compiled, and does not go on before they are released.
func newStopped(t *testing.T) (f *fixture, release func()) {
	t.Helper()
	s := &stopped{at: make(chan struct{}), release: make(chan struct{})}
	f = newFixture(t, func(f *fixture) {
		f.between = s.between
		f.tenant("bomb", 11, team("bomb"))
		f.tenant("a", 10, team("a"))
		f.tenant("b", 12, team("b"))
		f.pods.Add(podObject("b", "peer", "1", "10.129.0.9", labels("peer")))
		f.networkPolicies.Add(allow("a", "web", "b", 8080))
		f.networkPolicies.Add(allow("bomb", "web", "b", 8080))
	})
	f.come(podObject("bomb", "victim", "u0", "10.128.0.9", labels("web")), "sb-victim", 9, "10.128.0.9")
	f.Written()
	for _, np := range large("bomb") {
		f.networkPolicies.Add(np)
	}
	<-s.at
	var released bool
	release = func() {
		if !released {
			close(s.release)
		}
		released = true
	}
	t.Cleanup(release) // before the fixture's
	return f, release
}

// A pod of another namespace starts and stops while a namespace's policies are being compiled, however long that takes.
func TestPodsStartWhileALargeChangeIsCompiled(t *testing.T) {
	f, release := newStopped(t)
	f.come(podObject("a", "web", "2", "", labels("web")), "s1", 3, "10.128.0.5")
	if err := errors.Join(has(1, "table=81,", "reg2=0x3,")(f.judged()), has(0, "nw_src=192.")(f.judged())); err != nil {
		t.Error(err)
	}
	f.goes("s1")
	release()
	f.eventually(has(3*sendPieces, "nw_src=192."))
}

// A pod of the namespace itself waits, and its flows let nothing through.
func TestPodWaitsForALargeChangeOfItsNamespace(t *testing.T) {
	f, release := newStopped(t)
	key := policy.PodKey{Namespace: "bomb", Name: "new"}
	done := f.Attach(t.Context(), owner("s1"), key, pod(3, "10.128.0.5"), podObject("bomb", "new", "2", "", labels("web")))
	if known := f.Of(key); !known.Judged || !known.Ingress || !known.Egress {
		t.Errorf("the pod's flows say %+v, want it isolated both ways", known)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := done(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v before the policies are on the switch, want that the context ended", err)
	}
	release()
	f.must(done(t.Context()))
	if known := f.Of(key); !known.Ingress || known.Egress {
		t.Errorf("the pod's flows say %+v, want ingress isolated", known)
	}
	if err := has(3*sendPieces, "nw_src=192.")(f.judged()); err != nil {
		t.Error(err)
	}
}

// What happens while a large change is compiled leaves the switch as if it had happened before.
func TestChangesWhileALargeChangeIsCompiled(t *testing.T) {
	f, release := newStopped(t)
	happen := func(f *fixture) {
		f.networkPolicies.Delete(large("bomb")[0])
		f.networkPolicies.Modify(allow("bomb", "web", "b", 9090))
		f.pods.Add(podObject("b", "peer2", "7", "10.129.0.10", labels("peer")))
		f.pods.Add(podObject("bomb", "victim", "u0", "10.128.0.9", labels("none")))
	}
	happen(f)
	f.come(podObject("a", "web", "2", "", labels("web")), "s1", 3, "10.128.0.5")
	release()
	again := newFixture(t, func(f *fixture) {
		f.tenant("bomb", 11, team("bomb"))
		f.tenant("a", 10, team("a"))
		f.tenant("b", 12, team("b"))
		f.pods.Add(podObject("b", "peer", "1", "10.129.0.9", labels("peer")))
		f.networkPolicies.Add(allow("a", "web", "b", 8080))
		f.networkPolicies.Add(allow("bomb", "web", "b", 8080))
		for _, np := range large("bomb") {
			f.networkPolicies.Add(np)
		}
		happen(f)
	})
	again.come(podObject("bomb", "victim", "u0", "10.128.0.9", labels("none")), "sb-victim", 9, "10.128.0.9")
	again.come(podObject("a", "web", "2", "", labels("web")), "s1", 3, "10.128.0.5")
	want := again.judged()
	f.eventually(func(flows []string) error {
		if !slices.Equal(flows, want) {
			return fmt.Errorf("flows differ (-want +got):\n%s", cmp.Diff(want, flows))
		}
		return nil
	})
}

// The port of a pod that stops may be another pod's next: its targets are removed at once.
func TestPodStopsWhileALargeChangeIsCompiled(t *testing.T) {
	f, release := newStopped(t)
	f.goes("sb-victim")
	if err := has(0, "reg2=0x9,")(f.judged()); err != nil {
		t.Error(err)
	}
	release()
	f.eventually(has(0, "nw_src=192."))
}

// A pod whose start makes a large change waits for it; it is on the switch without the pod's own flows letting anything through before.
func TestFirstPodOfALargeNamespace(t *testing.T) {
	s := &stopped{at: make(chan struct{}), release: make(chan struct{})}
	f := newFixture(t, func(f *fixture) {
		f.between = s.between
		f.tenant("bomb", 11, nil)
		for _, np := range large("bomb") {
			f.networkPolicies.Add(np)
		}
	})
	f.Written()
	key := policy.PodKey{Namespace: "bomb", Name: "first"}
	done := f.Attach(t.Context(), owner("s1"), key, pod(3, "10.128.0.5"), podObject("bomb", "first", "2", "", nil))
	<-s.at
	if known := f.Of(key); known != (pipeline.PodPolicies{Judged: true, Ingress: true, Egress: true}) {
		t.Errorf("the pod's flows say %+v, want it isolated both ways", known)
	}
	close(s.release)
	f.must(done(t.Context()))
	if known := f.Of(key); !known.Ingress || known.Egress {
		t.Errorf("the pod's flows say %+v, want ingress isolated", known)
	}
}
