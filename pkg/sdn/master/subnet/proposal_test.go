package subnet

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkv1 "github.com/openshift/api/network/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

func proposal(subnet string) *networkv1.HostSubnet {
	o := testHostSubnet("uid1", "192.0.2.1", subnet)
	o.Annotations[config.ProposedAnnotation] = ""
	return o
}

// addHostSubnet adds the HostSubnet of another node to the cache, and not to the allocator.
func (f *fixture) addHostSubnet(t *testing.T, name, subnet string) {
	t.Helper()
	o := testHostSubnet("other", "192.0.2.9", subnet)
	o.Name, o.Host = name, name
	if err := f.hostSubnetIndexer.Add(o); err != nil {
		t.Fatal(err)
	}
}

func TestConfirm(t *testing.T) {
	for _, tc := range []struct {
		name     string
		proposed string
		uid      string            // of the Node for which it was proposed; "": uid1
		others   map[string]string // subnets by name, in the cache
		want     string            // the confirmed subnet
	}{
		{name: "no other HostSubnet", proposed: "10.128.2.0/23", want: "10.128.2.0/23"},
		{name: "others do not overlap", proposed: "10.128.2.0/23", others: map[string]string{"a": "10.128.0.0/23", "b": "10.0.0.0/23"}, want: "10.128.2.0/23"},
		{name: "another has the same", proposed: "10.128.2.0/23", others: map[string]string{"a": "10.128.2.0/23"}, want: "10.128.0.0/23"},
		{name: "another is in it", proposed: "10.128.2.0/23", others: map[string]string{"a": "10.128.3.7/32"}, want: "10.128.0.0/23"},
		{name: "two others are in it", proposed: "10.128.0.0/23", others: map[string]string{"a": "10.128.0.0/24", "b": "10.128.1.0/24"}, want: "10.128.2.0/23"},
		{name: "another is invalid and contains it", proposed: "10.128.2.0/23", others: map[string]string{"a": "10.128.3.9/22"}, want: ""},
		{name: "another contains the cluster network", proposed: "10.128.2.0/23", others: map[string]string{"a": "10.0.0.0/8"}, want: ""},
		{name: "outside of the current network", proposed: "10.9.0.0/23", want: "10.128.0.0/23"},
		{name: "not of the current length", proposed: "10.128.0.0/24", want: "10.128.0.0/23"},
		{name: "invalid subnet", proposed: "nonsense", want: "10.128.0.0/23"},
		{name: "for a previous Node", proposed: "10.128.2.0/23", uid: "uid0", want: "10.128.0.0/23"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			hs := proposal(tc.proposed)
			if tc.uid != "" {
				hs.Annotations[networkv1.NodeUIDAnnotation] = tc.uid
			}
			f := newFixture(t, state{node: testNode("uid1", "192.0.2.1"), hs: hs})
			for name, subnet := range tc.others {
				f.addHostSubnet(t, name, subnet)
			}
			if err := f.syncUntilConfirmed(t); (err != nil) != (tc.want == "") {
				t.Errorf("sync: %v", err)
			}
			var want *networkv1.HostSubnet
			if tc.want != "" {
				want = testHostSubnet("uid1", "192.0.2.1", tc.want)
				want.UID, want.ResourceVersion = "", ""
			}
			if diff := cmp.Diff(want, f.stored(t)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A cache without the proposal may lack earlier proposals too.
func TestConfirm_waitsForCache(t *testing.T) {
	old := proposal("10.128.2.0/23")
	old.UID, old.ResourceVersion = "hs0", "6"
	for name, cached := range map[string]*networkv1.HostSubnet{"not cached": nil, "previous object cached": old} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, state{node: testNode("uid1", "192.0.2.1"), hs: proposal("10.128.2.0/23"), noCachedHS: true})
			if err := f.confirm(t.Context(), testNode("uid1", "192.0.2.1"), proposal("10.128.2.0/23")); err != nil {
				t.Fatal(err)
			}
			if cached != nil {
				if err := f.hostSubnetIndexer.Add(cached); err != nil {
					t.Fatal(err)
				}
				if err := f.confirm(t.Context(), testNode("uid1", "192.0.2.1"), proposal("10.128.2.0/23")); err != nil {
					t.Fatal(err)
				}
			}
			if a := f.network.Actions(); len(a) != 0 {
				t.Errorf("got API calls %v, want none", a)
			}
		})
	}
}

