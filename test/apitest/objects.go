package apitest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	policyclient "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned"
)

// The lengths that the API accepts in names.
const (
	LongName  = 253 // of most objects
	LongLabel = 63  // of Namespaces and Services
)

// WholeVariable is the environment variable that selects tests of full size.
const WholeVariable = "OVSDN_E2E_WHOLE_ATTACKS"

// Objects creates large and small objects, for tests of bad input.
type Objects struct {
	Kube      kubernetes.Interface
	Network   networkclient.Interface
	Policies  policyclient.Interface
	Namespace string            // of objects that have one; it must exist, with a ServiceAccount default
	Node      string            // of Pods
	Annotated map[string]string // annotations of large objects, beside one that fills the limit of 256 KiB
}

// Create creates the objects 0 to large-1 of the maximum size, with names of the maximum length, and small ones, of each kind.
func (o *Objects) Create(ctx context.Context, large, small int, kinds ...string) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	for _, kind := range kinds {
		for i := range large {
			group.Go(func() error { return o.create(ctx, kind, i, true) })
		}
		for i := range small {
			group.Go(func() error { return o.create(ctx, kind, large+i, false) })
		}
	}
	return group.Wait()
}

func (o *Objects) create(ctx context.Context, kind string, i int, large bool) error {
	var err error
	switch meta := o.meta(kind, i, large); kind {
	case "ClusterNetworkPolicy":
		p := &policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: meta}
		p.Spec.Tier, p.Spec.Priority = policyv1alpha2.AdminTier, int32(i%1000) //nolint:gosec // small
		p.Spec.Subject.Namespaces = &metav1.LabelSelector{}
		_, err = o.Policies.PolicyV1alpha2().ClusterNetworkPolicies().Create(ctx, p, metav1.CreateOptions{})
	case "EndpointSlice":
		_, err = o.Kube.DiscoveryV1().EndpointSlices(o.Namespace).Create(ctx, endpointSlice(meta, large), metav1.CreateOptions{})
	case "HostSubnet":
		_, err = o.Network.NetworkV1().HostSubnets().Create(ctx, &networkv1.HostSubnet{
			ObjectMeta: meta, Host: meta.Name, HostIP: netip.AddrFrom4([4]byte{192, 168, byte(i >> 8), byte(i)}).String(),
			Subnet: netip.AddrFrom4([4]byte{10, 128 + byte(i>>8&3), byte(i), 0}).String() + "/24",
		}, metav1.CreateOptions{})
	case "Namespace":
		_, err = o.Kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: meta}, metav1.CreateOptions{})
	case "NetNamespace":
		_, err = o.Network.NetworkV1().NetNamespaces().Create(ctx, &networkv1.NetNamespace{ObjectMeta: meta, NetName: meta.Name, NetID: uint32(100 + i)}, metav1.CreateOptions{}) //nolint:gosec // small
	case "NetworkPolicy":
		_, err = o.Kube.NetworkingV1().NetworkPolicies(o.Namespace).Create(ctx, networkPolicy(meta, large), metav1.CreateOptions{})
	case "Node":
		_, err = o.Kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: meta}, metav1.CreateOptions{})
	case "Pod":
		_, err = o.Kube.CoreV1().Pods(o.Namespace).Create(ctx, pod(meta, o.Node, large), metav1.CreateOptions{})
	case "Service":
		spec := corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Port: 80}}}
		_, err = o.Kube.CoreV1().Services(o.Namespace).Create(ctx, &corev1.Service{ObjectMeta: meta, Spec: spec}, metav1.CreateOptions{})
	default:
		err = fmt.Errorf("unknown kind %s", kind)
	}
	return err
}

// CheckCache checks the number of objects in the cache that Create created, and the size of the largest, as JSON.
func CheckCache(tb testing.TB, kind string, objects cache.Store, want, largest int) {
	tb.Helper()
	got, size := 0, 0
	for _, o := range objects.List() {
		if m, ok := o.(metav1.Object); !ok || !created(m) {
			continue // created by the API server
		}
		content, err := json.Marshal(o)
		if err != nil {
			tb.Fatal(err)
		}
		got, size = got+1, max(size, len(content))
	}
	if tb.Logf("%s: %d objects in the cache, the largest of %d bytes", kind, got, size); got != want || size > largest {
		tb.Errorf("%s: got %d objects in the cache, the largest of %d bytes, want %d of at most %d bytes", kind, got, size, want, largest)
	}
}

// created reports whether Create created the object.
func created(o metav1.Object) bool {
	var number int
	n, err := fmt.Sscanf(o.GetName(), "object%d", &number)
	return n == 1 && err == nil
}

// Sized returns the number of objects for the tests, or the whole number if WholeVariable is set, which takes minutes.
func Sized(small, whole int) int {
	if os.Getenv(WholeVariable) != "" {
		return whole
	}
	return small
}

// meta returns metadata with a name of the maximum length and large annotations, or small metadata.
func (o *Objects) meta(kind string, i int, large bool) metav1.ObjectMeta {
	name := fmt.Sprintf("object%d", i)
	if !large {
		return metav1.ObjectMeta{Name: name}
	}
	length := LongName
	if kind == "Namespace" || kind == "NetNamespace" || kind == "Service" {
		length = LongLabel
	}
	const limit, key = 256 << 10, "example.com/large"
	annotations, size := map[string]string{}, len(key)
	for k, v := range o.Annotated {
		annotations[k] = v
		size += len(k) + len(v)
	}
	annotations[key] = strings.Repeat("x", max(limit-size, 0))
	return metav1.ObjectMeta{Name: name + strings.Repeat("n", length-len(name)), Annotations: annotations}
}

func endpointSlice(meta metav1.ObjectMeta, large bool) *discoveryv1.EndpointSlice {
	o := &discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{}}
	o.Labels = map[string]string{discoveryv1.LabelServiceName: "s"}
	if !large {
		return o
	}
	for k := range 1000 { // the most that a slice takes
		addr := netip.AddrFrom4([4]byte{203, 0, byte(k >> 8), byte(k)})
		o.Endpoints = append(o.Endpoints, discoveryv1.Endpoint{Addresses: []string{addr.String()}, NodeName: new(strings.Repeat("n", LongName))})
	}
	return o
}

func networkPolicy(meta metav1.ObjectMeta, large bool) *networkingv1.NetworkPolicy {
	o := &networkingv1.NetworkPolicy{ObjectMeta: meta}
	if !large {
		return o
	}
	block := &networkingv1.IPBlock{CIDR: "0.0.0.0/0"}
	for i := range 30_000 {
		block.Except = append(block.Except, netip.AddrFrom4([4]byte{192, byte(i >> 15), byte(i >> 7), byte(i << 1)}).String()+"/32")
	}
	o.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{IPBlock: block}}}}
	return o
}

// pod returns a pod, with many containers if it is large.
func pod(meta metav1.ObjectMeta, node string, large bool) *corev1.Pod {
	o := &corev1.Pod{ObjectMeta: meta, Spec: corev1.PodSpec{NodeName: node, AutomountServiceAccountToken: new(false)}}
	containers := 1
	if large {
		containers = 4000
	}
	for i := range containers {
		o.Spec.Containers = append(o.Spec.Containers, corev1.Container{
			Name: fmt.Sprintf("c%d", i), Image: "i", Ports: []corev1.ContainerPort{{ContainerPort: int32(i + 1)}}, //nolint:gosec // small
		})
	}
	return o
}
