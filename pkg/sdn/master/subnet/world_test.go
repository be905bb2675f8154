package subnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

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

// The proof in propose.go, tried out: controllers that all think that they lead work on one API server. Each call to it is
// a point at which a controller may sleep for as long as it likes, and each has caches that lag behind by as much as they
// like, but in order. At no moment may two given subnets overlap, and in the end every node must be served.

// world is the API server and all that go on at it. One goroutine runs at a time, so that a run can be repeated.
type world struct {
	revision    int
	hostSubnets map[string]*networkv1.HostSubnet
	nodes       map[string]*corev1.Node
	subnetLog   []change[*networkv1.HostSubnet] // what watches deliver
	nodeLog     []change[*corev1.Node]
	broken      error // the first time that what must not be was
	tasks       []*task
}

// change is an object as it is from now on, or its name when it is gone.
type change[T any] struct {
	name   string
	object T
	gone   bool
}

// task is one sync under way. It is awake from resume to the next thing on events: true when it sleeps, false when it has ended.
type task struct {
	by     *leader
	name   string
	resume chan struct{}
	events chan bool
}

type taskKey struct{}

// sleep lets the others go on.
func (w *world) sleep(ctx context.Context) {
	t := ctx.Value(taskKey{}).(*task)
	t.events <- true
	<-t.resume
}

// write notes a HostSubnet as it is now and looks whether that may be.
func (w *world) write(o *networkv1.HostSubnet) {
	w.revision++
	o.ResourceVersion = strconv.Itoa(w.revision)
	w.hostSubnets[o.Name] = o
	w.subnetLog = append(w.subnetLog, change[*networkv1.HostSubnet]{name: o.Name, object: o})
	if config.IsProposed(o) || o.Subnet == "" {
		return
	}
	for _, other := range w.hostSubnets {
		if other.Name != o.Name && !config.IsProposed(other) && other.Subnet != "" &&
			netip.MustParsePrefix(other.Subnet).Overlaps(netip.MustParsePrefix(o.Subnet)) && w.broken == nil {
			w.broken = fmt.Errorf("%s has %s while %s has %s", o.Name, o.Subnet, other.Name, other.Subnet)
		}
	}
}

func (w *world) addNode(name string) {
	w.revision++
	n := testNode(fmt.Sprint("uid", w.revision), fmt.Sprint("192.0.2.", 1+len(name)%200))
	n.Name, n.ResourceVersion = name, strconv.Itoa(w.revision)
	w.nodes[name] = n
	w.nodeLog = append(w.nodeLog, change[*corev1.Node]{name: name, object: n})
}

// addExternal is what people do for a machine that is no node.
func (w *world) addExternal(name string) {
	w.revision++
	o := testHostSubnet("", "192.0.2.250", "")
	o.Name, o.Host, o.UID = name, name, types.UID(fmt.Sprint("hs", w.revision))
	o.Annotations = map[string]string{networkv1.AssignHostSubnetAnnotation: "true"}
	w.write(o)
}

func (w *world) deleteExternal(name string) {
	delete(w.hostSubnets, name)
	w.subnetLog = append(w.subnetLog, change[*networkv1.HostSubnet]{name: name, gone: true})
}

func (w *world) deleteNode(name string) {
	delete(w.nodes, name)
	w.nodeLog = append(w.nodeLog, change[*corev1.Node]{name: name, gone: true})
}

// The part of the clients that the controller calls.
type (
	worldNetwork struct {
		networkclient.Interface
		*world
	}
	worldNetworkV1 struct {
		networktyped.NetworkV1Interface
		*world
	}
	worldHostSubnets struct {
		networktyped.HostSubnetInterface
		*world
	}
	worldKube struct {
		kubernetes.Interface
		*world
	}
	worldCore struct {
		coretyped.CoreV1Interface
		*world
	}
	worldNodes struct {
		coretyped.NodeInterface
		*world
	}
)

func (w worldNetwork) NetworkV1() networktyped.NetworkV1Interface {
	return worldNetworkV1{world: w.world}
}

func (w worldNetworkV1) HostSubnets() networktyped.HostSubnetInterface {
	return worldHostSubnets{world: w.world}
}

func (w worldKube) CoreV1() coretyped.CoreV1Interface { return worldCore{world: w.world} }

func (w worldCore) Nodes() coretyped.NodeInterface { return worldNodes{world: w.world} }

func (w worldHostSubnets) Get(ctx context.Context, name string, _ metav1.GetOptions) (*networkv1.HostSubnet, error) {
	w.sleep(ctx)
	o, ok := w.hostSubnets[name]
	if !ok {
		return nil, apierrors.NewNotFound(networkv1.Resource("hostsubnets"), name)
	}
	return o, nil
}

func (w worldHostSubnets) Create(ctx context.Context, o *networkv1.HostSubnet, _ metav1.CreateOptions) (*networkv1.HostSubnet, error) {
	w.sleep(ctx)
	if _, ok := w.hostSubnets[o.Name]; ok {
		return nil, apierrors.NewAlreadyExists(networkv1.Resource("hostsubnets"), o.Name)
	}
	o = o.DeepCopy()
	o.UID = types.UID(fmt.Sprint("hs", w.revision))
	w.write(o)
	return o, nil
}

