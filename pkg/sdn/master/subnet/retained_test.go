package subnet

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// retained returns node1's HostSubnet after its Node was deleted that long ago; negative: in the future.
func retained(ago time.Duration) *networkv1.HostSubnet {
	o := testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23")
	o.Annotations[config.NodeDeletedAnnotation] = time.Now().Add(-ago).UTC().Format(time.RFC3339)
	return o
}

// edited returns the HostSubnet with the change.
func edited(o *networkv1.HostSubnet, change func(*networkv1.HostSubnet)) *networkv1.HostSubnet {
	change(o)
	return o
}

func TestSync_deletedNode(t *testing.T) {
	const none = "the node has no InternalIP in its status.addresses: set kubelet's --node-ip, or wait for the cloud's node controller"
	const inUse = "no InternalIP of the node is usable (set kubelet's --node-ip): 192.0.2.9 belongs to HostSubnet node2: delete that, or change one of the two addresses"
	confirmed := func(uid, hostIP, subnet string) *networkv1.HostSubnet { return testHostSubnet(uid, hostIP, subnet) }
	reinstalled := testNode("uid2", "192.0.2.1")
	reinstalled.Status.NodeInfo.MachineID = "another"
	for _, tc := range []struct {
		name      string
		state     state
		want      *networkv1.HostSubnet // without UID, resourceVersion and the time of deletion
		marked    bool                  // with config.NodeDeletedAnnotation
		events    []string
		condition string
	}{
		{name: "deleted now", state: state{hs: confirmed("uid1", "192.0.2.1", "10.128.2.0/23")}, want: confirmed("uid1", "192.0.2.1", "10.128.2.0/23"), marked: true},
		{name: "deleted a minute ago", state: state{hs: retained(time.Minute)}, want: confirmed("uid1", "192.0.2.1", "10.128.2.0/23"), marked: true},
		{name: "deleted in the future, by another clock", state: state{hs: retained(-time.Hour)}, want: confirmed("uid1", "192.0.2.1", "10.128.2.0/23"), marked: true},
		{
			name:  "invalid time",
			state: state{hs: edited(retained(0), func(o *networkv1.HostSubnet) { o.Annotations[config.NodeDeletedAnnotation] = "yesterday" })},
			want:  confirmed("uid1", "192.0.2.1", "10.128.2.0/23"), marked: true,
		},
		{name: "deleted long ago", state: state{hs: retained(time.Hour)}},
		{name: "deleted before its subnet was confirmed", state: state{hs: proposal("10.128.2.0/23")}},
		{
			name:  "returned",
			state: state{hs: retained(time.Minute), node: testNode("uid2", "192.0.2.1")},
			want:  confirmed("uid2", "192.0.2.1", "10.128.2.0/23"),
		},
		{
			name:  "returned on a reinstalled machine",
			state: state{hs: retained(time.Minute), node: reinstalled},
			want:  confirmed("uid2", "192.0.2.1", "10.128.2.0/23"),
		},
		{
			name:  "returned late, before the HostSubnet was deleted",
			state: state{hs: retained(time.Hour), node: testNode("uid2", "192.0.2.1")},
			want:  confirmed("uid2", "192.0.2.1", "10.128.2.0/23"),
		},
		{
			name:  "returned before the controller noticed",
			state: state{hs: confirmed("uid1", "192.0.2.1", "10.128.2.0/23"), node: testNode("uid2", "192.0.2.5", "192.0.2.1")},
			want:  confirmed("uid2", "192.0.2.1", "10.128.2.0/23"),
		},
		{
			name:  "returned with another address",
			state: state{hs: retained(time.Minute), node: testNode("uid2", "192.0.2.2")},
			want:  confirmed("uid2", "192.0.2.2", "10.128.0.0/23"),
		},
		{
			name:   "returned without an address yet",
			state:  state{hs: retained(time.Minute), node: testNode("uid2")},
			want:   confirmed("uid1", "192.0.2.1", "10.128.2.0/23"),
			marked: true, events: []string{"Warning NodeAddressUnusable " + none},
		},
		{
			name:      "returned without an address, long ago",
			state:     state{hs: retained(time.Hour), node: testNode("uid2")},
			events:    []string{"Warning NodeAddressUnusable " + none},
			condition: "True NoHostSubnet " + none,
		},
		{
			name: "returned, its address belongs to another HostSubnet",
			state: state{hs: edited(retained(time.Minute), func(o *networkv1.HostSubnet) { o.HostIP = "192.0.2.9" }),
				node: testNode("uid2", "192.0.2.9"), allocated: map[string]string{"node2": "10.128.0.0/23"}},
			events:    []string{"Warning NodeAddressUnusable " + inUse},
			condition: "True NoHostSubnet " + inUse,
		},
		{
			name:  "returned, HostSubnet invalid",
			state: state{hs: edited(retained(time.Minute), func(o *networkv1.HostSubnet) { o.Subnet = "10.9.0.0/23" }), node: testNode("uid2", "192.0.2.1")},
			want:  confirmed("uid2", "192.0.2.1", "10.128.0.0/23"),
		},
		{
			name:  "returned, HostSubnet overlaps another",
			state: state{hs: retained(time.Minute), node: testNode("uid2", "192.0.2.1"), allocated: map[string]string{"node2": "10.128.2.0/24"}},
			want:  confirmed("uid2", "192.0.2.1", "10.128.0.0/23"),
		},
		{
			name:  "annotation written by hand",
			state: state{hs: retained(time.Minute), node: testNode("uid1", "192.0.2.1")},
			want:  confirmed("uid1", "192.0.2.1", "10.128.2.0/23"),
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t, tc.state)
			f.retention = 10 * time.Minute
			for name := range tc.state.allocated { // belongs to no Node, so its address is its own
				o := testHostSubnet("", "192.0.2.9", tc.state.allocated[name])
				o.Name, o.Host = name, name
				if err := f.hostSubnetIndexer.Update(o); err != nil {
					t.Fatal(err)
				}
			}
			if err := f.syncUntilConfirmed(t); (err != nil) != (tc.events != nil) {
				t.Errorf("got error %v, want one with an Event only", err)
			}
			got := f.stored(t)
			if got != nil {
				since, marked := config.NodeDeletedSince(got)
				if marked != tc.marked || marked && time.Since(since) > 5*time.Minute || since.After(time.Now()) {
					t.Errorf("got node deleted since %v, want it: %t, and in the last minutes", since, tc.marked)
				}
				delete(got.Annotations, config.NodeDeletedAnnotation)
			}
			if tc.want != nil {
				tc.want.UID, tc.want.ResourceVersion = "", ""
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error("stored (-want +got)", diff)
			}
			if diff := cmp.Diff(tc.events, f.recorded()); diff != "" {
				t.Error("Events (-want +got)", diff)
			}
			if diff := cmp.Diff(tc.condition, f.condition(t)); diff != "" {
				t.Error("condition (-want +got)", diff)
			}
			if allocated := len(f.allocator.Subnets("node1")) > 0; tc.condition != "" && allocated {
				t.Error("got a subnet allocated, want none without a HostSubnet")
			}
		})
	}
}

