package vnids

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	goovs "github.com/digitalocean/go-openvswitch/ovs"
	networkv1 "github.com/openshift/api/network/v1"
	"github.com/openshift/client-go/network/clientset/versioned/fake"
	networklisters "github.com/openshift/client-go/network/listers/network/v1"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/store"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// listOnly tells the reflector that the fake client can't stream its lists.
type listOnly struct{ cache.ListerWatcher }

func (listOnly) IsWatchListSemanticsUnSupported() bool { return true }

// fixture is a node of mode multitenant with a fake switch and API.
type fixture struct {
	*VNIDs
	t      *testing.T
	bridge *ovs.Fake
	client *fake.Clientset
	gets   chan string // names that were asked for
}

func start(t *testing.T, mode config.Mode, objects ...*networkv1.NetNamespace) *fixture {
	t.Helper()
	f := &fixture{t: t, bridge: ovs.NewFake("br0"), client: fake.NewSimpleClientset(), gets: make(chan string, 100)}
	if err := f.bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: "br0", DatapathType: "netdev"}); err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		f.create(o)
	}
	ctx, cancel := context.WithCancel(t.Context())
	informer := cache.NewSharedIndexInformer(listOnly{&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return f.client.NetworkV1().NetNamespaces().List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return f.client.NetworkV1().NetNamespaces().Watch(ctx, o)
		},
	}}, &networkv1.NetNamespace{}, 0, cache.Indexers{})
	st := store.New(f.bridge)
	var err error
	f.VNIDs, err = New(Options{
		Node:     pipeline.Node{Mode: mode},
		Lister:   networklisters.NewNetNamespaceLister(informer.GetIndexer()),
		Informer: informer,
		Store:    st,
		Get: func(ctx context.Context, name string) (*networkv1.NetNamespace, error) {
			f.gets <- name
			return f.client.NetworkV1().NetNamespaces().Get(ctx, name, metav1.GetOptions{})
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	running.Go(func() { informer.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("the cache did not sync")
	}
	if err := f.Prime(ctx); err != nil {
		t.Fatal(err)
	}
	running.Go(func() { f.Run(ctx) })
	running.Go(func() {
		if err := st.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	return f
}

func netNamespace(name string, vnid uint32) *networkv1.NetNamespace {
	return &networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: name}, NetName: name, NetID: vnid}
}

func withMulticast(o *networkv1.NetNamespace) *networkv1.NetNamespace {
	o.Annotations = map[string]string{networkv1.MulticastEnabledAnnotation: "true"}
	return o
}

func (f *fixture) create(o *networkv1.NetNamespace) {
	f.t.Helper()
	if _, err := f.client.NetworkV1().NetNamespaces().Create(f.t.Context(), o, metav1.CreateOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) update(o *networkv1.NetNamespace) {
	f.t.Helper()
	if _, err := f.client.NetworkV1().NetNamespaces().Update(f.t.Context(), o, metav1.UpdateOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

func owner(n int) pipeline.Owner {
	return pipeline.Owner{Kind: pipeline.KindPod, Key: fmt.Sprint(n)}
}

// pod has one flow, in whose actions the VNID can be seen.
func pod(n int) Dependent {
	return Dependent{OFPort: n, Compile: func(vnid config.VNID) pipeline.State {
		return pipeline.State{Flows: []*ovs.Flow{{
			Table: 20, Priority: 100, Protocol: goovs.ProtocolIPv4, InPort: n,
			Actions: []ovs.Action{goovs.Load(fmt.Sprintf("%#x", uint32(vnid)), "NXM_NX_REG0[]"), ovs.GotoTable(27)},
		}}}
	}}
}

func (f *fixture) set(namespace string, n int) {
	f.t.Helper()
	f.must(f.Set(namespace, owner(n), pod(n)))
}

func (f *fixture) must(c *store.Commit) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	if err := c.Wait(ctx); err != nil {
		f.t.Fatal(err)
	}
}

// loads returns the VNIDs of ports, "1:0x20 2:0x20", as the switch has them.
func loads(flows []string) string {
	var out []string
	for _, text := range flows {
		var port int
		var vnid uint32
		_, in, ok := strings.Cut(text, "in_port=")
		if !ok {
			continue
		}
		_, load, _ := strings.Cut(text, "load:")
		if _, err := fmt.Sscanf(in, "%d", &port); err != nil {
			continue
		}
		if _, err := fmt.Sscanf(load, "0x%x", &vnid); err != nil {
			vnid = 0
		}
		out = append(out, fmt.Sprintf("%d:%#x", port, vnid))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// eventually looks until the switch has what is wanted.
func (f *fixture) eventually(what func() error) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		err := what()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			f.t.Fatal(err)
		}
	}
}

func (f *fixture) wantLoads(want string) {
	f.t.Helper()
	f.eventually(func() error {
		if got := loads(f.bridge.Flows()); got != want {
			return fmt.Errorf("VNIDs by port are %q, want %q", got, want)
		}
		return nil
	})
}

func TestDependentsFollowTheirNamespace(t *testing.T) {
	f := start(t, config.ModeMultitenant, netNamespace("a", 0x20), netNamespace("b", 0x30))
	f.set("a", 1)
	f.set("a", 2)
	f.set("b", 3)
	f.wantLoads("1:0x20 2:0x20 3:0x30")
	f.update(netNamespace("a", 0x30))
	f.wantLoads("1:0x30 2:0x30 3:0x30")
	f.must(f.Delete(owner(1)))
	f.update(netNamespace("a", 0))
	f.wantLoads("2:0x0 3:0x30")
	// A new one of the namespace has what the others have.
	f.set("a", 4)
	f.wantLoads("2:0x0 3:0x30 4:0x0")
}

// No packet meets a namespace of which some pods have the new VNID and some the old one.
func TestNamespaceChangesInOneBundle(t *testing.T) {
	const pods = 100
	f := start(t, config.ModeMultitenant, netNamespace("a", 0x20))
	for n := range pods {
		f.set("a", n+1)
	}
	before := f.bridge.Bundles()
	f.update(netNamespace("a", 0x30))
	f.eventually(func() error {
		flows := f.bridge.Flows()
		old, now := 0, 0
		for _, text := range flows {
			if strings.Contains(text, "load:0x20") {
				old++
			}
			if strings.Contains(text, "load:0x30") {
				now++
			}
		}
		if old > 0 && now > 0 {
			t.Fatalf("%d pods have the old VNID and %d the new one", old, now)
		}
		if now != pods {
			return fmt.Errorf("%d pods have the new VNID", now)
		}
		return nil
	})
	if n := f.bridge.Bundles() - before; n != 1 {
		t.Errorf("%d bundles", n)
	}
}

// A pod that comes while its namespace changes has the VNID of the others when all is quiet.
func TestComingWhileTheNamespaceChanges(t *testing.T) {
	f := start(t, config.ModeMultitenant, netNamespace("a", 0x20))
	var adding sync.WaitGroup
	for n := range 50 {
		adding.Go(func() { f.set("a", n+1) })
		f.update(netNamespace("a", 0x100+uint32(n)))
	}
	adding.Wait()
	f.eventually(func() error {
		flows := f.bridge.Flows()
		if n := strings.Count(strings.Join(flows, "\n"), fmt.Sprintf("load:%#x->", 0x100+49)); n != 50 {
			return fmt.Errorf("%d of 50 pods have the last VNID", n)
		}
		return nil
	})
}

func TestUnknownNamespaceHasNoFlows(t *testing.T) {
	f := start(t, config.ModeMultitenant)
	f.set("a", 1) // a recovered pod, say
	if _, known := f.Of("a"); known {
		t.Error("the VNID is known of a namespace without NetNamespace")
	}
	f.wantLoads("")
	f.create(netNamespace("a", 0x20))
	f.wantLoads("1:0x20")
}

// What nobody can have is not taken over, and who has a VNID keeps it.
func TestUnusableNetNamespace(t *testing.T) {
	f := start(t, config.ModeMultitenant, netNamespace("a", 0x20), netNamespace("bad", 5))
	f.set("a", 1)
	f.set("bad", 2)
	f.update(netNamespace("a", 1<<24))
	f.update(netNamespace("a", 9))
	wrong := netNamespace("a", 0x30)
	wrong.NetName = "b"
	f.update(wrong)
	f.create(netNamespace("c", 0x40))
	f.set("c", 3)
	f.wantLoads("1:0x20 3:0x40")
	if err := f.Fetch(t.Context(), "bad"); tryAgainCode(err) != types.ErrTryAgainLater {
		t.Errorf("a pod of a NetNamespace with VNID 5: %v", err)
	}
}

// The pods that are left in a namespace whose NetNamespace is gone keep their VNID; it is forgotten with the last of them.
func TestNetNamespaceGone(t *testing.T) {
	f := start(t, config.ModeMultitenant, netNamespace("a", 0x20))
	f.set("a", 1)
	if err := f.client.NetworkV1().NetNamespaces().Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.create(netNamespace("z", 0x50)) // seen behind the deletion, mostly
	f.eventually(func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.namespaces["a"].exists {
			return errors.New("it is not noticed")
		}
		return nil
	})
	f.wantLoads("1:0x20")
	f.must(f.Delete(owner(1)))
	if _, known := f.Of("a"); known {
		t.Error("the VNID is still known")
	}
	// The same name again is another namespace.
	f.create(netNamespace("a", 0x60))
	f.eventually(func() error { return f.Fetch(t.Context(), "a") })
	f.set("a", 2)
	f.wantLoads("2:0x60")
}

func tryAgainCode(err error) uint {
	var e *types.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

// A pod may come before the watch tells of its namespace: the API server is asked, once.
func TestFetch(t *testing.T) {
	f := start(t, config.ModeMultitenant)
	for range 2 {
		if err := f.Fetch(t.Context(), "late"); tryAgainCode(err) != types.ErrTryAgainLater || !strings.Contains(err.Error(), "namespace late has no NetNamespace yet") {
			t.Errorf("without a NetNamespace: %v", err)
		}
		if got := <-f.gets; got != "late" {
			t.Errorf("asked for %s", got)
		}
	}
	f.create(netNamespace("late", 0x70))
	if err := f.Fetch(t.Context(), "late"); err != nil {
		t.Fatal(err)
	}
	f.set("late", 1)
	f.wantLoads("1:0x70")
}

// An API server that does not answer holds up nobody else, and those who ask for one namespace share the question.
func TestFetchThatHangs(t *testing.T) {
	f := start(t, config.ModeMultitenant, netNamespace("a", 0x20))
	asked, answer := make(chan string, 100), make(chan struct{})
	f.get = func(ctx context.Context, name string) (*networkv1.NetNamespace, error) {
		asked <- name
		select {
		case <-answer:
			return nil, errors.New("no answer")
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	results := make(chan error, 20)
	for range cap(results) {
		go func() { results <- f.Fetch(t.Context(), "slow") }()
	}
	<-asked
	f.set("a", 1)
	if err := f.Fetch(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Fetch(gone, "slow"); !errors.Is(err, context.Canceled) {
		t.Errorf("a pod whose runtime gave up: %v", err)
	}
	close(answer)
	for range cap(results) {
		if err := <-results; tryAgainCode(err) != types.ErrTryAgainLater {
			t.Errorf("got %v", err)
		}
	}
}

func TestModeSubnetAsksNobody(t *testing.T) {
	f := start(t, config.ModeSubnet)
	if err := f.Fetch(t.Context(), "any"); err != nil {
		t.Error(err)
	}
	f.set("any", 1)
	f.wantLoads("1:0x0")
	f.must(f.Delete(owner(1)))
	f.wantLoads("")
	if len(f.gets) > 0 {
		t.Error("the API server was asked")
	}
	if len(f.networks) > 0 && f.networks[0].replicated {
		t.Error("there is multicast")
	}
}

// multicast returns what the switch has in table 120, by VNID.
func (f *fixture) wantMulticast(want ...string) {
	f.t.Helper()
	f.eventually(func() error {
		var got []string
		for _, text := range f.bridge.Flows() {
			if strings.Contains(text, "table=120,") {
				_, reg, _ := strings.Cut(text, "reg0=")
				vnid, _, _ := strings.Cut(reg, ",")
				_, actions, _ := strings.Cut(text, "actions=")
				got = append(got, vnid+" "+actions)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("multicast is %q, want %q", got, want)
		}
		return nil
	})
}

func TestMulticastIsForWhoAsksForIt(t *testing.T) {
	f := start(t, config.ModeMultitenant, withMulticast(netNamespace("a", 0x20)), netNamespace("b", 0x30), netNamespace("c", 0x20))
	f.set("a", 1)
	f.set("b", 2)
	f.wantMulticast() // c has a's VNID and did not ask
	f.update(withMulticast(netNamespace("c", 0x20)))
	f.wantMulticast("0x20 output:1")
	f.set("c", 3)
	f.set("a", 4)
	f.wantMulticast("0x20 output:1,output:3,output:4")
	f.update(withMulticast(netNamespace("c", 0x30))) // joins b, which did not ask
	f.wantMulticast("0x20 output:1,output:4")
	f.update(withMulticast(netNamespace("b", 0x30)))
	f.wantMulticast("0x20 output:1,output:4", "0x30 output:2,output:3")
	f.update(netNamespace("a", 0x20))
	f.wantMulticast("0x30 output:2,output:3")
	f.must(f.Delete(owner(2)))
	f.must(f.Delete(owner(3)))
	f.wantMulticast()
	if err := f.client.NetworkV1().NetNamespaces().Delete(t.Context(), "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.eventually(func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.networks) != 2 {
			return fmt.Errorf("%d networks are known, of 2 VNIDs", len(f.networks))
		}
		return nil
	})
}

// elsewhere is what a test says of other nodes.
type elsewhere struct {
	mu       sync.Mutex
	followed map[config.VNID][]string
	nodes    map[config.VNID][]netip.Addr
}

func (e *elsewhere) Follow(vnid config.VNID, namespaces []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.followed[vnid] = namespaces
}

func (e *elsewhere) Nodes(vnid config.VNID) ([]netip.Addr, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	nodes, known := e.nodes[vnid]
	return nodes, known
}

func TestMulticastGoesToNodesThatHaveThePods(t *testing.T) {
	f := start(t, config.ModeMultitenant, withMulticast(netNamespace("a", 0x20)), withMulticast(netNamespace("b", 0x20)))
	e := &elsewhere{followed: map[config.VNID][]string{}, nodes: map[config.VNID][]netip.Addr{}}
	f.elsewhere = e
	f.set("a", 1)
	if got := e.followed[0x20]; !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("followed are %q", got)
	}
	replicas := func() int {
		n := 0
		for _, text := range f.bridge.Flows() {
			if strings.Contains(text, "table=111,") {
				n += strings.Count(text, "tun_dst")
			}
		}
		return n
	}
	e.nodes[0x20] = []netip.Addr{netip.MustParseAddr("172.31.0.12"), netip.MustParseAddr("172.31.0.13")}
	for _, c := range f.Refresh(0x20) {
		f.must(c)
	}
	if n := replicas(); n != 2 {
		t.Errorf("it goes to %d nodes, want 2", n)
	}
	f.must(f.Delete(owner(1)))
	if got := e.followed[0x20]; len(got) > 0 {
		t.Errorf("without pods here, followed are %q", got)
	}
	if n := replicas(); n != 0 {
		t.Errorf("without pods here, it goes to %d nodes", n)
	}
	if len(f.Refresh(0x20)) > 0 {
		t.Error("without pods here, news of others change the switch")
	}
}
