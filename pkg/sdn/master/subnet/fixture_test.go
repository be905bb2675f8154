package subnet

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	networkfake "github.com/openshift/client-go/network/clientset/versioned/fake"
	networkinformers "github.com/openshift/client-go/network/informers/externalversions"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
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
	queued  chan string // what the loop serves now, in place of sync
}

func newFixture(t *testing.T, s scene) *fixture {
	t.Helper()
	f := &fixture{kube: kubefake.NewClientset(), network: networkfake.NewSimpleClientset(), events: record.NewFakeRecorder(100), queued: make(chan string, 100)}
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
	f.tapLoop()
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
		o, err := reconcile.OrNil(f.network.NetworkV1().HostSubnets().Get(t.Context(), "node1", metav1.GetOptions{}))
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

func (f *fixture) tapLoop() {
	f.loop = reconcile.New("test", func(_ context.Context, name string) error { f.queued <- name; return nil })
}

// emptyQueue returns the names that were to be synced.
func (f *fixture) emptyQueue(t *testing.T) (names []string) {
	t.Helper()
	const last = "the last"
	f.loop.Add(last)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { f.loop.Run(ctx, 1) })
	for name := range f.queued {
		if name == last {
			break
		}
		names = append(names, name)
	}
	cancel()
	running.Wait()
	f.tapLoop() // queues end with their run
	return names
}

// updates is an informer that tells of one update of a node.
type updates struct {
	cache.SharedInformer
	before, now *corev1.Node
}

func (u updates) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	h.OnUpdate(u.before, u.now)
	return nil, nil
}

// queuedAfter returns the names that are to be synced after an update of a node.
func (f *fixture) queuedAfter(t *testing.T, before, now *corev1.Node) []string {
	t.Helper()
	if err := f.loop.WatchUnless(updates{before: before, now: now}, sameNode); err != nil {
		t.Fatal(err)
	}
	return f.emptyQueue(t)
}

// condition returns what the node says of its network: "" for nothing, else "Status Reason Message".
func (f *fixture) condition(t *testing.T) string {
	t.Helper()
	node, err := reconcile.OrNil(f.kube.CoreV1().Nodes().Get(t.Context(), "node1", metav1.GetOptions{}))
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
	o, err := reconcile.OrNil(f.network.NetworkV1().HostSubnets().Get(t.Context(), "node1", metav1.GetOptions{}))
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