// A Node that is deleted and created again and again retains its subnet, each change is one write, and none an Event or a condition.
func TestSync_flappingNode(t *testing.T) {
	f := newFixture(t, state{hs: testHostSubnet("uid0", "192.0.2.1", "10.128.2.0/23")})
	f.retention = 10 * time.Minute
	for i := range 10 {
		for _, uid := range []string{"", fmt.Sprint("uid", i+1)} {
			_ = f.nodeIndexer.Delete(testNode("")) // of the previous step
			_ = f.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("nodes"), "", "node1")
			if uid != "" {
				node := testNode(uid, "192.0.2.1")
				if err := f.kube.Tracker().Add(node); err != nil {
					t.Fatal(err)
				}
				if err := f.nodeIndexer.Add(node); err != nil {
					t.Fatal(err)
				}
			}
			if err := f.sync(t.Context(), "node1"); err != nil {
				t.Fatal(err)
			}
			hs, err := f.network.NetworkV1().HostSubnets().Get(t.Context(), "node1", metav1.GetOptions{})
			if err != nil || hs.Subnet != "10.128.2.0/23" || config.IsRetained(hs) != (uid == "") || uid != "" && string(nodeUID(hs)) != uid {
				t.Fatalf("got %+v, %v for Node UID %q, want it retained", hs, err, uid)
			}
			if err := f.hostSubnetIndexer.Update(hs); err != nil {
				t.Fatal(err)
			}
			if condition, events := f.condition(t), f.recorded(); condition != "" || events != nil {
				t.Errorf("got condition %q and Events %q, want none", condition, events)
			}
		}
	}
	if writes := len(f.network.Actions()) - 20; writes != 20 { // less the reads above
		t.Errorf("got %d writes, want 20: %v", writes, f.network.Actions())
	}
}

