package networkpolicy

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
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
)

// testTimeout is the time after which a test fails. Flushes may be delayed by twice maxRest.
const testTimeout = 90 * time.Second

// listOnly makes the reflector list objects, since the source does not support streaming lists.
type listOnly struct{ cache.ListerWatcher }

func (listOnly) IsWatchListSemanticsUnSupported() bool { return true }

// fixture is a node with a fake switch, in a cluster of fake informer sources.
type fixture struct {
	*Policies
	t      *testing.T
	bridge *ovs.Fake
	node   pipeline.Node

	pods, namespaces, nodes, netNamespaces, hostSubnets, networkPolicies, clusterPolicies *fcache.FakeControllerSource

	mu     sync.Mutex
	warned []string                     // Events on the Node
	unseen map[string]*corev1.Namespace // on the API server, and not in the cache
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

// newPrimed returns a fixture that has the objects of the start, and does not compile later changes.
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
	cluster := f.newCluster()
	st := flowstore.New(f.bridge)
	st.Source(inputs.KindVNID, flowstore.Source{Default: config.VNID(100)})
	var err error
	if f.Policies, err = New(f.node, cluster, st, f.bridge, f); err != nil {
		t.Fatal(err)
	}
	if before != nil {
		before(f)
	}
	var synced []cache.InformerSynced
	for i := range cluster.informers() {
		synced = append(synced, i.HasSynced)
		running.Go(func() { i.RunWithContext(ctx) })
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		t.Fatal("sync the caches: the context ended")
	}
	f.must(f.Prime(ctx))
	running.Go(func() {
		if err := st.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	return f
}

// newCluster returns a cluster with informers of fake sources.
func (f *fixture) newCluster() Cluster {
	f.t.Helper()
	informer := func(source **fcache.FakeControllerSource, of runtime.Object) cache.SharedIndexInformer {
		*source = fcache.NewFakeControllerSource()
		f.t.Cleanup((*source).Shutdown)
		i := cache.NewSharedIndexInformer(listOnly{*source}, of, 0, cache.Indexers{})
		f.must(i.SetTransform(Transform))
		return i
	}
	return Cluster{
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
}

// hostNetworkNamespaces returns Cluster.HostNetworkNamespaces of the fixture.
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

// tenant adds a Namespace and its NetNamespace.
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

// attachPod attaches the pod as the pod manager does, and returns when its flows and policies are installed.
func (f *fixture) attachPod(object *corev1.Pod, sandbox string, port int, addr string) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), testTimeout)
	defer cancel()
	if _, err := f.Fetch(ctx, object.Namespace); err != nil {
		f.t.Fatal(err)
	}
	owner := pipeline.Owner{Kind: pipeline.KindPod, Key: sandbox}
	key := policy.KeyOf(object)
	pod := pipeline.Pod{OFPort: port, Addrs: []netip.Addr{netip.MustParseAddr(addr)}}
	waitRules := f.Attach(ctx, owner, key, pod, object)
	vnid, policies := inputs.VNID(object.Namespace), inputs.PodPolicies(key)
	own := f.store.SetAll(flowstore.Change{Owner: owner, Reads: []flowstore.Input{vnid, policies}, Compile: func(v *flowstore.Values) pipeline.State {
		full := pod
		full.MAC, full.VNID, full.Policies = config.MAC(pod.Addrs[0]), flowstore.Read[config.VNID](v, vnid), flowstore.Read[pipeline.PodPolicies](v, policies)
		return f.node.Pod(full)
	}})[0]
	f.must(waitRules(ctx))
	f.must(own.Wait(ctx))
}

func (f *fixture) detachPod(sandbox string) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), testTimeout)
	defer cancel()
	owner := pipeline.Owner{Kind: pipeline.KindPod, Key: sandbox}
	deleted := f.store.Delete(owner)
	f.must(f.Detach(owner)(ctx))
	f.must(deleted.Wait(ctx))
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// podPolicies returns the published input of the pod's flows.
func (f *fixture) podPolicies(key policy.PodKey) pipeline.PodPolicies {
	value, _ := flowstore.Get[pipeline.PodPolicies](f.store, inputs.PodPolicies(key))
	return value
}

// policyFlows returns the flows of rules in tables 27 and 81, and the flows of pods that load policy bits or report denied packets, without cookies.
func (f *fixture) policyFlows() []string {
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

// count returns the number of flows that contain all parts.
func count(flows []string, parts ...string) int {
	n := 0
	for _, flow := range flows {
		if !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(flow, part) }) {
			n++
		}
	}
	return n
}

// eventually polls the switch until check succeeds on its policyFlows.
func (f *fixture) eventually(check func(flows []string) error) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), testTimeout)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		flows := f.policyFlows()
		err := check(flows)
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

// has returns a check of the number of flows that contain all parts.
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
