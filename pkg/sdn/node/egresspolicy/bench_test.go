package egresspolicy

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// From a changed policy of 1,000 rules in the cache to its flows on a switch.
func BenchmarkReconcile(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root")
	}
	var rules [2][]string
	for network := range rules {
		for i := range 999 {
			rules[network] = append(rules[network], fmt.Sprintf("%s 198.%d.%d.%d/32", []string{"Allow", "Deny"}[i%2], 18+network, i/250, i%250))
		}
		rules[network] = append(rules[network], "Deny 0.0.0.0/0")
	}
	oneRule := slices.Clone(rules[0])
	oneRule[500] = "Deny 198.18.2.0/32"
	for _, bench := range []struct {
		name string
		to   []string
	}{{"rewrite", rules[1]}, {"one rule", oneRule}} {
		b.Run(bench.name, func(b *testing.B) {
			p := newBenchPolicies(b)
			objects := []*networkv1.EgressNetworkPolicy{egressPolicy("shop/default", rules[0]...), egressPolicy("shop/default", bench.to...)}
			set := func(i int) {
				if err := p.options.Policies.GetIndexer().Update(objects[i%2]); err != nil {
					b.Fatal(err)
				}
				if err := p.reconcile(b.Context(), "shop"); err != nil {
					b.Fatal(err)
				}
			}
			set(0)
			i := 0
			for b.Loop() {
				i++
				set(i)
			}
		})
	}
}

// newBenchPolicies returns the feature on a node with a switch and a pod in namespace shop.
func newBenchPolicies(b *testing.B) *Policies {
	b.Helper()
	sw := ovstest.Start(b)
	bridge := native.New(ovstest.Bridge, sw.RunDir)
	b.Cleanup(bridge.Close)
	if err := bridge.EnsureBridge(b.Context(), ovs.Bridge{Name: ovstest.Bridge, DatapathType: "netdev"}); err != nil {
		b.Fatal(err)
	}
	store := flowstore.New(bridge)
	store.Source(inputs.KindVNID, flowstore.Source{Default: config.VNID(100)})
	p, err := New(Options{
		Node: testNode(), Store: store, Bridge: bridge,
		Policies:    cache.NewSharedIndexInformer(nil, &networkv1.EgressNetworkPolicy{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}),
		HostSubnets: cache.NewSharedIndexInformer(nil, &networkv1.HostSubnet{}, 0, cache.Indexers{}),
	})
	if err != nil {
		b.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { _ = store.Run(b.Context()) })
	b.Cleanup(running.Wait)
	p.Attach(b.Context(), owner("shop/5"), policy.PodKey{Namespace: "shop", Name: "5"}, pipeline.Pod{Addrs: []netip.Addr{netip.MustParseAddr("10.128.0.5")}}, nil)
	return p
}
