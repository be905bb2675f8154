package subnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	networkfake "github.com/openshift/client-go/network/clientset/versioned/fake"
	networktyped "github.com/openshift/client-go/network/clientset/versioned/typed/network/v1"
	networkinformers "github.com/openshift/client-go/network/informers/externalversions"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	kubefake "k8s.io/client-go/kubernetes/fake"
	coretyped "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"pgregory.net/rapid"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// A test of the proof in proposal.go: several controllers, which all lead, write to one API server. A controller can be suspended at each call, for
// any time, and its caches can be outdated by any number of changes, but apply them in order. At no moment may two confirmed subnets
// overlap, and in the end each Node must have a subnet.

// apiServer simulates an API server, its clients and the syncs in progress. Only one goroutine runs at a time, so that runs are reproducible.
type apiServer struct {
	revision    int
	hostSubnets map[string]*networkv1.HostSubnet
	nodes       map[string]*corev1.Node
	subnetLog   []change[*networkv1.HostSubnet] // events of watches
	nodeLog     []change[*corev1.Node]
	overlap     error // the first overlap of confirmed subnets
	tasks       []*task
	retention   time.Duration
}

// change is a watch event: an added, changed or deleted object.
type change[T any] struct {
	name    string
	object  T
	deleted bool
}

// task is a sync in progress, suspended at each API call.
type task struct {
	by        *leader
	name      string
	resume    chan struct{}
	suspended chan bool // true at an API call, false at the end of the sync
}

type taskKey struct{}

// suspend suspends the task of the context until it is resumed.
func (s *apiServer) suspend(ctx context.Context) {
	t := ctx.Value(taskKey{}).(*task)
	t.suspended <- true
	<-t.resume
}

// write stores a HostSubnet and checks whether confirmed subnets overlap.
func (s *apiServer) write(o *networkv1.HostSubnet) {
	s.revision++
	o.ResourceVersion = strconv.Itoa(s.revision)
	s.hostSubnets[o.Name] = o
	s.subnetLog = append(s.subnetLog, change[*networkv1.HostSubnet]{name: o.Name, object: o})
	if config.IsProposed(o) || o.Subnet == "" {
		return
	}
	for _, other := range s.hostSubnets {
		if other.Name != o.Name && !config.IsProposed(other) && other.Subnet != "" &&
			netip.MustParsePrefix(other.Subnet).Overlaps(netip.MustParsePrefix(o.Subnet)) && s.overlap == nil {
			s.overlap = fmt.Errorf("subnet of %s %s overlaps subnet of %s %s", o.Name, o.Subnet, other.Name, other.Subnet)
		}
	}
}

func (s *apiServer) addNode(name string) {
	s.revision++
	n := testNode(fmt.Sprint("uid", s.revision), fmt.Sprint("192.0.2.", 1+len(name)%200))
	n.Name, n.ResourceVersion = name, strconv.Itoa(s.revision)
	s.nodes[name] = n
	s.nodeLog = append(s.nodeLog, change[*corev1.Node]{name: name, object: n})
}

// addExternal creates the HostSubnet of an external machine, as a user does.
func (s *apiServer) addExternal(name string) {
	s.revision++
	o := testHostSubnet("", "192.0.2.250", "")
	o.Name, o.Host, o.UID = name, name, types.UID(fmt.Sprint("hs", s.revision))
	o.Annotations = map[string]string{networkv1.AssignHostSubnetAnnotation: "true"}
	s.write(o)
}

func (s *apiServer) deleteExternal(name string) {
	delete(s.hostSubnets, name)
	s.subnetLog = append(s.subnetLog, change[*networkv1.HostSubnet]{name: name, deleted: true})
}

func (s *apiServer) deleteNode(name string) {
	delete(s.nodes, name)
	s.nodeLog = append(s.nodeLog, change[*corev1.Node]{name: name, deleted: true})
}

// The API calls of the controller.
type (
	fakeNetwork struct {
		networkclient.Interface
		*apiServer
	}
	fakeNetworkV1 struct {
		networktyped.NetworkV1Interface
		*apiServer
	}
	fakeHostSubnets struct {
		networktyped.HostSubnetInterface
		*apiServer
	}
	fakeKube struct {
		kubernetes.Interface
		*apiServer
	}
	fakeCore struct {
		coretyped.CoreV1Interface
		*apiServer
	}
	fakeNodes struct {
		coretyped.NodeInterface
		*apiServer
	}
)

func (f fakeNetwork) NetworkV1() networktyped.NetworkV1Interface {
	return fakeNetworkV1{apiServer: f.apiServer}
}

func (f fakeNetworkV1) HostSubnets() networktyped.HostSubnetInterface {
	return fakeHostSubnets{apiServer: f.apiServer}
}

func (f fakeKube) CoreV1() coretyped.CoreV1Interface { return fakeCore{apiServer: f.apiServer} }

func (f fakeCore) Nodes() coretyped.NodeInterface { return fakeNodes{apiServer: f.apiServer} }

func (f fakeHostSubnets) Get(ctx context.Context, name string, _ metav1.GetOptions) (*networkv1.HostSubnet, error) {
	f.suspend(ctx)
	o, ok := f.hostSubnets[name]
	if !ok {
		return nil, apierrors.NewNotFound(networkv1.Resource("hostsubnets"), name)
	}
	return o, nil
}

func (f fakeHostSubnets) Create(ctx context.Context, o *networkv1.HostSubnet, _ metav1.CreateOptions) (*networkv1.HostSubnet, error) {
	f.suspend(ctx)
	if _, ok := f.hostSubnets[o.Name]; ok {
		return nil, apierrors.NewAlreadyExists(networkv1.Resource("hostsubnets"), o.Name)
	}
	o = o.DeepCopy()
	o.UID = types.UID(fmt.Sprint("hs", f.revision))
	f.write(o)
	return o, nil
}

