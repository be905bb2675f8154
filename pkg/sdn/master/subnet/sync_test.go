package subnet

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkv1 "github.com/openshift/api/network/v1"
	networkfake "github.com/openshift/client-go/network/clientset/versioned/fake"
	networkinformers "github.com/openshift/client-go/network/informers/externalversions"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

func testNode(uid string, internalIPs ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: types.UID(uid)}}
	n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: "node1"})
	for _, a := range internalIPs {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	return n
}

func testHostSubnet(uid, hostIP, subnet string) *networkv1.HostSubnet {
	o := &networkv1.HostSubnet{
		ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "hs1", ResourceVersion: "7"},
		Host:       "node1", HostIP: hostIP, Subnet: subnet,
	}
	if uid != "" {
		o.Annotations = map[string]string{networkv1.NodeUIDAnnotation: uid}
	}
	return o
}

// scene is what sync finds: in the caches, at the API server, in the allocator.
type scene struct {
	cachedNode, node *corev1.Node // cached nil: as the server has it
	noCachedNode     bool
	cachedHS, hs     *networkv1.HostSubnet
	noCachedHS       bool
	held             map[string]string // holder → subnet; another's is in the cache too
}

type fixture struct {
	*Controller
	kube    *kubefake.Clientset
	network *networkfake.Clientset
	events  *record.FakeRecorder
}

func newFixture(t *testing.T, s scene) *fixture {
	t.Helper()
	f := &fixture{kube: kubefake.NewClientset(), network: networkfake.NewSimpleClientset(), events: record.NewFakeRecorder(100)}
	nodes := informers.NewSharedInformerFactory(f.kube, 0).Core().V1().Nodes()
	hostSubnets := networkinformers.NewSharedInformerFactory(f.network, 0).Network().V1().HostSubnets()
	add := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	if s.node != nil {
		add(f.kube.Tracker().Add(s.node))
	}
	if s.hs != nil {
		add(f.network.Tracker().Add(s.hs))
	}
	if s.cachedNode == nil && !s.noCachedNode {
		s.cachedNode = s.node
	}
	if s.cachedHS == nil && !s.noCachedHS {
		s.cachedHS = s.hs
	}
	var err error
	f.Controller, err = New(Clients{Kube: f.kube, Network: f.network, Events: f.events}, nodes, hostSubnets)
	add(err)
	add(f.Follow(&config.Network{
		ClusterNetworks: []config.ClusterNetwork{network("10.128.0.0/22", 9)}, // two subnets
		ServiceNetwork:  netip.MustParsePrefix("172.30.0.0/16"),
	}))
	if s.cachedNode != nil {
		add(nodes.Informer().GetStore().Add(s.cachedNode))
	}
	if s.cachedHS != nil {
		add(f.written.Add(s.cachedHS))
	}
	for holder, subnet := range s.held {
		f.allocator.MarkAllocated(holder, netip.MustParsePrefix(subnet))
		if holder != "node1" {
			f.other(t, holder, subnet)
		}
	}
	return f
}

// settle syncs node1 until what is written is given: the cache learns of a proposal, and that leads to the next sync.
func (f *fixture) settle(t *testing.T) error {
	t.Helper()
	for range 10 {
		if err := f.sync(t.Context(), "node1"); err != nil {
			return err
		}
		o, err := orNil(f.network.NetworkV1().HostSubnets().Get(t.Context(), "node1", metav1.GetOptions{}))
		if err != nil {
			t.Fatal(err)
		}
		if o == nil || !config.IsProposed(o) {
			return nil
		}
		if err := f.written.Add(o); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("proposed again and again")
	return nil
}

// emptyQueue returns the names that were to be synced.
func (f *fixture) emptyQueue() (names []string) {
	for f.queue.Len() > 0 {
		name, _ := f.queue.Get()
		f.queue.Done(name)
		names = append(names, name)
	}
	return names
}

// condition returns what the node says of its network: "" for nothing, else "Status Reason Message".
func (f *fixture) condition(t *testing.T) string {
	t.Helper()
	node, err := orNil(f.kube.CoreV1().Nodes().Get(t.Context(), "node1", metav1.GetOptions{}))
	if err != nil {
		t.Fatal(err)
	}
	if node == nil {
		return ""
	}
	c := config.NetworkUnavailable(node)
	if c == nil {
		return ""
	}
	if c.LastHeartbeatTime.IsZero() || c.LastTransitionTime.IsZero() {
		t.Errorf("a condition without times: %+v", c)
	}
	return fmt.Sprint(c.Status, " ", c.Reason, " ", c.Message)
}

// stored returns what of the HostSubnet matters here; nil if there is none.
func (f *fixture) stored(t *testing.T) *networkv1.HostSubnet {
	t.Helper()
	o, err := orNil(f.network.NetworkV1().HostSubnets().Get(t.Context(), "node1", metav1.GetOptions{}))
	if err != nil {
		t.Fatal(err)
	}
	if o != nil {
		o.UID, o.ResourceVersion = "", ""
	}
	return o
}

func (f *fixture) recorded() []string {
	var list []string
	for len(f.events.Events) > 0 {
		list = append(list, <-f.events.Events)
	}
	return list
}

func TestSync(t *testing.T) {
	external := func(subnet string) *networkv1.HostSubnet {
		o := testHostSubnet("", "192.0.2.9", subnet)
		o.Annotations = map[string]string{networkv1.AssignHostSubnetAnnotation: "true"}
		return o
	}
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
	h := f.handler(sameNode)
	before, now := testNode("uid1", "192.0.2.1"), testNode("uid1", "192.0.2.1")
	now.ResourceVersion = "8"
	now.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady}}
	h.OnUpdate(before, now)
	if n := f.queue.Len(); n != 0 {
		t.Errorf("%d queued after a heartbeat", n)
	}
	h.OnUpdate(before, testNode("uid1", "192.0.2.2"))
	if n := f.queue.Len(); n != 1 {
		t.Errorf("%d queued after another address", n)
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
	woken := f.emptyQueue
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
