package pods

import (
	"context"
	"fmt"
	"regexp"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apitypes "k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
)

// publishNamespace publishes the VNID of the Namespace with the UID, which replaces one of the same name.
func (a *agent) publishNamespace(uid apitypes.UID, vnid config.VNID) {
	value, _ := a.store.Value(inputs.NamespaceUID("default"))
	u := flowstore.Update{Publish: []flowstore.Published{
		{Input: inputs.VNID("default"), Value: vnid}, {Input: inputs.NamespaceUID("default"), Value: uid}, {Input: inputs.NamespaceVNID("default", uid), Value: vnid},
	}}
	if previous, _ := value.(apitypes.UID); previous != uid {
		u.Retire = []flowstore.Input{inputs.NamespaceVNID("default", previous)}
	}
	a.store.Update(u)
}

// ofports returns the ports of the Namespace's pods, as multicast uses them.
func (a *agent) ofports(uid apitypes.UID) []int {
	ports, _ := flowstore.Get[[]int](a.store, inputs.Ports("default", uid))
	return ports
}

// end stops the agent. The next one finds the VNIDs of its flows, which the next one's store replaces before Recover, unlike that of the product.
func (n *node) end(t *testing.T, stop func()) {
	t.Helper()
	vnids, err := n.vnids()
	if err != nil {
		t.Fatal(err)
	}
	n.previous = vnids
	stop()
}

// vnids reads the VNIDs of the pods' flows on the switch.
func (n *node) vnids() (map[uint64]config.VNID, error) {
	all := []ovs.DumpedFlow{{Key: ovs.Key{Table: 253}, Text: "table=253,actions=note:02.00.00.00.00.00"}} // of mode multitenant
	for _, text := range n.flows() {
		table, cookie := podFlow.FindStringSubmatch(text), uint64(0)
		if table == nil {
			continue
		}
		if _, err := fmt.Sscanf(table[1], "%v", &cookie); err != nil {
			return nil, err
		}
		all = append(all, ovs.DumpedFlow{Key: ovs.Key{Table: 20}, Cookie: cookie, Text: text})
	}
	return pipeline.VNIDsOf(all), nil
}

var podFlow = regexp.MustCompile(`^table=20,.*cookie=(0x[0-9a-f]+)`)

// awaitVNIDs waits until the pods' flows on the switch have these VNIDs, by the name of the pod; 0: no flows.
func (n *node) awaitVNIDs(t *testing.T, a *agent, want map[string]config.VNID) {
	t.Helper()
	await.OK(t, await.SyncTime, func(context.Context) error {
		vnids, err := n.vnids()
		if err != nil {
			return err
		}
		got := map[string]config.VNID{}
		for _, p := range a.Pods() {
			got[p.Name] = vnids[p.Owner().Cookie()]
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("VNIDs by pod (-want +got):\n%s", diff)
		}
		return nil
	})
}

// cachedAPI is an API server whose pods are in the cache, except for those that the test has withheld.
type cachedAPI struct {
	api
	withheld map[string]bool
}

func (a cachedAPI) Cached(namespace, name string) *corev1.Pod {
	if a.withheld[name] {
		return nil
	}
	return a.api[namespace+"/"+name]
}

// tenants makes a node in mode multitenant.
func tenants(t *testing.T) (*node, cachedAPI) {
	n := newNode(t)
	n.mode = config.ModeMultitenant
	cached := cachedAPI{n.api, map[string]bool{}}
	n.pods = cached
	return n, cached
}

// A sandbox of a deleted pod retains its VNID when there is another Namespace of the same name, also after a restart of the agent. Pods that exist follow
// their Namespace.
func TestNamespaceIsCreatedAgain(t *testing.T) {
	n, cached := tenants(t)
	first, stop := n.start(t)
	first.publishNamespace("n1", 0x20)
	for _, name := range []string{"deleted", "lives"} {
		add(t, first, n.addPod(name, newNetns(t)))
	}
	first.publishNamespace("n1", 0x30)
	n.awaitVNIDs(t, first, map[string]config.VNID{"deleted": 0x30, "lives": 0x30})

	delete(n.api, "default/deleted")
	first.publishNamespace("n2", 0x40) // without pods that outlive it, it would be another Namespace for all
	n.awaitVNIDs(t, first, map[string]config.VNID{"deleted": 0x30, "lives": 0x30})
	seen := first.followNamespacesOnce(t.Context(), nil)
	n.awaitVNIDs(t, first, map[string]config.VNID{"deleted": 0x30, "lives": 0x30})
	first.followNamespacesOnce(t.Context(), seen)
	n.awaitVNIDs(t, first, map[string]config.VNID{"deleted": 0x30, "lives": 0x40})
	if old, current := len(first.ofports("n1")), len(first.ofports("n2")); old != 1 || current != 1 {
		t.Errorf("ports in the previous and in the current Namespace: got %d and %d, want 1 and 1", old, current)
	}
	first.publishNamespace("n2", 0x50)
	n.awaitVNIDs(t, first, map[string]config.VNID{"deleted": 0x30, "lives": 0x50})
	n.end(t, stop)

	second, stop := n.boot(t)
	second.publishNamespace("n2", 0x60)
	cached.withheld["lives"] = true // an outdated cache
	if err := second.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.awaitVNIDs(t, second, map[string]config.VNID{"deleted": 0x30, "lives": 0x50})
	cached.withheld["lives"] = false
	second.followNamespacesOnce(t.Context(), second.followNamespacesOnce(t.Context(), nil))
	n.awaitVNIDs(t, second, map[string]config.VNID{"deleted": 0x30, "lives": 0x60})
	stop()
}

