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

// A write that fails may have arrived. Its subnet is given to nobody else, and the next attempt writes the same.
func TestFailedCreateIsTriedWithTheSameSubnet(t *testing.T) {
	f := newFixture(t, scene{node: testNode("uid1", "192.0.2.1")})
	broken := true
	lost := errors.New("connection lost")
	f.network.PrependReactor("create", "hostsubnets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return broken, nil, lost
	})
	if err := f.sync(t.Context(), "node1"); !errors.Is(err, lost) {
		t.Fatalf("got %v", err)
	}
	if p, err := f.allocator.Allocate("node2"); err != nil || p.String() != "10.128.2.0/23" {
		t.Fatalf("node2 is given %s, %v", p, err)
	}
	broken = false
	if err := f.sync(t.Context(), "node1"); err != nil {
		t.Fatal(err)
	}
	if got := f.stored(t).Subnet; got != "10.128.0.0/23" {
		t.Errorf("node1 has %s", got)
	}
}

// What is deleted is the very object that was judged.
func TestRemoveHasPreconditions(t *testing.T) {
	f := newFixture(t, scene{hs: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23")})
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

// Nothing is written and nobody complains when all is in order.
func TestInOrderCostsNoCall(t *testing.T) {
	f := newFixture(t, scene{node: testNode("uid1", "192.0.2.1"), hs: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23")})
	if err := f.sync(t.Context(), "node1"); err != nil {
		t.Fatal(err)
	}
	if a := append(f.network.Actions(), f.kube.Actions()...); len(a) != 0 {
		t.Errorf("calls: %v", a)
	}
}

// Nodes report in every few minutes: only what matters here is work.
func TestHeartbeatsAreNoWork(t *testing.T) {
	f := newFixture(t, scene{})
	before, now := testNode("uid1", "192.0.2.1"), testNode("uid1", "192.0.2.1")
	now.ResourceVersion = "8"
	now.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady}}
	if n := f.queuedAfter(t, before, now); n != nil {
		t.Errorf("queued after a heartbeat: %v", n)
	}
	if n := f.queuedAfter(t, before, testNode("uid1", "192.0.2.2")); len(n) != 1 {
		t.Errorf("queued after another address: %v", n)
	}
}

// Those that wait are woken one after the other, as long as there is space, and not when nothing came free.
func TestFreedSpaceWakesWhoWaits(t *testing.T) {
	f := newFixture(t, scene{})
	f.allocator.MarkAllocated("old", netip.MustParsePrefix("10.128.0.0/22"))
	for _, name := range []string{"node1", "node2", "node3"} {
		if p, err := f.allocate(name); err == nil {
			t.Fatalf("%s is given %s of a full range", name, p)
		}
	}
	woken := func() []string { return f.emptyQueue(t) }
	if got := woken(); got != nil {
		t.Fatalf("woken: %v", got)
	}
	if err := f.sync(t.Context(), "old"); err != nil { // its node and HostSubnet are gone: two subnets
		t.Fatal(err)
	}
	for _, want := range []string{"node1", "node2"} {
		if diff := cmp.Diff([]string{want}, woken()); diff != "" {
			t.Fatal(diff)
		}
		if _, err := f.allocate(want); err != nil {
			t.Fatalf("%s: %v", want, err)
		}
	}
	if diff := cmp.Diff([]string{"node3"}, woken()); diff != "" { // in vain
		t.Error(diff)
	}
	if _, err := f.allocate("node3"); err == nil {
		t.Error("node3 is given one too many")
	}
	if got := woken(); got != nil {
		t.Errorf("woken though nothing came free: %v", got)
	}
}
