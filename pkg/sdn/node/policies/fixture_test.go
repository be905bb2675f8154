package policies

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	networklisters "github.com/openshift/client-go/network/listers/network/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apitypes "k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/policy"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/store"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/vnids"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// patience is longer than connections may wait to be cut, twice restLast, on a machine that is slow.
const patience = time.Minute

// listOnly tells the reflector that the source can't stream its lists.
type listOnly struct{ cache.ListerWatcher }

func (listOnly) IsWatchListSemanticsUnSupported() bool { return true }

// fixture is a node with a fake switch, in a cluster of which tests say what is heard.
type fixture struct {
	*Policies
	t      *testing.T
	vnids  *vnids.VNIDs
	bridge *ovs.Fake
	node   pipeline.Node

	pods, namespaces, nodes, netNamespaces, hostSubnets, networkPolicies, clusterPolicies *fcache.FakeControllerSource

	mu     sync.Mutex
	warned []string                     // Events on the Node
	unseen map[string]*corev1.Namespace // those that only the API server knows
}

func newFixture(t *testing.T, before func(*fixture)) *fixture {
	t.Helper()
	f := newPrimed(t, before)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	running.Go(func() { f.Run(ctx) })
	return f
}

// newPrimed is a fixture that knows the cluster as it was at the start, and hears of nothing later.
func newPrimed(t *testing.T, before func(*fixture)) *fixture {
	t.Helper()
	f := &fixture{
		t: t, bridge: ovs.NewFake("br0"), unseen: map[string]*corev1.Namespace{},
		node: pipeline.Node{
			Mode:            config.ModeNetworkPolicy,
			ClusterNetworks: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14")},
			ServiceNetwork:  netip.MustParsePrefix("172.30.0.0/16"),
			Subnets:         []netip.Prefix{netip.MustParsePrefix("10.128.0.0/23")},
			VXLANPort:       4789,
		},
	}
	if err := f.bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: "br0", DatapathType: "netdev"}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	var synced []cache.InformerSynced
	informer := func(source **fcache.FakeControllerSource, of runtime.Object) cache.SharedIndexInformer {
		*source = fcache.NewFakeControllerSource()
		t.Cleanup((*source).Shutdown)
		i := cache.NewSharedIndexInformer(listOnly{*source}, of, 0, cache.Indexers{})
		if err := i.SetTransform(Slim); err != nil {
			t.Fatal(err)
		}
		synced = append(synced, i.HasSynced)
		return i
	}
	cluster := Cluster{
		Pods:            informer(&f.pods, &corev1.Pod{}),
		Namespaces:      informer(&f.namespaces, &corev1.Namespace{}),
		Nodes:           informer(&f.nodes, &corev1.Node{}),
		NetNamespaces:   informer(&f.netNamespaces, &networkv1.NetNamespace{}),
		HostSubnets:     informer(&f.hostSubnets, &networkv1.HostSubnet{}),
		NetworkPolicies: informer(&f.networkPolicies, &networkingv1.NetworkPolicy{}),
		ClusterPolicies: informer(&f.clusterPolicies, &policyv1alpha2.ClusterNetworkPolicy{}),
		GetNamespace:    f.getNamespace,

		HostNetworkNamespaces: hostNetworkNamespaces(),
	}
	st := store.New(f.bridge)
	var err error
	f.vnids, err = vnids.New(vnids.Options{
		Node: f.node, Store: st, Informer: cluster.NetNamespaces,
		Lister: networklisters.NewNetNamespaceLister(cluster.NetNamespaces.GetIndexer()),
	})
	if err != nil {
		t.Fatal(err)
	}
	if f.Policies, err = New(f.node, cluster, f.vnids, f.bridge, f); err != nil {
		t.Fatal(err)
	}
	if before != nil {
		before(f)
	}
	for i := range cluster.informers() {
		running.Go(func() { i.RunWithContext(ctx) })
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		t.Fatal("the caches did not sync")
	}
	if err := f.vnids.Prime(ctx); err != nil {
		t.Fatal(err)
	}
	f.must(f.Prime(ctx))
	running.Go(func() { f.vnids.Run(ctx) })
	running.Go(func() {
		if err := st.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	return f
}

// hostNetworkNamespaces are those of the fixture's agent.
func hostNetworkNamespaces() []string { return []string{"openshift-host-network"} }

func (f *fixture) getNamespace(_ context.Context, name string) (*corev1.Namespace, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ns := f.unseen[name]; ns != nil {
		return ns, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, name)
}

// WarnNode implements Events.
func (f *fixture) WarnNode(reason, message string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.warned = append(f.warned, reason+": "+message)
}

// tenant makes a namespace with its NetNamespace known.
func (f *fixture) tenant(name string, vnid uint32, labels map[string]string) {
	f.namespaces.Add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
	f.netNamespaces.Add(&networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: name}, NetName: name, NetID: vnid})
}

