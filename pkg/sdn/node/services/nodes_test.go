package services

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/test/await"
)

func nodeObject(addrs ...string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	for _, a := range addrs {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: a})
	}
	return node
}

// TestNodeAddresses checks that each IPv4 address of a Node outside of the pod network has a flow.
func TestNodeAddresses(t *testing.T) {
	bridge := ovs.NewFake("br0")
	if err := bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: "br0", DatapathType: "netdev"}); err != nil {
		t.Fatal(err)
	}
	source := fcache.NewFakeControllerSource()
	t.Cleanup(source.Shutdown)
	source.Add(nodeObject("n.example", "192.0.2.1", "198.51.100.1", "2001:db8::1", "10.129.0.7"))
	informer := cache.NewSharedIndexInformer(listOnly{source}, &corev1.Node{}, 0, cache.Indexers{})
	st := flowstore.New(bridge)
	n, err := newNodeAddresses(testNode(), "self", informer, st)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	running.Go(func() { informer.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("the cache did not sync")
	}
	n.prime()
	running.Go(func() { n.loop.Run(ctx, 1) })
	running.Go(func() {
		if err := st.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	expect := func(addrs ...string) {
		t.Helper()
		await.OK(t, timeout, func(context.Context) error {
			flows := bridge.Flows()
			for _, addr := range addrs {
				if !strings.Contains(strings.Join(flows, "\n"), "nw_dst="+addr+",") {
					return fmt.Errorf("no flow for %s: %q", addr, flows)
				}
			}
			if len(flows) != len(addrs) {
				return fmt.Errorf("got %q, want flows for %q", flows, addrs)
			}
			return nil
		})
	}
	expect("192.0.2.1", "198.51.100.1")
	source.Modify(nodeObject("192.0.2.1", "198.51.100.2"))
	expect("192.0.2.1", "198.51.100.2")
	source.Delete(nodeObject())
	expect()
}
