package master

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

func leaseRecord(holder string) resourcelock.LeaderElectionRecord {
	now := metav1.Now()
	return resourcelock.LeaderElectionRecord{HolderIdentity: holder, LeaseDurationSeconds: 10, AcquireTime: now, RenewTime: now}
}

// A leader that was suspended past its lease must not release the lease of the next leader.
func TestLock_onlyHolderReleases(t *testing.T) {
	client := fake.NewClientset().CoordinationV1()
	suspended, next := newLock(client, "ovsdn-system", "suspended"), newLock(client, "ovsdn-system", "next")
	ctx := t.Context()
	holder := func() string {
		t.Helper()
		lease, err := client.Leases("ovsdn-system").Get(ctx, "ovsdn-controller", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return *lease.Spec.HolderIdentity
	}
	get := func(l *lock) {
		t.Helper()
		if _, _, err := l.Get(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := suspended.Create(ctx, leaseRecord("suspended")); err != nil {
		t.Fatal(err)
	}
	get(next)
	if err := next.Update(ctx, leaseRecord("next")); err != nil {
		t.Fatal(err)
	}
	get(suspended) // as in client-go's release
	if err := suspended.Update(ctx, leaseRecord("")); err == nil || holder() != "next" {
		t.Errorf("got error %v and holder %q, want an error and holder next", err, holder())
	}
	if err := next.Update(ctx, leaseRecord("")); err != nil || holder() != "" {
		t.Errorf("got error %v and holder %q, want no holder", err, holder())
	}
}

func TestLock_callsHaveDeadlines(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("*", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetVerb() == "create" {
			return true, nil, apierrors.NewNotFound(coordinationv1.Resource("namespaces"), "ovsdn-system")
		}
		return false, nil, nil
	})
	hasDeadline := false
	l := &lock{Interface: deadlines{newLock(client.CoordinationV1(), "ovsdn-system", "a").Interface, &hasDeadline}}
	if _, _, err := l.Get(t.Context()); !apierrors.IsNotFound(err) || !hasDeadline {
		t.Errorf("got error %v, deadline %t, want not found and a deadline", err, hasDeadline)
	}
	if err := l.Create(t.Context(), leaseRecord("a")); err == nil || !strings.Contains(err.Error(), "apply the manifests in deploy/rbac") {
		t.Errorf("missing namespace: got error %v, want what to apply", err)
	}
}

// deadlines records whether the last call had a deadline within leaseTimeout.
type deadlines struct {
	resourcelock.Interface
	hasDeadline *bool
}

func (d deadlines) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	deadline, ok := ctx.Deadline()
	*d.hasDeadline = ok && time.Until(deadline) <= leaseTimeout
	return d.Interface.Get(ctx)
}

func TestHealth(t *testing.T) {
	h := &health{}
	want := func(what, ready string) {
		t.Helper()
		got := ""
		if err := h.ready(); err != nil {
			got = err.Error()
		}
		if got != ready || h.healthy() != nil {
			t.Errorf("%s: got readyz %q and healthz %v, want %q and nil", what, got, h.healthy(), ready)
		}
	}
	want("before an election", "waiting for the API server and a leader")
	h.setLeading("a valid ClusterNetwork")
	want("waiting leader", "waiting for a valid ClusterNetwork")
	h.setLeading("")
	want("ready leader", "")
	h.stopLeading()
	want("after its term", "waiting for the API server and a leader")
}

// A permanent failure of a term ends the controller; a *supersededError does not.
func TestEndTerm(t *testing.T) {
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	broken := errors.New("broken")
	for _, tc := range []struct{ err, want error }{{nil, nil}, {&supersededError{"b"}, nil}, {broken, broken}} {
		if got := endTerm(stopped, tc.err); !errors.Is(got, tc.want) {
			t.Errorf("endTerm(%v): got %v, want %v", tc.err, got, tc.want)
		}
	}
}
