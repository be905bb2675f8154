package netid

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	networkfake "github.com/openshift/client-go/network/clientset/versioned/fake"
	networkinformers "github.com/openshift/client-go/network/informers/externalversions"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// fixture is a controller whose caches contain what the test adds.
type fixture struct {
	*Controller
	kube              *kubefake.Clientset
	network           *networkfake.Clientset
	netNamespaceStore cache.Store
	namespaceStore    cache.Store
	events            *record.FakeRecorder
}

func newFixture(t *testing.T, objects ...*networkv1.NetNamespace) *fixture {
	t.Helper()
	f := &fixture{kube: kubefake.NewClientset(), network: networkfake.NewSimpleClientset(), events: record.NewFakeRecorder(100)}
	namespaces := informers.NewSharedInformerFactory(f.kube, 0).Core().V1().Namespaces()
	netNamespaces := networkinformers.NewSharedInformerFactory(f.network, 0).Network().V1().NetNamespaces()
	var err error
	f.Controller, err = New(Clients{Kube: f.kube, Network: f.network, Events: f.events}, namespaces, netNamespaces, []string{"default"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	f.SetMode(t.Context(), config.ModeMultitenant)
	f.netNamespaceStore, f.namespaceStore = netNamespaces.Informer().GetStore(), namespaces.Informer().GetStore()
	for _, o := range objects {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: o.Name, UID: types.UID("uid-" + o.Name)}}
		for _, err := range []error{f.namespaceStore.Add(ns), f.netNamespaceStore.Add(o), f.network.Tracker().Add(o)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		f.vnids.Set(o.Name, config.VNID(o.NetID)) // as in Load
	}
	return f
}

// netNamespace returns a NetNamespace as the controller writes it, with a change request unless that is "".
func netNamespace(name string, vnid uint32, request string) *networkv1.NetNamespace {
	o := &networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "7", Annotations: map[string]string{
		config.NamespaceUIDAnnotation: "uid-" + name, config.AssignedVNIDAnnotation: fmt.Sprint(vnid),
	}}, NetName: name, NetID: vnid}
	if request != "" {
		o.Annotations[networkv1.ChangePodNetworkAnnotation] = request
	}
	return o
}

// A restart in a large cluster makes no API calls.
func TestSync_noCallsIfUpToDate(t *testing.T) {
	const n = 10_000
	var all []*networkv1.NetNamespace
	for i := range n {
		all = append(all, netNamespace(fmt.Sprint("ns", i), uint32(10+i-i%3), "")) // groups of three namespaces with the same VNID
	}
	f := newFixture(t, all...)
	for _, o := range all {
		if err := f.sync(t.Context(), o.Name); err != nil {
			t.Fatal(err)
		}
	}
	if calls := append(f.network.Actions(), f.kube.Actions()...); len(calls) > 0 {
		t.Errorf("got %d API calls, want none; the first is %v", len(calls), calls[0])
	}
}

// A change whose write fails changes neither the object nor the allocator.
func TestChange_failedWrite(t *testing.T) {
	for _, request := range []string{"isolate", "global", "join:blue", "nonsense"} {
		t.Run(request, func(t *testing.T) {
			f := newFixture(t, netNamespace("red", 100, request), netNamespace("green", 100, ""), netNamespace("blue", 200, ""))
			lost := errors.New("connection lost")
			f.network.PrependReactor("update", "netnamespaces", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, lost
			})
			if err := f.sync(t.Context(), "red"); !errors.Is(err, lost) {
				t.Fatalf("got error %v, want %v", err, lost)
			}
			if vnid, _ := f.vnids.VNID("red"); vnid != 100 {
				t.Errorf("got VNID %d of red, want 100", vnid)
			}
			for vnid, want := range map[config.VNID]int{100: 2, 200: 1} {
				if got := f.vnids.allocations[vnid].count(); got != want {
					t.Errorf("got %d users of VNID %d, want %d", got, vnid, want)
				}
			}
			stored, err := f.network.NetworkV1().NetNamespaces().Get(t.Context(), "red", metav1.GetOptions{})
			if err != nil || stored.NetID != 100 || stored.Annotations[networkv1.ChangePodNetworkAnnotation] != request {
				t.Errorf("got %+v, %v, want it unchanged", stored, err)
			}
		})
	}
}