func podObject(namespace, name, uid, ip string, labels map[string]string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: apitypes.UID(uid), Labels: labels}}
	if ip != "" {
		pod.Status.PodIPs = []corev1.PodIP{{IP: ip}}
	}
	return pod
}

// come attaches the pod to a port as the pod manager does, and returns when all is on the switch.
func (f *fixture) come(object *corev1.Pod, sandbox string, port int, addr string) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	if err := f.Fetch(ctx, object.Namespace); err != nil {
		f.t.Fatal(err)
	}
	owner := pipeline.Owner{Kind: pipeline.KindPod, Key: sandbox}
	key := policy.PodKey{Namespace: object.Namespace, Name: object.Name}
	pod := pipeline.Pod{OFPort: port, Addrs: []netip.Addr{netip.MustParseAddr(addr)}}
	ruled := f.Attach(ctx, owner, key, pod, object)
	own := f.vnids.Set(object.Namespace, owner, vnids.Dependent{OFPort: port, Compile: func(vnid config.VNID) pipeline.State {
		full := pod
		full.MAC, full.VNID, full.Policies = config.MAC(pod.Addrs[0]), vnid, f.Of(key)
		return f.node.Pod(full)
	}})
	f.must(ruled(ctx))
	f.must(own.Wait(ctx))
}

func (f *fixture) goes(sandbox string) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	owner := pipeline.Owner{Kind: pipeline.KindPod, Key: sandbox}
	gone := f.vnids.Delete(owner)
	f.must(f.Detach(owner)(ctx))
	f.must(gone.Wait(ctx))
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// judged returns the flows of tables 27 and 81 that policies made, and what pods' flows say of policies, without cookies.
func (f *fixture) judged() []string {
	var out []string
	for _, text := range f.bridge.Flows() {
		table, _, _ := strings.Cut(text, ",")
		rules := (table == "table=27" || table == "table=81") && (strings.Contains(text, "conjunction") || strings.Contains(text, "conj_id"))
		bits := (table == "table=20" || table == "table=70") && strings.Contains(text, "NXM_NX_REG4")
		reports := strings.Contains(text, "controller(")
		if rules || bits || reports {
			out = append(out, text)
		}
	}
	return out
}

// count says how many of the flows have all the parts.
func count(flows []string, parts ...string) int {
	n := 0
	for _, flow := range flows {
		if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(flow, part) }) {
			n++
		}
	}
	return n
}

// eventually looks until the switch has what is wanted.
func (f *fixture) eventually(what func(flows []string) error) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		flows := f.judged()
		err := what(flows)
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			f.t.Fatalf("%v; the switch has:\n%s", err, strings.Join(flows, "\n"))
		}
	}
}

// has is a demand of eventually: so many flows with all the parts.
func has(want int, parts ...string) func([]string) error {
	return func(flows []string) error {
		if n := count(flows, parts...); n != want {
			return fmt.Errorf("%d flows with %q, want %d", n, parts, want)
		}
		return nil
	}
}

func owner(sandbox string) pipeline.Owner {
	return pipeline.Owner{Kind: pipeline.KindPod, Key: sandbox}
}

func pod(port int, addr string) pipeline.Pod {
	return pipeline.Pod{OFPort: port, Addrs: []netip.Addr{netip.MustParseAddr(addr)}}
}