// If no other subnet is free, the one that was retained for the longest time is released, unless its Node has returned.
func TestAllocate_releasesOldestRetained(t *testing.T) {
	f := newFixture(t, state{})
	f.retention = time.Hour
	for name, hs := range map[string]*networkv1.HostSubnet{
		"oldest": edited(retained(4*time.Minute), func(o *networkv1.HostSubnet) { o.Subnet = "10.9.0.0/23" }), // of no use
		"user's": edited(retained(5*time.Minute), func(o *networkv1.HostSubnet) {
			o.Subnet = "10.128.0.0/24"
			delete(o.Annotations, networkv1.NodeUIDAnnotation)
		}),
		"returned": edited(retained(3*time.Minute), func(o *networkv1.HostSubnet) { o.Subnet = "10.128.0.0/24" }),
		"old":      edited(retained(2*time.Minute), func(o *networkv1.HostSubnet) { o.Subnet = "10.128.2.0/23" }),
		"new":      edited(retained(time.Minute), func(o *networkv1.HostSubnet) { o.Subnet = "10.128.1.0/24" }),
	} {
		hs.Name, hs.Host = name, name
		if err := f.network.Tracker().Add(hs); err != nil {
			t.Fatal(err)
		}
		if err := f.hostSubnetIndexer.Add(hs); err != nil {
			t.Fatal(err)
		}
		f.allocator.MarkAllocated(name, netip.MustParsePrefix(hs.Subnet))
	}
	node := testNode("uid9", "192.0.2.200")
	node.Name = "returned"
	if err := f.kube.Tracker().Add(node); err != nil { // not cached yet
		t.Fatal(err)
	}
	if got, err := f.allocate(t.Context(), "node1"); err != nil || got.String() != "10.128.2.0/23" {
		t.Fatalf("got %s, %v; want 10.128.2.0/23", got, err)
	}
	list, err := f.network.NetworkV1().HostSubnets().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, o := range list.Items {
		left = append(left, o.Name)
	}
	if diff := cmp.Diff([]string{"new", "oldest", "returned", "user's"}, left); diff != "" {
		t.Errorf("HostSubnets (-want +got): %s", diff)
	}
}

// If another client has deleted the HostSubnet, whose deletion the cache does not have yet, its subnet is about to be free: no other is released.
func TestAllocate_retainedDeletedByOther(t *testing.T) {
	f := newFixture(t, state{})
	f.retention = time.Hour
	for name, hs := range map[string]*networkv1.HostSubnet{
		"old": edited(retained(2*time.Minute), func(o *networkv1.HostSubnet) { o.Subnet = "10.128.2.0/23" }), // in the cache only
		"new": edited(retained(time.Minute), func(o *networkv1.HostSubnet) { o.Subnet = "10.128.0.0/23" }),
	} {
		hs.Name, hs.Host = name, name
		if name != "old" {
			if err := f.network.Tracker().Add(hs); err != nil {
				t.Fatal(err)
			}
		}
		if err := f.hostSubnetIndexer.Add(hs); err != nil {
			t.Fatal(err)
		}
		f.allocator.MarkAllocated(name, netip.MustParsePrefix(hs.Subnet))
	}
	if got, err := f.allocate(t.Context(), "node1"); err == nil || errors.As(err, new(*FullError)) {
		t.Errorf("got %s, %v; want an error that is retried", got, err)
	}
	if _, err := f.network.NetworkV1().HostSubnets().Get(t.Context(), "new", metav1.GetOptions{}); err != nil {
		t.Errorf("HostSubnet that was retained for a shorter time: %v", err)
	}
}

// A node that waits for a subnet gets that of a Node that is deleted later.
func TestRetain_wakesWaitingNode(t *testing.T) {
	f := newFixture(t, state{hs: retained(time.Second)})
	f.retention = time.Hour
	f.waitQueue.add("node2")
	if err := f.sync(t.Context(), "node1"); err != nil {
		t.Fatal(err)
	}
	if got := f.emptyQueue(t); !slices.Contains(got, "node2") {
		t.Errorf("got queued %q, want node2 among them", got)
	}
}

// A restore of etcd brings back the previous subnet of node1, and deletes node2, which had got that subnet since, with its HostSubnet. A running controller takes
// over what is stored, and the subnets that the restore released are free.
func TestSync_restoredSnapshot(t *testing.T) {
	f := newFixture(t, state{
		node: testNode("uid0", "192.0.2.1"), hs: testHostSubnet("uid0", "192.0.2.1", "10.128.2.0/23"),
		allocated: map[string]string{"node1": "10.128.0.0/23"},
	})
	f.retention = time.Hour
	f.allocator.MarkAllocated("node2", netip.MustParsePrefix("10.128.2.0/23"))
	for _, name := range []string{"node1", "node2"} {
		if err := f.sync(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	if got := f.recorded(); got != nil {
		t.Errorf("got Events %q, want none", got)
	}
	if a := f.network.Actions(); len(a) != 0 {
		t.Errorf("got API calls %v, want none", a)
	}
	if got, err := f.allocate(t.Context(), "node3"); err != nil || got.String() != "10.128.0.0/23" {
		t.Errorf("got %s, %v for another node, want 10.128.0.0/23", got, err)
	}
}

// An edit of the UID by hand is corrected, and does not change the subnet.
func TestSync_editedNodeUID(t *testing.T) {
	f := newFixture(t, state{node: testNode("uid1", "192.0.2.1"), hs: testHostSubnet("edited", "192.0.2.1", "10.128.2.0/23")})
	if err := f.syncUntilConfirmed(t); err != nil {
		t.Fatal(err)
	}
	want := testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23")
	want.UID, want.ResourceVersion = "", ""
	if diff := cmp.Diff(want, f.stored(t)); diff != "" {
		t.Error(diff)
	}
}
