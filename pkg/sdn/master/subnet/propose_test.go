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

// other puts another node's HostSubnet into the cache, of which the allocator has not heard yet.
func (f *fixture) other(t *testing.T, name, subnet string) {
	t.Helper()
	o := testHostSubnet("other", "192.0.2.9", subnet)
	o.Name, o.Host = name, name
	if err := f.written.Add(o); err != nil {
		t.Fatal(err)
	}
}

func TestConfirm(t *testing.T) {
	for _, tc := range []struct {
		name     string
		proposed string
		uid      string            // of the Node that it was proposed for, if not the node's
		others   map[string]string // in the cache
		want     string            // given in the end
	}{
		{name: "alone", proposed: "10.128.2.0/23", want: "10.128.2.0/23"},
		{name: "beside others", proposed: "10.128.2.0/23", others: map[string]string{"a": "10.128.0.0/23", "b": "10.0.0.0/23"}, want: "10.128.2.0/23"},
		{name: "another has it", proposed: "10.128.2.0/23", others: map[string]string{"a": "10.128.2.0/23"}, want: "10.128.0.0/23"},
		{name: "another has some of it", proposed: "10.128.2.0/23", others: map[string]string{"a": "10.128.3.7/32"}, want: "10.128.0.0/23"},
		{name: "another has more than it", proposed: "10.128.0.0/23", others: map[string]string{"a": "10.128.0.0/24", "b": "10.128.1.0/24"}, want: "10.128.2.0/23"},
		{name: "another's is odd", proposed: "10.128.2.0/23", others: map[string]string{"a": "10.128.3.9/22"}, want: ""},
		{name: "all is taken", proposed: "10.128.2.0/23", others: map[string]string{"a": "10.0.0.0/8"}, want: ""},
		{name: "outside of what is in force by now", proposed: "10.9.0.0/23", want: "10.128.0.0/23"},
		{name: "of another length than in force by now", proposed: "10.128.0.0/24", want: "10.128.0.0/23"},
		{name: "no subnet at all", proposed: "nonsense", want: "10.128.0.0/23"},
		{name: "for a node of before", proposed: "10.128.2.0/23", uid: "uid0", want: "10.128.0.0/23"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			hs := proposal(tc.proposed)
			if tc.uid != "" {
				hs.Annotations[networkv1.NodeUIDAnnotation] = tc.uid
			}
			f := newFixture(t, scene{node: testNode("uid1", "192.0.2.1"), hs: hs})
			for name, subnet := range tc.others {
				f.other(t, name, subnet)
			}
			if err := f.settle(t); (err != nil) != (tc.want == "") {
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

// A proposal that the cache doesn't know is not judged by it: nothing says that the cache knows those of before.
func TestConfirmWaitsForTheCache(t *testing.T) {
	old := proposal("10.128.2.0/23")
	old.UID, old.ResourceVersion = "hs0", "6"
	for name, cached := range map[string]*networkv1.HostSubnet{"nothing": nil, "an object of before": old} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, scene{node: testNode("uid1", "192.0.2.1"), hs: proposal("10.128.2.0/23"), noCachedHS: true})
			if err := f.confirm(t.Context(), testNode("uid1", "192.0.2.1"), proposal("10.128.2.0/23")); err != nil {
				t.Fatal(err)
			}
			if cached != nil {
				if err := f.written.Add(cached); err != nil {
					t.Fatal(err)
				}
				if err := f.confirm(t.Context(), testNode("uid1", "192.0.2.1"), proposal("10.128.2.0/23")); err != nil {
					t.Fatal(err)
				}
			}
			if a := f.network.Actions(); len(a) != 0 {
				t.Errorf("calls: %v", a)
			}
		})
	}
}

// Both writes after the first carry what they were decided on: one that somebody else changed meanwhile is left alone.
func TestConfirmIsConditional(t *testing.T) {
	f := newFixture(t, scene{node: testNode("uid1", "192.0.2.1"), hs: proposal("10.128.2.0/23")})
	var version string
	f.network.PrependReactor("update", "hostsubnets", func(a clienttesting.Action) (bool, runtime.Object, error) {
		version = a.(clienttesting.UpdateAction).GetObject().(*networkv1.HostSubnet).ResourceVersion
		return true, nil, apierrors.NewConflict(networkv1.Resource("hostsubnets"), "node1", nil)
	})
	if err := f.sync(t.Context(), "node1"); !apierrors.IsConflict(err) {
		t.Errorf("got %v", err)
	}
	if version != "7" {
		t.Errorf("the update is for version %q", version)
	}
	f.other(t, "a", "10.128.2.0/23")
	f.network.ClearActions()
	if err := f.settle(t); !apierrors.IsConflict(err) { // of the one that comes instead
		t.Errorf("got %v", err)
	}
	i := slices.IndexFunc(f.network.Actions(), func(a clienttesting.Action) bool { return a.GetVerb() == "delete" })
	if i < 0 {
		t.Fatalf("not withdrawn: %v", f.network.Actions())
	}
	p := f.network.Actions()[i].(clienttesting.DeleteAction).GetDeleteOptions().Preconditions
	if p == nil || *p.UID != "hs1" || *p.ResourceVersion != "7" {
		t.Errorf("withdrawn on the condition %v", p)
	}
}

// A node is not told of an overlap that goes away by itself.
func TestProposalsAreNoOverlap(t *testing.T) {
	f := newFixture(t, scene{node: testNode("uid1", "192.0.2.1"), hs: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23")})
	o := proposal("10.128.2.0/23")
	o.Name, o.Host = "node2", "node2"
	if err := f.written.Add(o); err != nil {
		t.Fatal(err)
	}
	f.allocator.MarkAllocated("node2", netip.MustParsePrefix("10.128.2.0/23"))
	f.allocator.MarkAllocated("node3", netip.MustParsePrefix("10.128.2.0/23")) // on its way
	if err := f.settle(t); err != nil {
		t.Error(err)
	}
	if got := f.recorded(); got != nil {
		t.Errorf("events: %v", got)
	}
}

func TestOverlapIndex(t *testing.T) {
	subnets := []string{"0.0.0.0/0", "10.0.0.0/8", "10.128.0.0/14", "10.128.0.0/23", "10.128.0.0/24", "10.128.1.128/25", "10.128.2.0/23", "10.128.0.1/32", "nonsense"}
	f := newFixture(t, scene{})
	for i, s := range subnets {
		f.other(t, fmt.Sprint("other", i), s)
	}
	for _, asked := range append(subnets, "10.128.0.0/22", "10.131.0.0/23", "192.0.2.1/32", "0.0.0.0/1") {
		hs := &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: "node1"}, Subnet: asked}
		var want []string
		for i, s := range subnets {
			p, err := netip.ParsePrefix(s)
			q, err2 := netip.ParsePrefix(asked)
			if err == nil && err2 == nil && p.Overlaps(q) {
				want = append(want, fmt.Sprint("other", i))
			}
		}
		rivals, err := f.rivals(hs)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range rivals {
			got = append(got, r.Name)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", asked, diff)
		}
	}
}