func (w worldHostSubnets) Update(ctx context.Context, o *networkv1.HostSubnet, _ metav1.UpdateOptions) (*networkv1.HostSubnet, error) {
	w.sleep(ctx)
	stored, ok := w.hostSubnets[o.Name]
	switch {
	case !ok:
		return nil, apierrors.NewNotFound(networkv1.Resource("hostsubnets"), o.Name)
	case stored.UID != o.UID || stored.ResourceVersion != o.ResourceVersion:
		return nil, apierrors.NewConflict(networkv1.Resource("hostsubnets"), o.Name, errors.New("changed"))
	}
	o = o.DeepCopy()
	w.write(o)
	return o, nil
}

func (w worldHostSubnets) Delete(ctx context.Context, name string, options metav1.DeleteOptions) error {
	w.sleep(ctx)
	stored, ok := w.hostSubnets[name]
	switch p := options.Preconditions; {
	case !ok:
		return apierrors.NewNotFound(networkv1.Resource("hostsubnets"), name)
	case stored.UID != *p.UID || stored.ResourceVersion != *p.ResourceVersion:
		return apierrors.NewConflict(networkv1.Resource("hostsubnets"), name, errors.New("changed"))
	}
	delete(w.hostSubnets, name)
	w.subnetLog = append(w.subnetLog, change[*networkv1.HostSubnet]{name: name, gone: true})
	return nil
}

func (w worldNodes) Get(ctx context.Context, name string, _ metav1.GetOptions) (*corev1.Node, error) {
	w.sleep(ctx)
	o, ok := w.nodes[name]
	if !ok {
		return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
	}
	return o, nil
}

// Patch is for conditions, which are nobody's concern here.
func (w worldNodes) Patch(ctx context.Context, name string, _ types.PatchType, _ []byte, _ metav1.PatchOptions, _ ...string) (*corev1.Node, error) {
	return w.Get(ctx, name, metav1.GetOptions{})
}

// newLeader starts with caches as of an earlier moment.
func (w *world) newLeader(t *rapid.T) *leader {
	nodes := informers.NewSharedInformerFactory(kubefake.NewClientset(), 0).Core().V1().Nodes()
	hostSubnets := networkinformers.NewSharedInformerFactory(networkfake.NewSimpleClientset(), 0).Network().V1().HostSubnets()
	c, err := New(Clients{Kube: worldKube{world: w}, Network: worldNetwork{world: w}, Events: &record.FakeRecorder{}}, nodes, hostSubnets)
	if err != nil {
		t.Fatal(err)
	}
	l := &leader{Controller: c, nodeStore: nodes.Informer().GetStore()}
	w.learn(t, l, len(w.subnetLog), len(w.nodeLog))
	for _, name := range c.written.ListKeys() { // as Load does
		o, err := c.hostSubnets.Get(name)
		if err != nil {
			t.Fatal(err)
		}
		c.allocator.MarkAllocated(name, claims(o)...)
	}
	if err := c.Follow(&config.Network{
		ClusterNetworks: []config.ClusterNetwork{network("10.128.0.0/21", 9), network("10.9.0.0/24", 7)}, // four and two subnets
		ServiceNetwork:  netip.MustParsePrefix("172.30.0.0/16"),
	}); err != nil {
		t.Fatal(err)
	}
	return l
}

// learn lets the leader's caches come on by a draw of so many changes at most.
func (w *world) learn(t *rapid.T, l *leader, mostSubnets, mostNodes int) {
	if n := min(mostSubnets, len(w.subnetLog)-l.subnets); n > 0 {
		for range rapid.IntRange(0, n).Draw(t, "HostSubnets learned") {
			apply(t, l.written, w.subnetLog[l.subnets], &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: w.subnetLog[l.subnets].name}})
			l.subnets++
		}
	}
	if n := min(mostNodes, len(w.nodeLog)-l.nodeSeen); n > 0 {
		for range rapid.IntRange(0, n).Draw(t, "nodes learned") {
			apply(t, l.nodeStore, w.nodeLog[l.nodeSeen], &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.nodeLog[l.nodeSeen].name}})
			l.nodeSeen++
		}
	}
}

// begin starts a sync, up to where it sleeps for the first time. A leader syncs a name once at a time.
func (w *world) begin(l *leader, name string) {
	if slices.ContainsFunc(w.tasks, func(t *task) bool { return t.by == l && t.name == name }) {
		return
	}
	t := &task{by: l, name: name, resume: make(chan struct{}), events: make(chan bool)}
	w.tasks = append(w.tasks, t)
	go func() {
		_ = l.sync(context.WithValue(context.Background(), taskKey{}, t), name) // what fails is tried again sooner or later
		t.events <- false
	}()
	w.await(t)
}

// wake lets a sleeping task go on up to where it sleeps again.
func (w *world) wake(t *task) {
	t.resume <- struct{}{}
	w.await(t)
}

func (w *world) await(t *task) {
	if asleep := <-t.events; !asleep {
		w.tasks = slices.DeleteFunc(w.tasks, func(other *task) bool { return other == t })
	}
}

// leader is a controller and how far its caches have come.
type leader struct {
	*Controller
	nodeStore         cache.Store
	subnets, nodeSeen int
}

func apply[T any](t *rapid.T, store cache.Store, c change[T], key T) {
	var err error
	if c.gone {
		err = store.Delete(key)
	} else {
		err = store.Add(c.object)
	}
	if err != nil {
		t.Fatal(err)
	}
}
