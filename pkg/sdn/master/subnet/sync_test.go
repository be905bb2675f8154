package subnet

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	networkv1 "github.com/openshift/api/network/v1"
)

func TestSync(t *testing.T) {
	external := func(subnet string) *networkv1.HostSubnet {
		o := testHostSubnet("", "192.0.2.9", subnet)
		o.Annotations = map[string]string{networkv1.AssignHostSubnetAnnotation: "true"}
		return o
	}
	invalidExternal := external("")
	invalidExternal.HostIP = ""
	invalidExternal.Annotations[networkv1.FixedVNIDHostAnnotation] = "7"
	overlapped := external("10.128.0.0/23")
	overlapped.Annotations["ovsdn.io/proposed"] = ""
	for _, tc := range []struct {
		name      string
		state     state
		want      *networkv1.HostSubnet // without UID and resourceVersion
		allocated []string              // of node1, afterwards
		events    []string
		fails     bool
		condition string // NetworkUnavailable of node1
	}{
		{
			name:      "new Node",
			state:     state{node: testNode("uid1", "192.0.2.1")},
			want:      testHostSubnet("uid1", "192.0.2.1", "10.128.0.0/23"),
			allocated: []string{"10.128.0.0/23"},
		},
		{
			name:      "new Node, another exists",
			state:     state{node: testNode("uid1", "fd00::1", "192.0.2.1"), allocated: map[string]string{"node2": "10.128.0.128/25"}},
			want:      testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"),
			allocated: []string{"10.128.2.0/23"},
		},
		{
			name:  "no InternalIP",
			state: state{node: testNode("uid1")},
			events: []string{"Warning NodeAddressUnusable the node has no InternalIP in its status.addresses: " +
				"set kubelet's --node-ip, or wait for the cloud's node controller"},
			fails: true,
			condition: "True NoHostSubnet the node has no InternalIP in its status.addresses: " +
				"set kubelet's --node-ip, or wait for the cloud's node controller",
		},
		{
			name:  "no usable InternalIP",
			state: state{node: testNode("uid1", "fd00::1", "10.128.1.1")},
			events: []string{`Warning NodeAddressUnusable no InternalIP of the node is usable (set kubelet's --node-ip): ` +
				`"fd00::1" is not an IPv4 address: write the node's, such as 192.0.2.10; ` +
				`10.128.1.1 lies inside the cluster network 10.128.0.0/22: a node needs an address of the underlay`},
			fails: true,
			condition: `True NoHostSubnet no InternalIP of the node is usable (set kubelet's --node-ip): ` +
				`"fd00::1" is not an IPv4 address: write the node's, such as 192.0.2.10; ` +
				`10.128.1.1 lies inside the cluster network 10.128.0.0/22: a node needs an address of the underlay`,
		},
		{
			name:  "full range",
			state: state{node: testNode("uid1", "192.0.2.1"), allocated: map[string]string{"node2": "10.128.0.0/22"}},
			events: []string{"Warning NoHostSubnet no subnet is free in the cluster network 10.128.0.0/22 with 9 host bits: " +
				"add a range to ClusterNetwork default, or delete Nodes whose machines no longer exist"},
			fails: true,
			condition: "True NoHostSubnet no subnet is free in the cluster network 10.128.0.0/22 with 9 host bits: " +
				"add a range to ClusterNetwork default, or delete Nodes whose machines no longer exist",
		},
		{
			name:      "up to date",
			state:     state{node: testNode("uid1", "192.0.2.1"), hs: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23")},
			want:      testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"),
			allocated: []string{"10.128.2.0/23"},
		},
		{
			name:      "changed InternalIP",
			state:     state{node: testNode("uid1", "192.0.2.2"), hs: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23")},
			want:      testHostSubnet("uid1", "192.0.2.2", "10.128.2.0/23"),
			allocated: []string{"10.128.2.0/23"},
		},
		{
			name:      "hostIP is the second InternalIP",
			state:     state{node: testNode("uid1", "192.0.2.2", "192.0.2.1"), hs: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23")},
			want:      testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"),
			allocated: []string{"10.128.2.0/23"},
		},
		{
			name:      "invalid hostIP",
			state:     state{node: testNode("uid1", "192.0.2.2"), hs: testHostSubnet("uid1", "nonsense", "10.128.2.0/23")},
			want:      testHostSubnet("uid1", "192.0.2.2", "10.128.2.0/23"),
			allocated: []string{"10.128.2.0/23"},
		},
		{
			name:      "InternalIP removed",
			state:     state{node: testNode("uid1"), hs: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23")},
			want:      testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"),
			allocated: []string{"10.128.2.0/23"},
			events: []string{"Warning NodeAddressUnusable the node has no InternalIP in its status.addresses: " +
				"set kubelet's --node-ip, or wait for the cloud's node controller"},
			fails: true,
		},
		{
			name:      "created by a user before the Node",
			state:     state{node: testNode("uid1", "192.0.2.1"), hs: testHostSubnet("", "192.0.2.1", "10.128.2.0/23")},
			want:      testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"),
			allocated: []string{"10.128.2.0/23"},
		},
		{
			name: "subnet outside of the cluster network",
			state: state{node: testNode("uid1", "192.0.2.2"), hs: testHostSubnet("uid1", "192.0.2.1", "10.9.0.0/23"),
				allocated: map[string]string{"node1": "10.128.2.0/23"}},
			want:      testHostSubnet("uid1", "192.0.2.2", "10.9.0.0/23"),
			allocated: []string{"10.128.2.0/23", "10.9.0.0/23"},
			events: []string{"Warning InvalidHostSubnet HostSubnet node1 can't be used: " +
				"subnet: 10.9.0.0/23 lies outside of the cluster network 10.128.0.0/22: " +
				"write back 10.128.2.0/23, or delete it, and it is re-created with that"},
			fails: true,
		},
		{
			name:      "subnet of another length, no previous one",
			state:     state{node: testNode("uid1", "192.0.2.1"), hs: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/24")},
			want:      testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/24"),
			allocated: []string{"10.128.2.0/24"},
			events: []string{"Warning InvalidHostSubnet HostSubnet node1 can't be used: " +
				"subnet: 10.128.2.0/24 is a /24, but in the cluster network 10.128.0.0/22 with 9 host bits a node has a /23: " +
				"delete it, and the node gets another subnet"},
			fails: true,
		},
		{
			name:      "subnet that can't be parsed",
			state:     state{node: testNode("uid1", "192.0.2.1"), hs: testHostSubnet("uid1", "192.0.2.1", "nonsense"), allocated: map[string]string{"node1": "10.128.2.0/23"}},
			want:      testHostSubnet("uid1", "192.0.2.1", "nonsense"),
			allocated: []string{"10.128.2.0/23"},
			events: []string{`Warning InvalidHostSubnet HostSubnet node1 can't be used: ` +
				`subnet: "nonsense" is not an IPv4 range: write it as ADDRESS/BITS, such as 10.128.0.0/14: ` +
				`write back 10.128.2.0/23, or delete it, and it is re-created with that`},
			fails: true,
		},
		{
			name:      "subnet with host bits set",
			state:     state{node: testNode("uid1", "192.0.2.1"), hs: testHostSubnet("uid1", "192.0.2.1", "10.128.2.1/23")},
			want:      testHostSubnet("uid1", "192.0.2.1", "10.128.2.1/23"),
			allocated: []string{"10.128.2.0/23"},
			events: []string{"Warning InvalidHostSubnet HostSubnet node1 can't be used: " +
				"subnet: 10.128.2.1/23 has bits set behind its mask: write 10.128.2.0/23: " +
				"write back 10.128.2.0/23, or delete it, and it is re-created with that"},
			fails: true,
		},
		{
			name: "subnet of another Node",
			state: state{node: testNode("uid1", "192.0.2.1"), hs: testHostSubnet("uid1", "192.0.2.1", "10.128.0.0/23"),
				allocated: map[string]string{"node1": "10.128.2.0/23", "node2": "10.128.0.0/23"}},
			want:      testHostSubnet("uid1", "192.0.2.1", "10.128.0.0/23"),
			allocated: []string{"10.128.2.0/23", "10.128.0.0/23"},
			events: []string{"Warning InvalidHostSubnet HostSubnet node1 can't be used: " +
				"subnet: 10.128.0.0/23 overlaps 10.128.0.0/23 of HostSubnet node2: " +
				"write back 10.128.2.0/23, or delete it, and it is re-created with that"},
			fails: true,
		},
		{
			name: "subnet changed by a user to a free one",
			state: state{node: testNode("uid1", "192.0.2.1"), hs: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"),
				allocated: map[string]string{"node1": "10.128.0.0/23"}},
			want:      testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"),
			allocated: []string{"10.128.2.0/23"},
		},
		{
			name:      "deleted by a user",
			state:     state{node: testNode("uid1", "192.0.2.1"), allocated: map[string]string{"node1": "10.128.2.0/23"}},
			want:      testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"),
			allocated: []string{"10.128.2.0/23"},
		},
		{
			name: "deleted by a user, another has its subnet",
			state: state{node: testNode("uid1", "192.0.2.1"),
				allocated: map[string]string{"node1": "10.128.0.0/23", "node2": "10.128.0.0/23"}},
			want:      testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"),
			allocated: []string{"10.128.2.0/23"},
		},
		{
			name:  "Node deleted",
			state: state{hs: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"), allocated: map[string]string{"node1": "10.128.2.0/23"}},
		},
		{
			name:  "Node and HostSubnet deleted",
			state: state{allocated: map[string]string{"node1": "10.128.2.0/23"}},
		},
		{
			name: "Node re-created",
			state: state{node: testNode("uid2", "192.0.2.7"), hs: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"),
				allocated: map[string]string{"node1": "10.128.2.0/23"}},
			want:      testHostSubnet("uid2", "192.0.2.7", "10.128.0.0/23"),
			allocated: []string{"10.128.0.0/23"},
		},
		{
			name:      "external machine",
			state:     state{hs: external("10.128.2.0/23")},
			want:      external("10.128.2.0/23"),
			allocated: []string{"10.128.2.0/23"},
		},
		{
			name:      "external machine that overlaps",
			state:     state{hs: external("10.128.2.0/23"), allocated: map[string]string{"node2": "10.128.0.0/22"}},
			want:      external("10.128.2.0/23"),
			allocated: []string{"10.128.2.0/23"},
			events: []string{
				"Warning InvalidHostSubnet subnet: 10.128.2.0/23 overlaps 10.128.0.0/22 of HostSubnet node2",
			},
			fails: true,
		},
		{
			name:      "external machine with the name of a Node",
			state:     state{node: testNode("uid1", "192.0.2.1"), hs: external("10.128.2.0/23")},
			want:      external("10.128.2.0/23"),
			allocated: []string{"10.128.2.0/23"},
			events: []string{"Warning NoHostSubnet HostSubnet node1 has the annotation pod.network.openshift.io/assign-subnet, " +
				"which makes it an external machine's: remove the annotation, or rename one of the two"},
			fails: true,
			condition: "True NoHostSubnet HostSubnet node1 has the annotation pod.network.openshift.io/assign-subnet, " +
				"which makes it an external machine's: remove the annotation, or rename one of the two",
		},
		{
			name:      "external machine without a subnet",
			state:     state{hs: external(""), allocated: map[string]string{"node2": "10.128.0.0/23"}},
			want:      external("10.128.2.0/23"),
			allocated: []string{"10.128.2.0/23"},
		},
		{
			name:      "external machine with a previous subnet",
			state:     state{hs: external(""), allocated: map[string]string{"node1": "10.128.2.0/23"}},
			want:      external("10.128.2.0/23"),
			allocated: []string{"10.128.2.0/23"},
		},
		{
			name:  "external machine, full range",
			state: state{hs: external(""), allocated: map[string]string{"node2": "10.128.0.0/22"}},
			want:  external(""),
			events: []string{"Warning NoHostSubnet no subnet is free in the cluster network 10.128.0.0/22 with 9 host bits: " +
				"add a range to ClusterNetwork default, or delete Nodes whose machines no longer exist"},
			fails: true,
		},
		{
			name:  "external machine without hostIP, with an invalid VNID",
			state: state{hs: invalidExternal},
			want:  invalidExternal.DeepCopy(),
			events: []string{"Warning InvalidHostSubnet hostIP: is missing: write the node's IPv4 address; " +
				"annotation pod.network.openshift.io/fixed-vnid-host: 7 is not a VNID: write 0 (global), or a number from 10 to 16777215"},
			fails: true,
		},
		{
			name:      "external machine whose proposed subnet overlaps",
			state:     state{hs: overlapped, allocated: map[string]string{"node2": "10.128.0.0/23"}},
			want:      external("10.128.2.0/23"),
			allocated: []string{"10.128.2.0/23"},
		},
		{
			name:      "created by a user for no Node",
			state:     state{hs: testHostSubnet("", "192.0.2.1", "10.128.2.0/25")},
			want:      testHostSubnet("", "192.0.2.1", "10.128.2.0/25"),
			allocated: []string{"10.128.2.0/25"},
		},
		// Outdated caches.
		{
			name:      "HostSubnet not cached yet",
			state:     state{node: testNode("uid1", "192.0.2.1"), hs: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"), noCachedHS: true},
			want:      testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"),
			allocated: []string{"10.128.0.0/23"}, // until the cache is up to date
			fails:     true,
		},
		{
			name:      "Node not cached yet",
			state:     state{node: testNode("uid1", "192.0.2.1"), hs: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"), noCachedNode: true},
			want:      testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"),
			allocated: []string{"10.128.2.0/23"},
		},
		{
			name: "previous Node cached",
			state: state{cachedNode: testNode("uid1", "192.0.2.1"), node: testNode("uid2", "192.0.2.2"),
				hs: testHostSubnet("uid2", "192.0.2.2", "10.128.2.0/23")},
			want:      testHostSubnet("uid2", "192.0.2.2", "10.128.2.0/23"),
			allocated: []string{"10.128.2.0/23"},
		},
		{
			name: "deleted HostSubnet cached",
			state: state{cachedHS: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"),
				allocated: map[string]string{"node1": "10.128.2.0/23"}},
			allocated: []string{"10.128.2.0/23"}, // until the cache is up to date
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t, tc.state)
			err := f.syncUntilConfirmed(t)
			if (err != nil) != tc.fails {
				t.Errorf("got error %v, want an error: %t", err, tc.fails)
			}
			if tc.want != nil {
				tc.want.UID, tc.want.ResourceVersion = "", ""
			}
			if diff := cmp.Diff(tc.want, f.stored(t)); diff != "" {
				t.Error("stored (-want +got)", diff)
			}
			var allocated []string
			for _, p := range f.allocator.Subnets("node1") {
				allocated = append(allocated, p.String())
			}
			if diff := cmp.Diff(tc.allocated, allocated); diff != "" {
				t.Error("allocated (-want +got)", diff)
			}
			if diff := cmp.Diff(tc.events, f.recorded()); diff != "" {
				t.Error("Events (-want +got)", diff)
			}
			if diff := cmp.Diff(tc.condition, f.condition(t)); diff != "" {
				t.Error("condition (-want +got)", diff)
			}
		})
	}
}