// A sandbox of a deleted pod retains its VNID however often its namespace is created again, and no input of a previous Namespace remains after it.
func TestNamespaceIsCreatedAgain_manyTimes(t *testing.T) {
	n, _ := tenants(t)
	a, _ := n.start(t)
	a.publishNamespace("n0", 0x20)
	req := n.addPod("deleted", newNetns(t))
	add(t, a, req)
	delete(n.api, "default/deleted")
	for i := range config.VNID(100) {
		a.publishNamespace(apitypes.UID(fmt.Sprint("n", i+1)), 0x100+i)
	}
	n.awaitVNIDs(t, a, map[string]config.VNID{"deleted": 0x20})
	del(t, a, req)
	for _, input := range []flowstore.Input{inputs.NamespaceVNID("default", "n0"), inputs.NamespaceVNID("default", "n50"), inputs.Ports("default", "n0")} {
		if value, ok := a.store.Value(input); ok {
			t.Errorf("after DEL: got %s %v, want none", input, value)
		}
	}
}

// A UID that is wrong for a moment has no effect, and lookups that fail or find no pod change nothing.
func TestFollowNamespaces(t *testing.T) {
	n, _ := tenants(t)
	a, _ := n.start(t)
	a.publishNamespace("n1", 0x20)
	add(t, a, n.addPod("web", newNetns(t)))
	a.publishNamespace("wrong", 0x20)
	seen := a.followNamespacesOnce(t.Context(), nil)
	a.publishNamespace("n1", 0x20)
	if a.followNamespacesOnce(t.Context(), seen); a.Pods()[0].NamespaceUID != "n1" {
		t.Errorf("got Namespace %q, want n1", a.Pods()[0].NamespaceUID)
	}
	a.publishNamespace("n2", 0x30)
	for _, pods := range []Pods{unreachable{n.pods}, missing{n.pods}} {
		a.pods = pods
		a.followNamespacesOnce(t.Context(), a.followNamespacesOnce(t.Context(), nil))
		n.awaitVNIDs(t, a, map[string]config.VNID{"web": 0x20})
	}
	a.pods = n.pods
	a.followNamespacesOnce(t.Context(), a.followNamespacesOnce(t.Context(), nil))
	n.awaitVNIDs(t, a, map[string]config.VNID{"web": 0x30})
}

// A static pod whose mirror does not exist retains its VNID when the agent restarts, also one whose port has the UID of an earlier mirror.
func TestRecover_staticPodWithoutMirror(t *testing.T) {
	n, cached := tenants(t)
	first, stop := n.start(t)
	first.publishNamespace("n1", 0x20)
	n.addPod("web", newNetns(t))
	req := n.addPod("static-node1", newNetns(t))
	n.api["default/static-node1"] = staticPod()
	req.Args = argsOf("static-node1", "static")
	add(t, first, req)
	n.end(t, stop)
	cached.withheld["static-node1"] = true
	second, _ := n.boot(t)
	second.publishNamespace("n1", 0x20)
	if err := second.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.awaitVNIDs(t, second, map[string]config.VNID{"static-node1": 0x20})
	del(t, second, req)
	n.wantClean(t)
}

// ADD waits until the NetNamespace is that of the pod's Namespace.
func TestAdd_previousNetNamespace(t *testing.T) {
	n, _ := tenants(t)
	n.fetchNamespace = func(context.Context, string) (apitypes.UID, error) { return "n2", nil }
	a, _ := n.start(t)
	a.publishNamespace("n1", 0x20)
	req := n.addPod("web", newNetns(t))
	if _, err := a.Add(t.Context(), req); code(err) != types.ErrTryAgainLater {
		t.Errorf("got %v, want ErrTryAgainLater", err)
	}
	a.publishNamespace("n2", 0x30)
	add(t, a, req)
}

// unreachable is an API server that does not answer.
type unreachable struct{ Pods }

func (unreachable) Get(context.Context, string, string) (*corev1.Pod, error) {
	return nil, apierrors.NewServerTimeout(schema.GroupResource{Resource: "pods"}, "get", 1)
}

// missing is an API server that has no pods.
type missing struct{ Pods }

func (missing) Get(_ context.Context, _, name string) (*corev1.Pod, error) {
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
}
