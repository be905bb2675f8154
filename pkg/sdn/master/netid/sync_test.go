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

// fixture is a controller whose caches hold what the test puts there.
type fixture struct {
	*Controller
	kube    *kubefake.Clientset
	network *networkfake.Clientset
	cached  cache.Store // of NetNamespaces
	known   cache.Store // of Namespaces
	events  *record.FakeRecorder
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
	f.Follow(t.Context(), config.ModeMultitenant)
	f.cached, f.known = netNamespaces.Informer().GetStore(), namespaces.Informer().GetStore()
	for _, o := range objects {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: o.Name, UID: types.UID("uid-" + o.Name)}}
		for _, err := range []error{f.known.Add(ns), f.cached.Add(o), f.network.Tracker().Add(o)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		f.vnids.Set(o.Name, config.VNID(o.NetID)) // as Load does
	}
	return f
}

// netNamespace is one as the controller writes it.
func netNamespace(name string, vnid uint32, asks string) *networkv1.NetNamespace {
	o := &networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "7", Annotations: map[string]string{
		config.NamespaceUIDAnnotation: "uid-" + name, config.AssignedVNIDAnnotation: fmt.Sprint(vnid),
	}}, NetName: name, NetID: vnid}
	if asks != "" {
		o.Annotations[networkv1.ChangePodNetworkAnnotation] = asks
	}
	return o
}

// A controller that starts in a large cluster writes nothing and asks nothing.
func TestRestartWith10000RenumbersNone(t *testing.T) {
	const n = 10_000
	var all []*networkv1.NetNamespace
	for i := range n {
		all = append(all, netNamespace(fmt.Sprint("ns", i), uint32(10+i-i%3), "")) // by threes
	}
	f := newFixture(t, all...)
	for _, o := range all {
		if err := f.sync(t.Context(), o.Name); err != nil {
			t.Fatal(err)
		}
	}
	if calls := append(f.network.Actions(), f.kube.Actions()...); len(calls) > 0 {
		t.Errorf("%d calls, the first is %v", len(calls), calls[0])
	}
}

// A change whose write fails leaves the object and the memory as they were.
func TestFailedChangeChangesNothing(t *testing.T) {
	for _, asks := range []string{"isolate", "global", "join:blue", "nonsense"} {
		t.Run(asks, func(t *testing.T) {
			f := newFixture(t, netNamespace("red", 100, asks), netNamespace("green", 100, ""), netNamespace("blue", 200, ""))
			lost := errors.New("connection lost")
			f.network.PrependReactor("update", "netnamespaces", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, lost
			})
			if err := f.sync(t.Context(), "red"); !errors.Is(err, lost) {
				t.Fatalf("got %v", err)
			}
			if vnid, _ := f.vnids.HeldBy("red"); vnid != 100 {
				t.Errorf("red has %d", vnid)
			}
			for vnid, want := range map[config.VNID]int{100: 2, 200: 1} {
				if got := f.vnids.holders[vnid].count(); got != want {
					t.Errorf("%d have %d, want %d", got, vnid, want)
				}
			}
			stored, err := f.network.NetworkV1().NetNamespaces().Get(t.Context(), "red", metav1.GetOptions{})
			if err != nil || stored.NetID != 100 || stored.Annotations[networkv1.ChangePodNetworkAnnotation] != asks {
				t.Errorf("stored is %+v, %v", stored, err)
			}
		})
	}
}

// A create that fails may have arrived: its VNID is given to nobody else for as long as a freed one.
func TestFailedCreateDoesNotFreeItsVNIDAtOnce(t *testing.T) {
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
		if _, held := f.vnids.HeldBy(name); held {
			t.Errorf("%s has a VNID", name)
		}
	}
	if len(tried) != 2 || tried[0] == tried[1] {
		t.Errorf("tried %v", tried)
	}
}

