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
	wrongExternal := external("")
	wrongExternal.HostIP = ""
	wrongExternal.Annotations[networkv1.FixedVNIDHostAnnotation] = "7"
	rival := external("10.128.0.0/23")
	rival.Annotations["ovsdn.io/proposed"] = ""
	for _, tc := range []struct {
		name   string
		scene  scene
		want   *networkv1.HostSubnet // its UID and resource version aside
		held   []string              // by node1, afterwards
		events []string
		fails  bool   // is tried again
		says   string // the node, in its condition NetworkUnavailable
	}{
		{
			name:  "a new node",
			scene: scene{node: testNode("uid1", "192.0.2.1")},
			want:  testHostSubnet("uid1", "192.0.2.1", "10.128.0.0/23"),
			held:  []string{"10.128.0.0/23"},
		},
		{
			name:  "a new node beside another",
			scene: scene{node: testNode("uid1", "fd00::1", "192.0.2.1"), held: map[string]string{"node2": "10.128.0.128/25"}},
			want:  testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"),
			held:  []string{"10.128.2.0/23"},
		},
		{
			name:  "no address",
			scene: scene{node: testNode("uid1")},
			events: []string{"Warning NodeAddressUnusable the node has no InternalIP in its status.addresses: " +
				"set kubelet's --node-ip, or wait for the cloud's node controller"},
			fails: true,
			says: "True NoHostSubnet the node has no InternalIP in its status.addresses: " +
				"set kubelet's --node-ip, or wait for the cloud's node controller",
		},
		{
			name:  "no usable address",
			scene: scene{node: testNode("uid1", "fd00::1", "10.128.1.1")},
			events: []string{`Warning NodeAddressUnusable no InternalIP of the node will do (set kubelet's --node-ip): ` +
				`"fd00::1" is no IPv4 address: write the node's, such as 192.0.2.10; ` +
				`10.128.1.1 lies inside the cluster network 10.128.0.0/22: a node needs an address of the underlay`},
			fails: true,
			says: `True NoHostSubnet no InternalIP of the node will do (set kubelet's --node-ip): ` +
				`"fd00::1" is no IPv4 address: write the node's, such as 192.0.2.10; ` +
				`10.128.1.1 lies inside the cluster network 10.128.0.0/22: a node needs an address of the underlay`,
		},
		{
			name:  "the range is full",
			scene: scene{node: testNode("uid1", "192.0.2.1"), held: map[string]string{"node2": "10.128.0.0/22"}},
			events: []string{"Warning NoHostSubnet no subnet is free in the cluster network 10.128.0.0/22 with 9 host bits: " +
				"add a range to ClusterNetwork default, or delete nodes that are gone"},
			fails: true,
			says: "True NoHostSubnet no subnet is free in the cluster network 10.128.0.0/22 with 9 host bits: " +
				"add a range to ClusterNetwork default, or delete nodes that are gone",
		},
		{
			name:  "nothing to do",
			scene: scene{node: testNode("uid1", "192.0.2.1"), hs: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23")},
			want:  testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"),
			held:  []string{"10.128.2.0/23"},
		},
		{
			name:  "an address that drifted",
			scene: scene{node: testNode("uid1", "192.0.2.2"), hs: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23")},
			want:  testHostSubnet("uid1", "192.0.2.2", "10.128.2.0/23"),
			held:  []string{"10.128.2.0/23"},
		},
		{
			name:  "an address that is no longer the first",
			scene: scene{node: testNode("uid1", "192.0.2.2", "192.0.2.1"), hs: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23")},
			want:  testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"),
			held:  []string{"10.128.2.0/23"},
		},
		{
			name:  "an address that is nonsense",
			scene: scene{node: testNode("uid1", "192.0.2.2"), hs: testHostSubnet("uid1", "nonsense", "10.128.2.0/23")},
			want:  testHostSubnet("uid1", "192.0.2.2", "10.128.2.0/23"),
			held:  []string{"10.128.2.0/23"},
		},
		{
			name:  "a node that lost its address keeps its HostSubnet",
			scene: scene{node: testNode("uid1"), hs: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23")},
			want:  testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"),
			held:  []string{"10.128.2.0/23"},
			events: []string{"Warning NodeAddressUnusable the node has no InternalIP in its status.addresses: " +
				"set kubelet's --node-ip, or wait for the cloud's node controller"},
			fails: true,
		},
		{
			name:  "made by hand before the node",
			scene: scene{node: testNode("uid1", "192.0.2.1"), hs: testHostSubnet("", "192.0.2.1", "10.128.2.0/23")},
			want:  testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"),
			held:  []string{"10.128.2.0/23"},
		},
		{
			name: "a subnet outside",
			scene: scene{node: testNode("uid1", "192.0.2.2"), hs: testHostSubnet("uid1", "192.0.2.1", "10.9.0.0/23"),
				held: map[string]string{"node1": "10.128.2.0/23"}},
			want: testHostSubnet("uid1", "192.0.2.2", "10.9.0.0/23"),
			held: []string{"10.128.2.0/23", "10.9.0.0/23"},
			events: []string{"Warning InvalidHostSubnet HostSubnet node1 can't be used: " +
				"subnet: 10.9.0.0/23 lies outside of the cluster network 10.128.0.0/22: " +
				"write back 10.128.2.0/23, or delete it, and it is made anew with that"},
			fails: true,
		},
		{
			name:  "a subnet of another length, of which nothing is remembered",
			scene: scene{node: testNode("uid1", "192.0.2.1"), hs: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/24")},
			want:  testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/24"),
			held:  []string{"10.128.2.0/24"},
			events: []string{"Warning InvalidHostSubnet HostSubnet node1 can't be used: " +
				"subnet: 10.128.2.0/24 is a /24, but in the cluster network 10.128.0.0/22 with 9 host bits a node has a /23: " +
				"delete it, and the node gets another subnet"},
			fails: true,
		},
		{
			name:  "a subnet that doesn't parse",
			scene: scene{node: testNode("uid1", "192.0.2.1"), hs: testHostSubnet("uid1", "192.0.2.1", "nonsense"), held: map[string]string{"node1": "10.128.2.0/23"}},
			want:  testHostSubnet("uid1", "192.0.2.1", "nonsense"),
			held:  []string{"10.128.2.0/23"},
			events: []string{`Warning InvalidHostSubnet HostSubnet node1 can't be used: ` +
				`subnet: "nonsense" is no IPv4 range: write it as ADDRESS/BITS, such as 10.128.0.0/14: ` +
				`write back 10.128.2.0/23, or delete it, and it is made anew with that`},
			fails: true,
		},
		{
			name:  "bits behind the mask",
			scene: scene{node: testNode("uid1", "192.0.2.1"), hs: testHostSubnet("uid1", "192.0.2.1", "10.128.2.1/23")},
			want:  testHostSubnet("uid1", "192.0.2.1", "10.128.2.1/23"),
			held:  []string{"10.128.2.0/23"},
			events: []string{"Warning InvalidHostSubnet HostSubnet node1 can't be used: " +
				"subnet: 10.128.2.1/23 has bits set behind its mask: write 10.128.2.0/23: " +
				"write back 10.128.2.0/23, or delete it, and it is made anew with that"},
			fails: true,
		},
		{
			name: "another node's subnet",
			scene: scene{node: testNode("uid1", "192.0.2.1"), hs: testHostSubnet("uid1", "192.0.2.1", "10.128.0.0/23"),
				held: map[string]string{"node1": "10.128.2.0/23", "node2": "10.128.0.0/23"}},
			want: testHostSubnet("uid1", "192.0.2.1", "10.128.0.0/23"),
			held: []string{"10.128.2.0/23", "10.128.0.0/23"},
			events: []string{"Warning InvalidHostSubnet HostSubnet node1 can't be used: " +
				"subnet: 10.128.0.0/23 overlaps 10.128.0.0/23 of HostSubnet node2: " +
				"write back 10.128.2.0/23, or delete it, and it is made anew with that"},
			fails: true,
		},
		{
			name: "moved by hand to a free one",
			scene: scene{node: testNode("uid1", "192.0.2.1"), hs: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"),
				held: map[string]string{"node1": "10.128.0.0/23"}},
			want: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"),
			held: []string{"10.128.2.0/23"},
		},
		{
			name:  "deleted by hand",
			scene: scene{node: testNode("uid1", "192.0.2.1"), held: map[string]string{"node1": "10.128.2.0/23"}},
			want:  testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"),
			held:  []string{"10.128.2.0/23"},
		},
		{
			name: "deleted by hand when another has its subnet",
			scene: scene{node: testNode("uid1", "192.0.2.1"),
				held: map[string]string{"node1": "10.128.0.0/23", "node2": "10.128.0.0/23"}},
			want: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"),
			held: []string{"10.128.2.0/23"},
		},
		{
			name:  "the node is gone",
			scene: scene{hs: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"), held: map[string]string{"node1": "10.128.2.0/23"}},
		},
		{
			name:  "both are gone",
			scene: scene{held: map[string]string{"node1": "10.128.2.0/23"}},
		},
		{
			name: "made anew under its name",
			scene: scene{node: testNode("uid2", "192.0.2.7"), hs: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"),
				held: map[string]string{"node1": "10.128.2.0/23"}},
			want: testHostSubnet("uid2", "192.0.2.7", "10.128.0.0/23"),
			held: []string{"10.128.0.0/23"},
		},
		{
			name:  "an external machine",
			scene: scene{hs: external("10.128.2.0/23")},
			want:  external("10.128.2.0/23"),
			held:  []string{"10.128.2.0/23"},
		},
		{
			name:  "an external machine that overlaps",
			scene: scene{hs: external("10.128.2.0/23"), held: map[string]string{"node2": "10.128.0.0/22"}},
			want:  external("10.128.2.0/23"),
			held:  []string{"10.128.2.0/23"},
			events: []string{
				"Warning InvalidHostSubnet subnet: 10.128.2.0/23 overlaps 10.128.0.0/22 of HostSubnet node2",
			},
			fails: true,
		},
		{
			name:  "an external machine with a node's name",
			scene: scene{node: testNode("uid1", "192.0.2.1"), hs: external("10.128.2.0/23")},
			want:  external("10.128.2.0/23"),
			held:  []string{"10.128.2.0/23"},
			events: []string{"Warning NoHostSubnet HostSubnet node1 has the annotation pod.network.openshift.io/assign-subnet, " +
				"which makes it an external machine's: remove the annotation, or rename one of the two"},
			fails: true,
			says: "True NoHostSubnet HostSubnet node1 has the annotation pod.network.openshift.io/assign-subnet, " +
				"which makes it an external machine's: remove the annotation, or rename one of the two",
		},
		{
			name:  "an external machine that waits for its subnet",
			scene: scene{hs: external(""), held: map[string]string{"node2": "10.128.0.0/23"}},
			want:  external("10.128.2.0/23"),
			held:  []string{"10.128.2.0/23"},
		},
		{
			name:  "an external machine that had a subnet",
			scene: scene{hs: external(""), held: map[string]string{"node1": "10.128.2.0/23"}},
			want:  external("10.128.2.0/23"),
			held:  []string{"10.128.2.0/23"},
		},
		{
			name:  "an external machine for which there is no subnet",
			scene: scene{hs: external(""), held: map[string]string{"node2": "10.128.0.0/22"}},
			want:  external(""),
			events: []string{"Warning NoHostSubnet no subnet is free in the cluster network 10.128.0.0/22 with 9 host bits: " +
				"add a range to ClusterNetwork default, or delete nodes that are gone"},
			fails: true,
		},
		{
			name:  "an external machine without an address, and of a VNID that is none",
			scene: scene{hs: wrongExternal},
			want:  wrongExternal.DeepCopy(),
			events: []string{"Warning InvalidHostSubnet hostIP: is missing: write the node's IPv4 address; " +
				"annotation pod.network.openshift.io/fixed-vnid-host: 7 is no VNID: write 0 (global), or a number from 10 to 16777215"},
			fails: true,
		},
		{
			name:  "an external machine whose proposed subnet another has",
			scene: scene{hs: rival, held: map[string]string{"node2": "10.128.0.0/23"}},
			want:  external("10.128.2.0/23"),
			held:  []string{"10.128.2.0/23"},
		},
		{
			name:  "made by hand for no node",
			scene: scene{hs: testHostSubnet("", "192.0.2.1", "10.128.2.0/25")},
			want:  testHostSubnet("", "192.0.2.1", "10.128.2.0/25"),
			held:  []string{"10.128.2.0/25"},
		},
		// Caches that lag behind.
		{
			name:  "the cache doesn't know the HostSubnet yet",
			scene: scene{node: testNode("uid1", "192.0.2.1"), hs: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"), noCachedHS: true},
			want:  testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"),
			held:  []string{"10.128.0.0/23"}, // until the cache knows
			fails: true,
		},
		{
			name:  "the cache doesn't know the node yet",
			scene: scene{node: testNode("uid1", "192.0.2.1"), hs: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"), noCachedNode: true},
			want:  testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"),
			held:  []string{"10.128.2.0/23"},
		},
		{
			name: "the cache has the node of before",
			scene: scene{cachedNode: testNode("uid1", "192.0.2.1"), node: testNode("uid2", "192.0.2.2"),
				hs: testHostSubnet("uid2", "192.0.2.2", "10.128.2.0/23")},
			want: testHostSubnet("uid2", "192.0.2.2", "10.128.2.0/23"),
			held: []string{"10.128.2.0/23"},
		},
		{
			name: "the cache has a HostSubnet that is gone with its node",
			scene: scene{cachedHS: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23"),
				held: map[string]string{"node1": "10.128.2.0/23"}},
			held: []string{"10.128.2.0/23"}, // until the cache knows
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t, tc.scene)
			err := f.settle(t)
			if (err != nil) != tc.fails {
				t.Errorf("sync: %v", err)
			}
			if tc.want != nil {
				tc.want.UID, tc.want.ResourceVersion = "", ""
			}
			if diff := cmp.Diff(tc.want, f.stored(t)); diff != "" {
				t.Error("stored", diff)
			}
			var held []string
			for _, p := range f.allocator.HeldBy("node1") {
				held = append(held, p.String())
			}
			if diff := cmp.Diff(tc.held, held); diff != "" {
				t.Error("held", diff)
			}
			if diff := cmp.Diff(tc.events, f.recorded()); diff != "" {
				t.Error("events", diff)
			}
			if diff := cmp.Diff(tc.says, f.condition(t)); diff != "" {
				t.Error("condition", diff)
			}
		})
	}
}
