package multicast

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/test/await"
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

const (
	timeout = 90 * time.Second

	vnid  config.VNID = 0x20
	other config.VNID = 0x30
)

// fixture is node1, beside node2 to node4 at 172.31.0.2 to .4.
type fixture struct {
	*testing.T
	*Listeners
	client    *fake.Clientset
	stop      func()
	published atomic.Int64

	mu      sync.Mutex
	refused bool           // pods can't be listed
	open    map[string]int // watches, by namespace
}

// watched calls stopped when it is stopped.
type watched struct {
	watch.Interface
	stopped func()
}

func (w watched) Stop() {
	w.stopped()
	w.Interface.Stop()
}

func start(t *testing.T, objects ...runtime.Object) *fixture {
	t.Helper()
	f := &fixture{T: t, client: fake.NewClientset(objects...), open: map[string]int{}}
	f.client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.refused, nil, apierrors.NewForbidden(corev1.Resource("pods"), "", errors.New("not yet"))
	})
	f.client.PrependWatchReactor("pods", func(action clienttesting.Action) (bool, watch.Interface, error) {
		namespace := action.GetNamespace()
		var options metav1.ListOptions
		if of, ok := action.(clienttesting.WatchActionImpl); ok {
			options = of.ListOptions // with them the tracker sends events since the list
		}
		w, err := f.client.Tracker().Watch(action.GetResource(), namespace, options)
		f.opened(namespace, 1)
		return true, watched{w, sync.OnceFunc(func() { f.opened(namespace, -1) })}, err
	})
	st := flowstore.New(ovs.NewFake("br0"))
	st.Source(inputs.KindMulticastNodes, flowstore.Source{Changed: func(string) { f.published.Add(1) }})
	f.Listeners = New("node1", f.client, st)
	for n := 2; n <= 4; n++ {
		f.node(fmt.Sprintf("node%d", n), fmt.Sprintf("172.31.0.%d", n))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { f.Listeners.Run(ctx) })
	f.stop = func() { cancel(); running.Wait() }
	t.Cleanup(f.stop)
	return f
}

func (f *fixture) opened(namespace string, by int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.open[namespace] += by; f.open[namespace] == 0 {
		delete(f.open, namespace)
	}
}

func (f *fixture) refuse(yes bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refused = yes
}

// withoutLists calls do while the fake API server answers no list of pods.
func (f *fixture) withoutLists(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

func (f *fixture) node(name, vtep string) {
	f.SetRemoteNode(name, &inputs.RemoteNode{VTEP: netip.MustParseAddr(vtep), IsNode: true})
}

func pod(namespace, name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.PodSpec{NodeName: node},
	}
}

func (f *fixture) create(p *corev1.Pod) {
	f.Helper()
	if _, err := f.client.CoreV1().Pods(p.Namespace).Create(f.Context(), p, metav1.CreateOptions{}); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) update(p *corev1.Pod) {
	f.Helper()
	if _, err := f.client.CoreV1().Pods(p.Namespace).Update(f.Context(), p, metav1.UpdateOptions{}); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) delete(namespace, name string) {
	f.Helper()
	if err := f.client.CoreV1().Pods(namespace).Delete(f.Context(), name, metav1.DeleteOptions{}); err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) eventually(check func() error) {
	f.Helper()
	await.OK(f, timeout, func(context.Context) error { return check() })
}

// wantWatched waits until exactly these namespaces are watched, each once.
func (f *fixture) wantWatched(want ...string) {
	f.Helper()
	f.eventually(func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, name := range want {
			if f.open[name] != 1 {
				return fmt.Errorf("watches by namespace: got %v, want %q", f.open, want)
			}
		}
		if len(f.open) != len(want) {
			return fmt.Errorf("watches by namespace: got %v, want %q", f.open, want)
		}
		return nil
	})
}

// check compares the published nodes of the VNID with the wanted VTEPs; "?": unknown.
func (f *fixture) check(vnid config.VNID, want ...string) error {
	nodes, _ := flowstore.Get[inputs.MulticastNodes](f.store, inputs.MulticastNodesOf(vnid))
	got := []string{}
	for _, vtep := range nodes.VTEPs {
		got = append(got, vtep.String())
	}
	if !nodes.Known {
		got = []string{"?"}
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("nodes with receivers of VNID %s: got %q, want %q", vnid, got, want)
	}
	return nil
}

