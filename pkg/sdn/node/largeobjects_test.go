package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	policyclient "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/apitest"
)

// wholeVariable has objects of full size and number created, which takes minutes.
const wholeVariable = "OVSDN_E2E_WHOLE_ATTACKS"

func sized(small, whole int) int {
	if os.Getenv(wholeVariable) != "" {
		return whole
	}
	return small
}

// Objects as large as the API takes them, with names of the greatest length: the agent's caches have all of them, and of each what is read.
func TestCachesOfLargeObjects(t *testing.T) {
	server := apitest.Start(t)
	kube, ours := apitest.Clients(t, server)
	t.Cleanup(func() { apitest.Disconnect(kube, ours) })
	kinds, err := policyclient.NewForConfig(server)
	if err != nil {
		t.Fatal(err)
	}
	const namespace = "large"
	if _, err := kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var each []func(context.Context, int) error // creates the i-th object of a kind
	created := func(_ any, err error) error { return err }
	large := map[string]string{"example.com/large": strings.Repeat("x", 255<<10)} // the API takes 256 KiB, with the names
	// meta returns metadata with a name of the length, and large annotations.
	meta := func(i, length int) metav1.ObjectMeta {
		name := fmt.Sprintf("o%d", i)
		return metav1.ObjectMeta{Name: name + strings.Repeat("n", length-len(name)), Annotations: large}
	}
	const longName, longLabel = 253, 63
	var exceptions []string
	for i := range 30_000 {
		exceptions = append(exceptions, netip.AddrFrom4([4]byte{192, byte(i >> 15), byte(i >> 7), byte(i << 1)}).String()+"/32")
	}
	each = append(each,
		func(ctx context.Context, i int) error {
			o := &networkingv1.NetworkPolicy{ObjectMeta: meta(i, longName)}
			o.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "0.0.0.0/0", Except: exceptions}}}}}
			return created(kube.NetworkingV1().NetworkPolicies(namespace).Create(ctx, o, metav1.CreateOptions{}))
		},
		func(ctx context.Context, i int) error {
			o := &policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: meta(i, longName)}
			o.Spec.Tier, o.Spec.Priority = policyv1alpha2.AdminTier, int32(i%1000) //nolint:gosec // small
			o.Spec.Subject.Namespaces = &metav1.LabelSelector{}
			return created(kinds.PolicyV1alpha2().ClusterNetworkPolicies().Create(ctx, o, metav1.CreateOptions{}))
		},
		func(ctx context.Context, i int) error {
			o := &corev1.Service{ObjectMeta: meta(i, longLabel), Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Port: 80}}}}
			return created(kube.CoreV1().Services(namespace).Create(ctx, o, metav1.CreateOptions{}))
		},
		func(ctx context.Context, i int) error {
			o := &discoveryv1.EndpointSlice{ObjectMeta: meta(i, longName), AddressType: discoveryv1.AddressTypeIPv4}
			o.Labels = map[string]string{discoveryv1.LabelServiceName: "s"}
			for k := range 1000 { // the most that a slice takes
				addr := netip.AddrFrom4([4]byte{203, 0, byte(k >> 8), byte(k)})
				o.Endpoints = append(o.Endpoints, discoveryv1.Endpoint{Addresses: []string{addr.String()}, NodeName: new(strings.Repeat("n", longName))})
			}
			return created(kube.DiscoveryV1().EndpointSlices(namespace).Create(ctx, o, metav1.CreateOptions{}))
		},
		func(ctx context.Context, i int) error {
			o := &networkv1.HostSubnet{ObjectMeta: meta(i, longName), HostIP: netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i)}).String()}
			o.Host, o.Subnet = o.Name, netip.AddrFrom4([4]byte{10, 128, byte(i), 0}).String()+"/24"
			return created(ours.NetworkV1().HostSubnets().Create(ctx, o, metav1.CreateOptions{}))
		},
		func(ctx context.Context, i int) error {
			o := &networkv1.NetNamespace{ObjectMeta: meta(i, longLabel), NetID: uint32(100 + i)} //nolint:gosec // small
			o.NetName = o.Name
			return created(ours.NetworkV1().NetNamespaces().Create(ctx, o, metav1.CreateOptions{}))
		},
	)
	count := sized(5, 100)
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(8)
	for _, create := range each {
		for i := range count {
			group.Go(func() error { return create(ctx, i) })
		}
	}
	services := sized(5, 4000) // further ones
	for i := range services {
		group.Go(func() error { return each[2](ctx, count+i) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}

	a := &agent{kube: kube, network: ours, policies: kinds}
	ctx, cancel := context.WithCancel(t.Context())
	c := a.newCaches()
	t.Cleanup(func() { cancel(); c.shutdown() })
	if err := a.watchPolicies(ctx, c, config.ModeNetworkPolicy); err != nil {
		t.Fatal(err)
	}
	slices, err := a.watchSlices(ctx, c, pipeline.Node{Mode: config.ModeNetworkPolicy, ClusterNetworks: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14")}})
	if err != nil {
		t.Fatal(err)
	}
	c.start(ctx)
	if err := c.sync(ctx); err != nil {
		t.Fatal(err)
	}
	const most = 16 << 10 // bytes of one object in the cache, as JSON; 65 endpoints of a slice are the most of it
	for name, tc := range map[string]struct {
		informer cache.SharedIndexInformer
		want     int
	}{
		"NetworkPolicy":        {c.policies.cluster.Networking().V1().NetworkPolicies().Informer(), count},
		"ClusterNetworkPolicy": {c.policies.kinds.Policy().V1alpha2().ClusterNetworkPolicies().Informer(), count},
		"Service":              {c.cluster.Core().V1().Services().Informer(), count + services},
		"EndpointSlice":        {slices, count},
		"HostSubnet":           {c.network.Network().V1().HostSubnets().Informer(), count},
		"NetNamespace":         {c.network.Network().V1().NetNamespaces().Informer(), count},
	} {
		have, largest := 0, 0
		for _, o := range tc.informer.GetStore().List() {
			if m, ok := o.(metav1.Object); !ok || !strings.HasPrefix(m.GetName(), "o") || !strings.HasSuffix(m.GetName(), "nnnn") {
				continue // the API server's own
			}
			content, err := json.Marshal(o)
			if err != nil {
				t.Fatal(err)
			}
			have, largest = have+1, max(largest, len(content))
		}
		if t.Logf("%s: %d in the cache, the largest of %d bytes", name, have, largest); have != tc.want || largest > most {
			t.Errorf("%s: %d in the cache, the largest of %d bytes, want %d of at most %d bytes", name, have, largest, tc.want, most)
		}
	}
}
