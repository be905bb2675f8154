package subnet

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
)

// A create that fails may have succeeded on the server: its subnet stays allocated, and the retry writes the same.
func TestPropose_retriesSameSubnet(t *testing.T) {
	f := newFixture(t, state{node: testNode("uid1", "192.0.2.1")})
	broken := true
	lost := errors.New("connection lost")
	f.network.PrependReactor("create", "hostsubnets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return broken, nil, lost
	})
	if err := f.sync(t.Context(), "node1"); !errors.Is(err, lost) {
		t.Fatalf("got error %v, want %v", err, lost)
	}
	if p, err := f.allocator.Allocate("node2"); err != nil || p.String() != "10.128.2.0/23" {
		t.Fatalf("got %s, %v for node2, want 10.128.2.0/23", p, err)
	}
	broken = false
	if err := f.sync(t.Context(), "node1"); err != nil {
		t.Fatal(err)
	}
	if got := f.stored(t).Subnet; got != "10.128.0.0/23" {
		t.Errorf("got subnet %s for node1, want 10.128.0.0/23", got)
	}
}

// Only the version on which the decision was based may be deleted.
func TestRemove_hasPreconditions(t *testing.T) {
	f := newFixture(t, state{hs: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23")})
	if err := f.sync(t.Context(), "node1"); err != nil {
		t.Fatal(err)
	}
	var got []*metav1.Preconditions
	for _, a := range f.network.Actions() {
		if d, ok := a.(clienttesting.DeleteAction); ok {
			got = append(got, d.GetDeleteOptions().Preconditions)
		}
	}
	uid, version := types.UID("hs1"), "7"
	if diff := cmp.Diff([]*metav1.Preconditions{{UID: &uid, ResourceVersion: &version}}, got); diff != "" {
		t.Error(diff)
	}
}

func TestSync_noCallsIfUpToDate(t *testing.T) {
	f := newFixture(t, state{node: testNode("uid1", "192.0.2.1"), hs: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23")})
	if err := f.sync(t.Context(), "node1"); err != nil {
		t.Fatal(err)
	}
	if a := append(f.network.Actions(), f.kube.Actions()...); len(a) != 0 {
		t.Errorf("got API calls %v, want none", a)
	}
}

// The kubelet updates the status every few minutes.
func TestWatch_ignoresHeartbeats(t *testing.T) {
	f := newFixture(t, state{})
	before, now := testNode("uid1", "192.0.2.1"), testNode("uid1", "192.0.2.1")
	now.ResourceVersion = "8"
	now.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady}}
	if n := f.queuedAfter(t, before, now); n != nil {
		t.Errorf("got queued %q after a heartbeat, want none", n)
	}
	now.Status.NodeInfo.MachineID = "reinstalled" // the Node was not deleted: its subnet does not change
	if n := f.queuedAfter(t, before, now); n != nil {
		t.Errorf("got queued %q after a change of the machine ID, want none", n)
	}
	if n := f.queuedAfter(t, before, testNode("uid1", "192.0.2.2")); len(n) != 1 {
		t.Errorf("got queued %q after a change of the address, want node1", n)
	}
}

// Waiting nodes are reconciled one after the other while a subnet is free, and only after a subnet was released.
func TestWaitQueue_retriedAfterRelease(t *testing.T) {
	f := newFixture(t, state{})
	f.allocator.MarkAllocated("old", netip.MustParsePrefix("10.128.0.0/22"))
	for _, name := range []string{"node1", "node2", "node3"} {
		if p, err := f.allocate(t.Context(), name); err == nil {
			t.Fatalf("got %[2]s for %[1]s, want no subnet of a full range", name, p)
		}
	}
	queued := func() []string { return f.emptyQueue(t) }
	if got := queued(); got != nil {
		t.Fatalf("got queued %q, want none", got)
	}
	if err := f.sync(t.Context(), "old"); err != nil { // it has neither Node nor HostSubnet: releases two subnets
		t.Fatal(err)
	}
	for _, want := range []string{"node1", "node2"} {
		if diff := cmp.Diff([]string{want}, queued()); diff != "" {
			t.Fatal(diff)
		}
		if _, err := f.allocate(t.Context(), want); err != nil {
			t.Fatalf("%s: %v", want, err)
		}
	}
	if diff := cmp.Diff([]string{"node3"}, queued()); diff != "" { // the range is full again
		t.Error(diff)
	}
	if _, err := f.allocate(t.Context(), "node3"); err == nil {
		t.Error("got a subnet for node3, want none of a full range")
	}
	if got := queued(); got != nil {
		t.Errorf("got queued %q, want none without a release", got)
	}
}
