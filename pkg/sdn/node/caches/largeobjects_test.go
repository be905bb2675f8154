package caches

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	policyclient "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/apitest"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The caches have all objects of the maximum size with names of the maximum length, and only the fields that the agent reads, and all of many small objects.
func TestCaches_largeObjects(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: size")
	}
	server := apitest.Start(t)
	kube, ours := apitest.Clients(t, server)
	t.Cleanup(func() { apitest.Disconnect(kube, ours) })
	kinds, err := policyclient.NewForConfig(server)
	must(t, err)
	const namespace = "large"
	_, err = kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	must(t, err)
	_, err = kube.CoreV1().ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
	must(t, err)

	nodeName := strings.Repeat("n", apitest.LongName)
	objects := &apitest.Objects{
		Kube: kube, Network: ours, Policies: kinds, Namespace: namespace, Node: nodeName,
		Annotated: map[string]string{config.LogDeniedAnnotation: strings.Repeat("x", 64<<10)},
	}
	large, small, services := apitest.Sized(5, 100), apitest.Sized(5, 10_000), apitest.Sized(10, 4000)
	must(t, objects.Create(t.Context(), large, small, "NetworkPolicy", "ClusterNetworkPolicy", "EndpointSlice", "HostSubnet", "NetNamespace", "Namespace", "Node", "Pod"))
	must(t, objects.Create(t.Context(), services, small, "Service"))

	ctx, cancel := context.WithCancel(t.Context())
	c := New(Options{NodeName: nodeName, Kube: kube, Network: ours, Policies: kinds})
	t.Cleanup(func() { cancel(); c.Shutdown() })
	node := pipeline.Node{Mode: config.ModeNetworkPolicy, ClusterNetworks: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14")}}
	must(t, c.WatchPolicies(ctx, node))
	must(t, c.WatchServices(ctx, node))
	c.Start(ctx)
	must(t, c.Sync(ctx))
	const most = 16 << 10 // bytes of one object, most of them for 65 endpoints of a slice
	for name, tc := range map[string]struct {
		informer cache.SharedIndexInformer
		want     int
	}{
		"NetworkPolicy":        {c.Policies.Networking().V1().NetworkPolicies().Informer(), large + small},
		"ClusterNetworkPolicy": {c.ClusterPolicies.Policy().V1alpha2().ClusterNetworkPolicies().Informer(), large + small},
		"Service":              {c.Services.Core().V1().Services().Informer(), services + small},
		"EndpointSlice":        {c.EndpointSlices, large + small},
		"HostSubnet":           {c.Network.Network().V1().HostSubnets().Informer(), large + small},
		"NetNamespace":         {c.Network.Network().V1().NetNamespaces().Informer(), large + small},
		"Namespace":            {c.Policies.Core().V1().Namespaces().Informer(), large + small},
		"Node":                 {c.Policies.Core().V1().Nodes().Informer(), large + small},
		"Pod":                  {c.Policies.Core().V1().Pods().Informer(), large + small},
		"Pod of this node":     {c.Local.Core().V1().Pods().Informer(), large + small},
	} {
		apitest.CheckCache(t, name, tc.informer.GetStore(), tc.want, most)
	}
}