// want waits until the nodes of the VNID are published.
func (f *fixture) want(vnid config.VNID, want ...string) {
	f.Helper()
	f.eventually(func() error { return f.check(vnid, want...) })
}

// wantPublished waits until the nodes of the VNID are published, and the store was notified after the count before.
func (f *fixture) wantPublished(before int64, vnid config.VNID, want ...string) {
	f.Helper()
	f.want(vnid, want...)
	f.eventually(func() error {
		if f.published.Load() == before {
			return errors.New("the store was not notified")
		}
		return nil
	})
}

func TestFollow_countsPodsOfNodes(t *testing.T) {
	onHost := pod("a", "host-network", "node3")
	onHost.Spec.HostNetwork = true
	done := pod("a", "done", "node3")
	done.Status.Phase = corev1.PodSucceeded
	f := start(t, pod("a", "one", "node2"), pod("a", "mine", "node1"), pod("a", "waiting", ""), pod("elsewhere", "x", "node4"), onHost, done)
	f.Follow(vnid, []string{"a"})
	f.want(vnid, "172.31.0.2")
	f.wantWatched("a")

	before := f.published.Load()
	f.create(pod("a", "two", "node3"))
	f.wantPublished(before, vnid, "172.31.0.2", "172.31.0.3")

	before = f.published.Load()
	f.update(pod("a", "waiting", "node4")) // it is scheduled
	f.wantPublished(before, vnid, "172.31.0.2", "172.31.0.3", "172.31.0.4")

	before = f.published.Load()
	failed := pod("a", "two", "node3")
	failed.Status.Phase = corev1.PodFailed
	f.update(failed)
	f.wantPublished(before, vnid, "172.31.0.2", "172.31.0.4")

	// A node is published until its last pod is deleted.
	f.create(pod("a", "three", "node2"))
	f.delete("a", "waiting")
	f.delete("a", "one")
	f.want(vnid, "172.31.0.2")
	f.delete("a", "three")
	f.want(vnid)
}

// The pods of all namespaces of a VNID count, and a namespace can move to another VNID.
func TestFollow_severalNamespaces(t *testing.T) {
	f := start(t, pod("a", "x", "node2"), pod("b", "x", "node2"), pod("b", "y", "node3"), pod("c", "x", "node4"))
	f.Follow(vnid, []string{"a", "b"})
	f.Follow(other, []string{"c"})
	f.want(vnid, "172.31.0.2", "172.31.0.3")
	f.want(other, "172.31.0.4")
	f.wantWatched("a", "b", "c")

	f.withoutLists(func() {
		f.Follow(vnid, []string{"a"})
		f.Follow(other, []string{"b", "c"})
		if err := errors.Join(f.check(vnid, "172.31.0.2"), f.check(other, "?")); err != nil {
			t.Error(err)
		}
	})
	f.want(other, "172.31.0.2", "172.31.0.3", "172.31.0.4")
	f.wantWatched("a", "b", "c")
}

// Only pods of followed namespaces are watched.
func TestFollow_watchesNoOtherNamespaces(t *testing.T) {
	f := start(t, pod("a", "x", "node2"))
	f.wantWatched()
	f.Follow(vnid, []string{"a"})
	f.Follow(vnid, []string{"a"})
	f.wantWatched("a")
	f.Follow(vnid, nil)
	f.wantWatched()
	if err := f.check(vnid, "?"); err != nil {
		t.Error(err)
	}
	for range 100 { // the watches may not start in between
		f.Follow(vnid, []string{"a", "b"})
		f.Follow(vnid, nil)
	}
	f.Follow(vnid, []string{"b"})
	f.wantWatched("b")
	f.stop()
	f.wantWatched()
	for _, action := range f.client.Actions() {
		if action.GetNamespace() == "" {
			t.Errorf("got a request for the pods of all namespaces: %v", action)
		}
	}
}