// A Namespace that was deleted and created again with its NetNamespace deleted gets another VNID; one whose NetNamespace alone was deleted has the same one again.
func TestCreate_recreatedNamespace(t *testing.T) {
	for uid, same := range map[types.UID]bool{"uid-red": true, "uid-next": false} {
		f := newFixture(t, netNamespace("red", 100, ""))
		if err := f.sync(t.Context(), "red"); err != nil {
			t.Fatal(err)
		}
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "red", UID: uid}}
		for _, err := range []error{
			f.kube.Tracker().Add(ns),
			f.network.Tracker().Delete(networkv1.GroupVersion.WithResource("netnamespaces"), "", "red"),
			f.netNamespaceStore.Delete(netNamespace("red", 100, "")), f.namespaceStore.Update(ns), f.sync(t.Context(), "red"),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		if vnid, _ := f.vnids.VNID("red"); (vnid == 100) != same {
			t.Errorf("Namespace with UID %s: got VNID %d, want that of uid-red: %t", uid, vnid, same)
		}
	}
}

// Each of many Namespaces of one name gets a VNID that none of the previous ones had.
func TestCreate_recreatedManyTimes(t *testing.T) {
	f := newFixture(t)
	seen := map[config.VNID]bool{}
	for i := range 100 {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "red", UID: types.UID(fmt.Sprint("uid", i))}}
		if err := errors.Join(f.namespaceStore.Add(ns), f.kube.Tracker().Add(ns), f.sync(t.Context(), "red")); err != nil {
			t.Fatal(err)
		}
		vnid, ok := f.vnids.VNID("red")
		if !ok || seen[vnid] {
			t.Fatalf("Namespace %d: got VNID %d, %t, want one that no previous Namespace had", i, vnid, ok)
		}
		seen[vnid] = true
		// The controller sees the deletions of both objects together with the next Namespace.
		if err := errors.Join(f.network.Tracker().Delete(networkv1.GroupVersion.WithResource("netnamespaces"), "", "red"),
			f.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("namespaces"), "", "red")); err != nil {
			t.Fatal(err)
		}
	}
	if len(f.states) != 1 {
		t.Errorf("got %d states, want 1", len(f.states))
	}
}

// If the cache has a previous Namespace, the NetNamespace is that of the current one.
func TestCreate_outdatedNamespace(t *testing.T) {
	f := newFixture(t, netNamespace("red", 100, ""))
	if err := f.sync(t.Context(), "red"); err != nil {
		t.Fatal(err)
	}
	current := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "red", UID: "uid-red"}}
	previous := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "red", UID: "uid-previous"}}
	for _, err := range []error{
		f.kube.Tracker().Add(current), f.network.Tracker().Delete(networkv1.GroupVersion.WithResource("netnamespaces"), "", "red"),
		f.netNamespaceStore.Delete(netNamespace("red", 100, "")), f.namespaceStore.Update(previous), f.sync(t.Context(), "red"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if vnid, _ := f.vnids.VNID("red"); vnid != 100 {
		t.Errorf("got VNID %d, want 100", vnid)
	}
}

// A create that fails may have succeeded on the server: its VNID is quarantined.
func TestCreate_failedWrite(t *testing.T) {
	f := newFixture(t)
	f.vnids.random = func(uint32) uint32 { return 5 }
	var tried []uint32
	f.network.PrependReactor("create", "netnamespaces", func(a clienttesting.Action) (bool, runtime.Object, error) {
		tried = append(tried, a.(clienttesting.CreateAction).GetObject().(*networkv1.NetNamespace).NetID)
		return true, nil, apierrors.NewInternalError(errors.New("no answer"))
	})
	for _, name := range []string{"red", "green"} {
		if err := f.create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u"}}); !apierrors.IsInternalError(err) {
			t.Fatal(err)
		}
		if vnid, ok := f.vnids.VNID(name); ok {
			t.Errorf("got VNID %d of %s, want none", vnid, name)
		}
	}
	if len(tried) != 2 || tried[0] == tried[1] {
		t.Errorf("got creates with VNIDs %v, want two different ones", tried)
	}
}