// Confirming and withdrawing must conflict with changes by other clients.
func TestConfirm_hasPreconditions(t *testing.T) {
	f := newFixture(t, state{node: testNode("uid1", "192.0.2.1"), hs: proposal("10.128.2.0/23")})
	var version string
	f.network.PrependReactor("update", "hostsubnets", func(a clienttesting.Action) (bool, runtime.Object, error) {
		version = a.(clienttesting.UpdateAction).GetObject().(*networkv1.HostSubnet).ResourceVersion
		return true, nil, apierrors.NewConflict(networkv1.Resource("hostsubnets"), "node1", nil)
	})
	if err := f.sync(t.Context(), "node1"); !apierrors.IsConflict(err) {
		t.Errorf("got error %v, want a conflict", err)
	}
	if version != "7" {
		t.Errorf("got an update of resourceVersion %q, want 7", version)
	}
	f.addHostSubnet(t, "a", "10.128.2.0/23")
	f.network.ClearActions()
	if err := f.syncUntilConfirmed(t); !apierrors.IsConflict(err) { // of the next proposal
		t.Errorf("got error %v, want a conflict", err)
	}
	i := slices.IndexFunc(f.network.Actions(), func(a clienttesting.Action) bool { return a.GetVerb() == "delete" })
	if i < 0 {
		t.Fatalf("got API calls %v, want a delete", f.network.Actions())
	}
	p := f.network.Actions()[i].(clienttesting.DeleteAction).GetDeleteOptions().Preconditions
	if p == nil || *p.UID != "hs1" || *p.ResourceVersion != "7" {
		t.Errorf("got a delete with preconditions %v, want uid hs1 and resourceVersion 7", p)
	}
}

func TestCheckOverlaps_ignoresProposals(t *testing.T) {
	f := newFixture(t, state{node: testNode("uid1", "192.0.2.1"), hs: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23")})
	o := proposal("10.128.2.0/23")
	o.Name, o.Host = "node2", "node2"
	if err := f.hostSubnetIndexer.Add(o); err != nil {
		t.Fatal(err)
	}
	f.allocator.MarkAllocated("node2", netip.MustParsePrefix("10.128.2.0/23"))
	f.allocator.MarkAllocated("node3", netip.MustParsePrefix("10.128.2.0/23")) // not written yet
	if err := f.syncUntilConfirmed(t); err != nil {
		t.Error(err)
	}
	if got := f.recorded(); got != nil {
		t.Errorf("got Events %q, want none", got)
	}
}

func TestOverlapIndex(t *testing.T) {
	subnets := []string{"0.0.0.0/0", "10.0.0.0/8", "10.128.0.0/14", "10.128.0.0/23", "10.128.0.0/24", "10.128.1.128/25", "10.128.2.0/23", "10.128.0.1/32", "nonsense"}
	f := newFixture(t, state{})
	for i, s := range subnets {
		f.addHostSubnet(t, fmt.Sprint("other", i), s)
	}
	for _, subnet := range append(subnets, "10.128.0.0/22", "10.131.0.0/23", "192.0.2.1/32", "0.0.0.0/1") {
		hs := &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: "node1"}, Subnet: subnet}
		var want []string
		for i, s := range subnets {
			p, err := netip.ParsePrefix(s)
			q, err2 := netip.ParsePrefix(subnet)
			if err == nil && err2 == nil && p.Overlaps(q) {
				want = append(want, fmt.Sprint("other", i))
			}
		}
		overlapping, err := f.overlapping(hs)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, other := range overlapping {
			got = append(got, other.Name)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("HostSubnets that overlap %s (-want +got): %s", subnet, diff)
		}
	}
}