// Until the pods of all namespaces are listed, all nodes get the multicast.
func TestFollow_unknownUntilListed(t *testing.T) {
	f := start(t, pod("a", "x", "node2"), pod("b", "x", "node3"))
	f.Follow(vnid, []string{"a"})
	f.want(vnid, "172.31.0.2")
	f.refuse(true)
	f.Follow(vnid, []string{"a", "b"})
	if err := f.check(vnid, "?"); err != nil {
		t.Error(err)
	}
	lists := func() (n int) {
		for _, action := range f.client.Actions() {
			if action.Matches("list", "pods") && action.GetNamespace() == "b" {
				n++
			}
		}
		return n
	}
	f.eventually(func() error {
		if lists() == 0 {
			return errors.New("the pods of b were not requested yet")
		}
		return f.check(vnid, "?")
	})
	before := f.published.Load()
	f.refuse(false)
	f.wantPublished(before, vnid, "172.31.0.2", "172.31.0.3")
}

func TestSetRemoteNode_nodes(t *testing.T) {
	f := start(t, pod("a", "x", "node2"))
	f.Follow(vnid, []string{"a"})
	f.want(vnid, "172.31.0.2")
	f.wantWatched("a")

	before := f.published.Load()
	f.node("node2", "172.31.0.22")
	f.wantPublished(before, vnid, "172.31.0.22")

	f.create(pod("a", "y", "new"))
	f.want(vnid, "?")
	before = f.published.Load()
	f.node("new", "172.31.0.5")
	f.wantPublished(before, vnid, "172.31.0.5", "172.31.0.22")

	before = f.published.Load()
	f.SetRemoteNode("new", nil)
	f.wantPublished(before, vnid, "?")
}

// A machine outside of the cluster gets the multicast of its fixed VNID, or, without one, of all VNIDs.
func TestSetRemoteNode_machines(t *testing.T) {
	f := start(t, pod("a", "x", "node2"), pod("b", "x", "node3"))
	f.Follow(vnid, []string{"a"})
	f.Follow(other, []string{"b"})
	f.want(vnid, "172.31.0.2")
	f.want(other, "172.31.0.3")
	f.wantWatched("a", "b")

	before := f.published.Load()
	f.SetRemoteNode("fixed", &inputs.RemoteNode{VTEP: netip.MustParseAddr("172.31.0.98"), HasFixedVNID: true, FixedVNID: vnid})
	f.wantPublished(before, vnid, "172.31.0.2", "172.31.0.98")
	f.want(other, "172.31.0.3")

	f.SetRemoteNode("free", &inputs.RemoteNode{VTEP: netip.MustParseAddr("172.31.0.99")})
	f.want(vnid, "172.31.0.2", "172.31.0.98", "172.31.0.99")
	f.want(other, "172.31.0.3", "172.31.0.99")

	// With unknown receivers all nodes get the multicast, and also the machine that the replication list for all VNIDs omits.
	f.create(pod("a", "y", "new"))
	f.want(vnid, "172.31.0.2", "172.31.0.3", "172.31.0.4", "172.31.0.98", "172.31.0.99")
	f.create(pod("b", "y", "new"))
	f.want(other, "?")

	before = f.published.Load()
	f.SetRemoteNode("fixed", nil)
	f.wantPublished(before, vnid, "?")
}

// Pods that are created together cause few changes of the switch.
func TestFollow_batchesPods(t *testing.T) {
	f := start(t)
	f.Follow(vnid, []string{"a"})
	f.wantWatched("a")
	f.want(vnid)
	started, before := time.Now(), f.published.Load()
	var want []string
	for n := range 100 {
		node, vtep := fmt.Sprintf("more%d", n), netip.AddrFrom4([4]byte{172, 31, 1, byte(n)})
		f.node(node, vtep.String())
		f.create(pod("a", node, node))
		want = append(want, vtep.String())
	}
	f.wantPublished(before, vnid, want...)
	// The list itself may cause one more change.
	if n, most := f.published.Load()-before, int64(time.Since(started)/publishDelay)+2; n > most {
		t.Errorf("got %d changes, want at most %d", n, most)
	}
}
