package caches

import (
	"context"
	"testing"

	networkfake "github.com/openshift/client-go/network/clientset/versioned/fake"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
)

// The service proxy of the node, which is known when its configuration is read, decides what the caches have of services.
func TestWatchServices(t *testing.T) {
	for name, node := range map[string]pipeline.Node{
		"external":                {Mode: config.ModeNetworkPolicy},
		"external in mode subnet": {Mode: config.ModeSubnet},
		"ovs":                     {Mode: config.ModeNetworkPolicy, BalancesServices: true},
		"ovs in mode subnet":      {Mode: config.ModeSubnet, BalancesServices: true},
	} {
		t.Run(name, func(t *testing.T) {
			svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "web"}}
			ctx, cancel := context.WithTimeout(t.Context(), await.SyncTime)
			c := New(Options{NodeName: "node1", Kube: fake.NewClientset(svc), Network: networkfake.NewClientset()})
			defer c.Shutdown()
			defer cancel()
			must(t, c.WatchServices(ctx, node))
			c.Services.WaitForCacheSync(ctx.Done()) // the fakes of other kinds do not sync
			objects := c.Services.Core().V1().Services().Informer().GetStore().List()
			if len(objects) != 1 {
				t.Fatalf("got %d services, want 1", len(objects))
			}
			if _, compiled := objects[0].(*endpoints.Service); compiled != node.BalancesServices {
				t.Errorf("got a %T", objects[0])
			}
			if hasSlices, want := c.EndpointSlices != nil, node.BalancesServices || node.Mode != config.ModeSubnet; hasSlices != want {
				t.Errorf("got EndpointSlices: %t, want %t", hasSlices, want)
			}
			if hasNode := c.OwnNode != nil; hasNode != node.BalancesServices {
				t.Errorf("got the own Node: %t, want %t", hasNode, node.BalancesServices)
			}
		})
	}
}
