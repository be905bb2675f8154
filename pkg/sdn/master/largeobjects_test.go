package master

import (
	"context"
	"strings"
	"testing"

	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/apitest"
)

// The caches have all objects of the maximum size with names of the maximum length, and all of many small objects. Annotations are retained only in the
// objects of network.openshift.io, which the controllers update and only administrators write.
func TestCaches_largeObjects(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: size")
	}
	server := apitest.Start(t)
	clients, err := newClients(server)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(clients.disconnect)
	clients.Events = &record.FakeRecorder{}
	objects := &apitest.Objects{
		Kube: clients.Kube, Network: clients.Network,
		Annotated: map[string]string{config.LogDeniedAnnotation: strings.Repeat("x", 128<<10)},
	}
	large, small := apitest.Sized(5, 100), apitest.Sized(5, 10_000)
	if err := objects.Create(t.Context(), large, small, "HostSubnet", "NetNamespace", "Namespace", "Node"); err != nil {
		t.Fatal(err)
	}

	m := &master{Config: Defaults(), clients: clients, number: func() int { return 1 }}
	c, err := m.newControllers()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(func() { cancel(); c.kube.Shutdown(); c.network.Shutdown() })
	c.kube.StartWithContext(ctx)
	c.network.Start(ctx.Done())
	for _, load := range []func(context.Context) error{c.subnets.Load, c.netids.Load} {
		if err := load(ctx); err != nil {
			t.Fatal(err)
		}
	}
	const annotated, trimmed = 257 << 10, 2 << 10
	for kind, tc := range map[string]struct {
		objects cache.Store
		most    int
	}{
		"HostSubnet":   {c.network.Network().V1().HostSubnets().Informer().GetStore(), annotated},
		"NetNamespace": {c.network.Network().V1().NetNamespaces().Informer().GetStore(), annotated},
		"Namespace":    {c.kube.Core().V1().Namespaces().Informer().GetStore(), trimmed},
		"Node":         {c.kube.Core().V1().Nodes().Informer().GetStore(), trimmed},
	} {
		apitest.CheckCache(t, kind, tc.objects, large+small, tc.most)
	}
}
