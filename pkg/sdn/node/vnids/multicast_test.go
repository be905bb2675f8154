package vnids

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/test/tier"
)

func TestMulticast_enabledByAllNamespaces(t *testing.T) {
	tier.Parallel(t)
	for _, mode := range []config.Mode{config.ModeNetworkPolicy, config.ModeMultitenant} {
		t.Run(mode.String(), func(t *testing.T) { testMulticastEnabled(t, mode) })
	}
}

func testMulticastEnabled(t *testing.T, mode config.Mode) {
	f := start(t, mode, withMulticast(netNamespace("a", 0x20)), netNamespace("b", 0x30), netNamespace("c", 0x20))
	f.set("a", 1)
	f.set("b", 2)
	f.wantMulticast() // c has the VNID of a, and has not enabled multicast
	f.update(withMulticast(netNamespace("c", 0x20)))
	f.wantMulticast("0x20 output:1")
	f.set("c", 3)
	f.set("a", 4)
	f.wantMulticast("0x20 output:1,output:3,output:4")
	f.update(withMulticast(netNamespace("c", 0x30))) // the VNID of b, which has not enabled multicast
	f.wantMulticast("0x20 output:1,output:4")
	f.update(withMulticast(netNamespace("b", 0x30)))
	f.wantMulticast("0x20 output:1,output:4", "0x30 output:2,output:3")
	f.update(netNamespace("a", 0x20))
	f.wantMulticast("0x30 output:2,output:3")
	f.remove("b", 2)
	f.remove("c", 3)
	f.wantMulticast()
	if err := f.client.NetworkV1().NetNamespaces().Delete(t.Context(), "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.eventually(func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.networks) != 2 {
			return fmt.Errorf("networks: got %d, want 2", len(f.networks))
		}
		return nil
	})
}

// follower records the namespaces of followed VNIDs.
type follower struct {
	mu       sync.Mutex
	followed map[config.VNID][]string
}

func (e *follower) Follow(vnid config.VNID, namespaces []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.followed[vnid] = namespaces
}

func (e *follower) of(vnid config.VNID) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.followed[vnid]
}

func TestMulticast_publishedNodes(t *testing.T) {
	f := start(t, config.ModeMultitenant, withMulticast(netNamespace("a", 0x20)), withMulticast(netNamespace("b", 0x20)))
	e := &follower{followed: map[config.VNID][]string{}}
	f.mu.Lock()
	f.follower = e
	f.mu.Unlock()
	f.set("a", 1)
	if got := e.of(0x20); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("followed namespaces: got %q, want a and b", got)
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
	nodes := inputs.MulticastNodes{VTEPs: []netip.Addr{netip.MustParseAddr("172.31.0.12"), netip.MustParseAddr("172.31.0.13")}, Known: true}
	publish := func() []*flowstore.Commit {
		return f.store.Update(flowstore.Update{Publish: []flowstore.Published{{Input: inputs.MulticastNodesOf(0x20), Value: nodes}}})
	}
	for _, c := range publish() {
		f.must(c)
	}
	if n := replicas(); n != 2 {
		t.Errorf("multicast goes to %d nodes, want 2", n)
	}
	f.remove("a", 1)
	if got := e.of(0x20); len(got) > 0 {
		t.Errorf("without pods on this node, followed namespaces: got %q, want none", got)
	}
	if n := replicas(); n != 0 {
		t.Errorf("without pods on this node, multicast goes to %d nodes, want none", n)
	}
	nodes = inputs.MulticastNodes{VTEPs: nodes.VTEPs[:1], Known: true}
	bundles := f.bridge.Bundles()
	for _, c := range publish() {
		f.must(c)
	}
	if got := f.bridge.Bundles(); got != bundles {
		t.Errorf("without pods on this node, a change of other nodes: got %d bundles, want none", got-bundles)
	}
}

// wantMulticast waits until table 120 has exactly these flows, "VNID ACTIONS".
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
			return fmt.Errorf("multicast: got %q, want %q", got, want)
		}
		return nil
	})
}
