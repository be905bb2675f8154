package pods

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apitypes "k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/test/await"
)

// publishNamespace publishes the UID of the Namespace that has the VNID.
func (a *agent) publishNamespace(uid apitypes.UID) {
	a.store.Update(flowstore.Update{Publish: []flowstore.Published{{Input: inputs.NamespaceUID("default"), Value: uid}}})
}

// ofports returns the ports of the Namespace's pods, as multicast uses them.
func (a *agent) ofports(uid apitypes.UID) []int {
	ports, _ := flowstore.Get[[]int](a.store, inputs.Ports("default", uid))
	return ports
}

// hasFlows reports whether the switch has flows of the pod.
func (n *node) hasFlows(p Pod) bool {
	return slices.ContainsFunc(n.flows(), func(flow string) bool { return strings.Contains(flow, fmt.Sprintf("in_port=%d,", p.OFPort)) })
}

func (n *node) awaitFlows(t *testing.T, a *agent, want map[string]bool) {
	t.Helper()
	await.OK(t, time.Minute, func(context.Context) error {
		got := map[string]bool{}
		for _, p := range a.Pods() {
			got[p.Name] = n.hasFlows(p)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("pods with flows (-want +got):\n%s", diff)
		}
		return nil
	})
}

// A sandbox of a deleted pod never gets the VNID of another Namespace of the same name, also after a restart of the agent. A pod that exists continues, also if
// the UID in the NetNamespace is wrong.
func TestNamespaceIsCreatedAgain(t *testing.T) {
	n := newNode(t)
	first, stop := n.start(t)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { first.Run(ctx) })
	first.publishNamespace("n1")
	for _, name := range []string{"deleted", "lives"} {
		add(t, first, n.addPod(name, newNetns(t)))
	}
	n.awaitFlows(t, first, map[string]bool{"deleted": true, "lives": true})

	delete(n.api, "default/deleted")
	first.publishNamespace("n2")
	n.awaitFlows(t, first, map[string]bool{"deleted": false, "lives": true})
	await.OK(t, time.Minute, func(context.Context) error {
		if old, current := len(first.ofports("n1")), len(first.ofports("n2")); old != 1 || current != 1 {
			return fmt.Errorf("ports in the previous and in the current Namespace: got %d and %d, want 1 and 1", old, current)
		}
		return nil
	})
	first.events.want(t, "node: "+eventreason.SandboxOfDeletedPod+": sandbox sandbox-of-deleted ")
	cancel()
	running.Wait()
	stop()

	second, _ := n.boot(t)
	second.publishNamespace("n2")
	if err := second.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.awaitFlows(t, second, map[string]bool{"deleted": false, "lives": true})
}

// While the API server does not answer, a recovered pod that the cache does not have gets no flows.
func TestNamespaceIsCreatedAgain_noAPIServer(t *testing.T) {
	n := newNode(t)
	first, stop := n.start(t)
	add(t, first, n.addPod("web", newNetns(t)))
	stop()
	second, _ := n.boot(t)
	second.publishNamespace("n1")
	second.pods = unreachable{n.api}
	if err := second.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.awaitFlows(t, second, map[string]bool{"web": false})
	second.pods = n.api
	if !second.verifyNamespaces(t.Context()) {
		t.Error("got failed lookups, want none")
	}
	n.awaitFlows(t, second, map[string]bool{"web": true})
}

// ADD waits until the NetNamespace is that of the pod's Namespace.
func TestAdd_previousNetNamespace(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	a.flows.(faultyFlows).podFlows.(*compiledFlows).policies = namespaceOf{uid: "n2"}
	a.publishNamespace("n1")
	req := n.addPod("web", newNetns(t))
	if _, err := a.Add(t.Context(), req); code(err) != types.ErrTryAgainLater {
		t.Errorf("got %v, want ErrTryAgainLater", err)
	}
	a.publishNamespace("n2")
	add(t, a, req)
}

// unreachable is an API server that does not answer.
type unreachable struct{ api }

func (unreachable) Get(context.Context, string, string) (*corev1.Pod, error) {
	return nil, apierrors.NewServerTimeout(schema.GroupResource{Resource: "pods"}, "get", 1)
}

// namespaceOf is NoPolicies in a Namespace with the UID.
type namespaceOf struct {
	NoPolicies
	uid apitypes.UID
}

func (n namespaceOf) Fetch(context.Context, string) (apitypes.UID, error) { return n.uid, nil }
