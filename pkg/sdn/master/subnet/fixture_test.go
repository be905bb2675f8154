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

// state is the state of the caches, the API server and the allocator before a sync.
type state struct {
	cachedNode, node *corev1.Node // cached; of the API server. If cached is nil, both are the same.
	noCachedNode     bool
	cachedHS, hs     *networkv1.HostSubnet
	noCachedHS       bool
	allocated        map[string]string // subnet by owner; those of other owners than node1 are cached too
}

type fixture struct {
	*Controller
	kube    *kubefake.Clientset
	network *networkfake.Clientset
	events  *record.FakeRecorder
	queued  chan string // keys of the loop, which does not call sync
}

func newFixture(t *testing.T, s state) *fixture {
	t.Helper()
	f := &fixture{kube: kubefake.NewClientset(), network: networkfake.NewSimpleClientset(), events: record.NewFakeRecorder(100), queued: make(chan string, 100)}
	nodes := informers.NewSharedInformerFactory(f.kube, 0).Core().V1().Nodes()
	hostSubnets := networkinformers.NewSharedInformerFactory(f.network, 0).Network().V1().HostSubnets()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	if s.node != nil {
		must(f.kube.Tracker().Add(s.node))
	}
	if s.hs != nil {
		must(f.network.Tracker().Add(s.hs))
	}
	if s.cachedNode == nil && !s.noCachedNode {
		s.cachedNode = s.node
	}
	if s.cachedHS == nil && !s.noCachedHS {
		s.cachedHS = s.hs
	}
	var err error
	f.Controller, err = New(Clients{Kube: f.kube, Network: f.network, Events: f.events}, nodes, hostSubnets, 0)
	must(err)
	f.recordQueue()
	must(f.SetNetwork(&config.Network{
		ClusterNetworks: []config.ClusterNetwork{network("10.128.0.0/22", 9)}, // two subnets
		ServiceNetwork:  netip.MustParsePrefix("172.30.0.0/16"),
	}))
	if s.cachedNode != nil {
		must(nodes.Informer().GetStore().Add(s.cachedNode))
	}
	if s.cachedHS != nil {
		must(f.hostSubnetIndexer.Add(s.cachedHS))
	}
	for owner, subnet := range s.allocated {
		f.allocator.MarkAllocated(owner, netip.MustParsePrefix(subnet))
		if owner != "node1" {
			f.addHostSubnet(t, owner, subnet)
		}
	}
	return f
}

// syncUntilConfirmed syncs node1 and adds proposals to the cache, until its HostSubnet is confirmed or deleted.
func (f *fixture) syncUntilConfirmed(t *testing.T) error {
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
		if err := f.hostSubnetIndexer.Add(o); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("got a proposal after 10 syncs, want a confirmed HostSubnet")
	return nil
}

func (f *fixture) recordQueue() {
	f.loop = reconcile.New("test", func(_ context.Context, name string) error { f.queued <- name; return nil })
}

// emptyQueue returns the keys of the queue and removes them.
func (f *fixture) emptyQueue(t *testing.T) (names []string) {
	t.Helper()
	const last = "last"
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
	f.recordQueue() // Run shuts the queue down
	return names
}

// updateInformer is an informer with a single event, the update of a Node.
type updateInformer struct {
	cache.SharedInformer
	before, now *corev1.Node
}

func (u updateInformer) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	h.OnUpdate(u.before, u.now)
	return nil, nil
}

// queuedAfter returns the keys that the update of a Node adds to the queue.
func (f *fixture) queuedAfter(t *testing.T, before, now *corev1.Node) []string {
	t.Helper()
	if err := f.loop.WatchUnless(updateInformer{before: before, now: now}, sameNode); err != nil {
		t.Fatal(err)
	}
	return f.emptyQueue(t)
}

// condition returns the condition NetworkUnavailable of node1 as "Status Reason Message"; "": none.
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
		t.Errorf("got condition %+v, want times in it", c)
	}
	return fmt.Sprint(c.Status, " ", c.Reason, " ", c.Message)
}

// stored returns HostSubnet node1 without UID and resourceVersion; nil if it does not exist.
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

// recorded returns and removes the recorded Events.
func (f *fixture) recorded() []string {
	var list []string
	for len(f.events.Events) > 0 {
		list = append(list, <-f.events.Events)
	}
	return list
}