func (f fakeHostSubnets) Update(ctx context.Context, o *networkv1.HostSubnet, _ metav1.UpdateOptions) (*networkv1.HostSubnet, error) {
	f.suspend(ctx)
	stored, ok := f.hostSubnets[o.Name]
	switch {
	case !ok:
		return nil, apierrors.NewNotFound(networkv1.Resource("hostsubnets"), o.Name)
	case stored.UID != o.UID || stored.ResourceVersion != o.ResourceVersion:
		return nil, apierrors.NewConflict(networkv1.Resource("hostsubnets"), o.Name, errors.New("changed"))
	}
	o = o.DeepCopy()
	f.write(o)
	return o, nil
}

func (f fakeHostSubnets) Delete(ctx context.Context, name string, options metav1.DeleteOptions) error {
	f.suspend(ctx)
	stored, ok := f.hostSubnets[name]
	switch p := options.Preconditions; {
	case !ok:
		return apierrors.NewNotFound(networkv1.Resource("hostsubnets"), name)
	case stored.UID != *p.UID || stored.ResourceVersion != *p.ResourceVersion:
		return apierrors.NewConflict(networkv1.Resource("hostsubnets"), name, errors.New("changed"))
	}
	delete(f.hostSubnets, name)
	f.subnetLog = append(f.subnetLog, change[*networkv1.HostSubnet]{name: name, deleted: true})
	return nil
}

func (f fakeNodes) Get(ctx context.Context, name string, _ metav1.GetOptions) (*corev1.Node, error) {
	f.suspend(ctx)
	o, ok := f.nodes[name]
	if !ok {
		return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
	}
	return o, nil
}

// Patch ignores patches of conditions.
func (f fakeNodes) Patch(ctx context.Context, name string, _ types.PatchType, _ []byte, _ metav1.PatchOptions, _ ...string) (*corev1.Node, error) {
	return f.Get(ctx, name, metav1.GetOptions{})
}

// newLeader returns a leader with outdated caches.
func (s *apiServer) newLeader(t *rapid.T) *leader {
	nodes := informers.NewSharedInformerFactory(kubefake.NewClientset(), 0).Core().V1().Nodes()
	hostSubnets := networkinformers.NewSharedInformerFactory(networkfake.NewSimpleClientset(), 0).Network().V1().HostSubnets()
	c, err := New(Clients{Kube: fakeKube{apiServer: s}, Network: fakeNetwork{apiServer: s}, Events: &record.FakeRecorder{}}, nodes, hostSubnets, s.retention)
	if err != nil {
		t.Fatal(err)
	}
	l := &leader{Controller: c, nodeStore: nodes.Informer().GetStore()}
	s.updateCaches(t, l, len(s.subnetLog), len(s.nodeLog))
	for _, name := range c.hostSubnetIndexer.ListKeys() { // as in Load
		o, err := c.hostSubnets.Get(name)
		if err != nil {
			t.Fatal(err)
		}
		c.allocator.MarkAllocated(name, subnets(o)...)
	}
	if err := c.SetNetwork(&config.Network{
		ClusterNetworks: []config.ClusterNetwork{network("10.128.0.0/21", 9), network("10.9.0.0/24", 7)}, // four and two subnets
		ServiceNetwork:  netip.MustParsePrefix("172.30.0.0/16"),
	}); err != nil {
		t.Fatal(err)
	}
	return l
}

// updateCaches applies a drawn number of changes to the leader's caches, limited by the arguments.
func (s *apiServer) updateCaches(t *rapid.T, l *leader, maxSubnets, maxNodes int) {
	if n := min(maxSubnets, len(s.subnetLog)-l.subnetChanges); n > 0 {
		for range rapid.IntRange(0, n).Draw(t, "HostSubnet changes") {
			apply(t, l.hostSubnetIndexer, s.subnetLog[l.subnetChanges], &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: s.subnetLog[l.subnetChanges].name}})
			l.subnetChanges++
		}
	}
	if n := min(maxNodes, len(s.nodeLog)-l.nodeChanges); n > 0 {
		for range rapid.IntRange(0, n).Draw(t, "Node changes") {
			apply(t, l.nodeStore, s.nodeLog[l.nodeChanges], &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.nodeLog[l.nodeChanges].name}})
			l.nodeChanges++
		}
	}
}

// begin starts a sync, unless the leader already syncs that name, and runs it to its first suspension.
func (s *apiServer) begin(l *leader, name string) {
	if slices.ContainsFunc(s.tasks, func(t *task) bool { return t.by == l && t.name == name }) {
		return
	}
	t := &task{by: l, name: name, resume: make(chan struct{}), suspended: make(chan bool)}
	s.tasks = append(s.tasks, t)
	go func() {
		_ = l.sync(context.WithValue(context.Background(), taskKey{}, t), name) // the test syncs it again
		t.suspended <- false
	}()
	s.await(t)
}

// resume runs a suspended task to its next suspension.
func (s *apiServer) resume(t *task) {
	t.resume <- struct{}{}
	s.await(t)
}

func (s *apiServer) await(t *task) {
	if suspended := <-t.suspended; !suspended {
		s.tasks = slices.DeleteFunc(s.tasks, func(other *task) bool { return other == t })
	}
}

// leader is a controller, with the number of changes that its caches have applied.
type leader struct {
	*Controller
	nodeStore                  cache.Store
	subnetChanges, nodeChanges int
}

func apply[T any](t *rapid.T, store cache.Store, c change[T], key T) {
	var err error
	if c.deleted {
		err = store.Delete(key)
	} else {
		err = store.Add(c.object)
	}
	if err != nil {
		t.Fatal(err)
	}
}