// Where no VNID is free people are told so, on what is there; it is given as soon as one is.
func TestNoVNIDIsSaidWherePeopleLook(t *testing.T) {
	f := newFixture(t, netNamespace("red", 100, "isolate"), netNamespace("green", 100, ""))
	f.vnids.size, f.vnids.class = 1, 0
	for vnid := config.MinVNID; vnid < classes; vnid++ {
		f.vnids.Reserve(vnid)
	}
	blue := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "blue", UID: "u"}}
	for what, attempt := range map[string]func() error{
		"create":  func() error { return f.create(t.Context(), blue) },
		"isolate": func() error { return f.sync(t.Context(), "red") },
	} {
		err := attempt()
		if _, told := errors.AsType[reconcile.Complaint](err); !told {
			t.Errorf("%s: got %v", what, err)
		}
		if _, full := errors.AsType[*FullError](err); !full {
			t.Errorf("%s: got %v", what, err)
		}
		if said := <-f.events.Events; !strings.HasPrefix(said, "Warning NoVNID no VNID is free; 0 are in quarantine") {
			t.Errorf("%s: said %q", what, said)
		}
	}
	if calls := append(f.network.Actions(), f.kube.Actions()...); len(calls) > 0 {
		t.Errorf("wrote all the same: %v", calls)
	}
	f.vnids.size = 2
	if err := f.create(t.Context(), blue); err != nil {
		t.Fatal(err)
	}
	if err := f.sync(t.Context(), "red"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"red", "blue"} {
		if vnid, _ := f.vnids.HeldBy(name); vnid < classes {
			t.Errorf("%s has %d", name, vnid)
		}
	}
}

// What is deleted is the very object that was judged.
func TestRemoveHasPreconditions(t *testing.T) {
	o := netNamespace("red", 100, "")
	o.UID = "nn1"
	f := newFixture(t, o)
	o.Annotations[config.NamespaceUIDAnnotation] = "uid-of-before"
	if err := f.sync(t.Context(), "red"); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	deletes := 0
	for _, a := range f.network.Actions() {
		if d, ok := a.(clienttesting.DeleteAction); ok {
			deletes++
			if p := d.GetDeleteOptions().Preconditions; p == nil || *p.UID != "nn1" || *p.ResourceVersion != "7" {
				t.Errorf("preconditions %v", p)
			}
		}
	}
	if deletes != 1 {
		t.Errorf("%d deletes", deletes)
	}
}

// What this controller has written counts before the cache knows of it, and no longer than that.
func TestOwnWritesCountBeforeTheCacheHasThem(t *testing.T) {
	f := newFixture(t, netNamespace("red", 100, ""))
	own := netNamespace("red", 300, "")
	own.ResourceVersion = "10"
	f.written["red"] = own
	if nn, err := f.latest("red"); err != nil || nn.NetID != 300 {
		t.Errorf("the cache is behind: %v, %v", nn, err)
	}
	newer := netNamespace("red", 400, "")
	newer.ResourceVersion = "11"
	if err := f.cached.Update(newer); err != nil {
		t.Fatal(err)
	}
	if nn, err := f.latest("red"); err != nil || nn.NetID != 400 || len(f.written) != 0 {
		t.Errorf("the cache is ahead: %v, %v; kept are %d", nn, err, len(f.written))
	}
}

// An annotation that nodes make nothing of is said on the Namespace, which has its VNID all the same.
func TestWrongAnnotationIsSaidOnTheNamespace(t *testing.T) {
	f := newFixture(t, netNamespace("red", 100, ""))
	for value, want := range map[string]int{"yes": 1, "true": 0, "false": 0} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: "red", UID: "uid-red", Annotations: map[string]string{config.LogDeniedAnnotation: value},
		}}
		if err := f.known.Update(ns); err != nil {
			t.Fatal(err)
		}
		if err := f.sync(t.Context(), "red"); err != nil {
			t.Fatal(err)
		}
		if n := len(f.events.Events); n != want {
			t.Errorf("%q: %d events, want %d", value, n, want)
		}
		for range len(f.events.Events) {
			if said := <-f.events.Events; !strings.HasPrefix(said, "Warning InvalidLogDenied annotation ovsdn.io/log-denied: ") {
				t.Errorf("%q: said %q", value, said)
			}
		}
	}
	before, now := &corev1.Namespace{}, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{config.LogDeniedAnnotation: "yes"}}}
	if sameNamespace(before, now) {
		t.Error("a change of the annotation is not heard")
	}
}