// If no VNID is free, that is reported on the object, and the retry allocates one as soon as one is free.
func TestAllocate_reportsNoVNID(t *testing.T) {
	f := newFixture(t, netNamespace("red", 100, "isolate"), netNamespace("green", 100, ""))
	f.vnids.partitionSize, f.vnids.partition = 1, 0
	for vnid := config.MinVNID; vnid < partitions; vnid++ {
		f.vnids.Reserve(vnid)
	}
	blue := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "blue", UID: "u"}}
	for what, attempt := range map[string]func() error{
		"create":  func() error { return f.create(t.Context(), blue) },
		"isolate": func() error { return f.sync(t.Context(), "red") },
	} {
		err := attempt()
		if _, is := errors.AsType[reconcile.UserError](err); !is {
			t.Errorf("%s: got error %v, want a UserError", what, err)
		}
		if _, full := errors.AsType[*FullError](err); !full {
			t.Errorf("%s: got error %v, want a FullError", what, err)
		}
		if got := <-f.events.Events; !strings.HasPrefix(got, "Warning NoVNID no VNID is free; 0 are in quarantine") {
			t.Errorf("%s: got Event %q, want NoVNID", what, got)
		}
	}
	if calls := append(f.network.Actions(), f.kube.Actions()...); len(calls) > 0 {
		t.Errorf("got API calls %v, want none", calls)
	}
	f.vnids.partitionSize = 2
	if err := f.create(t.Context(), blue); err != nil {
		t.Fatal(err)
	}
	if err := f.sync(t.Context(), "red"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"red", "blue"} {
		if vnid, _ := f.vnids.VNID(name); vnid < partitions {
			t.Errorf("got VNID %d of %s, want a new one", vnid, name)
		}
	}
}

// Only the version on which the decision was based may be deleted.
func TestRemove_hasPreconditions(t *testing.T) {
	o := netNamespace("red", 100, "")
	o.UID = "nn1"
	f := newFixture(t, o)
	o.Annotations[config.NamespaceUIDAnnotation] = "uid-previous"
	if err := f.sync(t.Context(), "red"); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	deletes := 0
	for _, a := range f.network.Actions() {
		if d, ok := a.(clienttesting.DeleteAction); ok {
			deletes++
			if p := d.GetDeleteOptions().Preconditions; p == nil || *p.UID != "nn1" || *p.ResourceVersion != "7" {
				t.Errorf("got preconditions %v, want uid nn1 and resourceVersion 7", p)
			}
		}
	}
	if deletes != 1 {
		t.Errorf("got %d deletes, want 1", deletes)
	}
}

// The version that this controller has written is used until the cache has it or a newer one.
func TestLatest(t *testing.T) {
	f := newFixture(t, netNamespace("red", 100, ""))
	written := netNamespace("red", 300, "")
	written.ResourceVersion = "10"
	f.updateState("red", func(s *state) { s.written = written })
	if nn, err := f.latest("red"); err != nil || nn.NetID != 300 {
		t.Errorf("outdated cache: got %v, %v, want netid 300", nn, err)
	}
	newer := netNamespace("red", 400, "")
	newer.ResourceVersion = "11"
	if err := f.netNamespaceStore.Update(newer); err != nil {
		t.Fatal(err)
	}
	if nn, err := f.latest("red"); err != nil || nn.NetID != 400 || len(f.states) != 0 {
		t.Errorf("newer cache: got %v, %v, states %v, want netid 400 and no state", nn, err, f.states)
	}
}

// An invalid annotation is reported on the Namespace, and does not affect its VNID.
func TestSync_invalidLogDenied(t *testing.T) {
	f := newFixture(t, netNamespace("red", 100, ""))
	for value, want := range map[string]int{"yes": 1, "true": 0, "false": 0} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: "red", UID: "uid-red", Annotations: map[string]string{config.LogDeniedAnnotation: value},
		}}
		if err := f.namespaceStore.Update(ns); err != nil {
			t.Fatal(err)
		}
		if err := f.sync(t.Context(), "red"); err != nil {
			t.Fatal(err)
		}
		if n := len(f.events.Events); n != want {
			t.Errorf("%q: got %d Events, want %d", value, n, want)
		}
		for range len(f.events.Events) {
			if got := <-f.events.Events; !strings.HasPrefix(got, "Warning InvalidLogDenied annotation ovsdn.io/log-denied: ") {
				t.Errorf("%q: got Event %q, want InvalidLogDenied", value, got)
			}
		}
	}
	before, now := &corev1.Namespace{}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{config.LogDeniedAnnotation: "yes"}}}
	if sameNamespace(before, now) {
		t.Error("got no sync for a change of the annotation")
	}
}
