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

// A leader that slept through its lease does not give the next one's back.
func TestOnlyTheHolderGivesTheLeaseBack(t *testing.T) {
	client := fake.NewClientset().CoordinationV1()
	slept, next := newLock(client, "ovsdn-system", "slept"), newLock(client, "ovsdn-system", "next")
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
	if err := slept.Create(ctx, leaseRecord("slept")); err != nil {
		t.Fatal(err)
	}
	get(next)
	if err := next.Update(ctx, leaseRecord("next")); err != nil {
		t.Fatal(err)
	}
	get(slept) // as client-go's release does
	if err := slept.Update(ctx, leaseRecord("")); err == nil || holder() != "next" {
		t.Errorf("%v; the holder is %q now", err, holder())
	}
	if err := next.Update(ctx, leaseRecord("")); err != nil || holder() != "" {
		t.Errorf("%v; the holder is %q now", err, holder())
	}
}

func TestLeaseCallsAreBounded(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("*", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetVerb() == "create" {
			return true, nil, apierrors.NewNotFound(coordinationv1.Resource("namespaces"), "ovsdn-system")
		}
		return false, nil, nil
	})
	bounded := false
	l := &lock{Interface: deadlines{newLock(client.CoordinationV1(), "ovsdn-system", "a").Interface, &bounded}}
	if _, _, err := l.Get(t.Context()); !apierrors.IsNotFound(err) || !bounded {
		t.Errorf("%v; bounded: %v", err, bounded)
	}
	if err := l.Create(t.Context(), leaseRecord("a")); err == nil || !strings.Contains(err.Error(), "apply the manifests in deploy/rbac") {
		t.Errorf("no namespace: %v", err)
	}
}

// deadlines notes whether calls have one.
type deadlines struct {
	resourcelock.Interface
	bounded *bool
}

func (d deadlines) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	deadline, ok := ctx.Deadline()
	*d.bounded = ok && time.Until(deadline) <= leaseTimeout
	return d.Interface.Get(ctx)
}

// What probes are told by whom.
func TestHealth(t *testing.T) {
	h := &health{}
	want := func(what, ready string) {
		t.Helper()
		got := ""
		if err := h.ready(); err != nil {
			got = err.Error()
		}
		if got != ready || h.healthy() != nil {
			t.Errorf("%s: %q, %v; want %q", what, got, h.healthy(), ready)
		}
	}
	want("at first", "waiting for the API server and a leader")
	h.lead("a valid ClusterNetwork")
	want("a leader that waits", "waiting for a valid ClusterNetwork")
	h.lead("")
	want("a leader that works", "")
	h.resign()
	want("afterwards", "waiting for the API server and a leader")
}

// A term that fails for good ends the master; one that was deposed does not.
func TestEndTerm(t *testing.T) {
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	broken := errors.New("broken")
	for _, tc := range []struct{ err, want error }{{nil, nil}, {&deposedError{"b"}, nil}, {broken, broken}} {
		if got := endTerm(stopped, tc.err); !errors.Is(got, tc.want) {
			t.Errorf("after %v: %v", tc.err, got)
		}
	}
}
