package deploy

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/ovsdn/ovsdn/test/apitest"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/lab/checkout"
	"github.com/ovsdn/ovsdn/test/lab/controlplane"
)

// slice returns an EndpointSlice with the addresses as endpoints.
func slice(name string, kind discoveryv1.AddressType, addrs ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, AddressType: kind}
	for _, a := range addrs {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return s
}

// grant gives a service account of namespace default rights on resources there.
func grant(t *testing.T, kube kubernetes.Interface, account string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	_, err := kube.RbacV1().Roles("default").Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: account}, Rules: rules}, metav1.CreateOptions{})
	must(t, err)
	_, err = kube.RbacV1().RoleBindings("default").Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: account},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: account},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: account}},
	}, metav1.CreateOptions{})
	must(t, err)
}

// TestRestrictedEndpoints checks that a writer of EndpointSlices and Endpoints needs an additional right to name pods in them.
func TestRestrictedEndpoints(t *testing.T) {
	t.Parallel() // most of the time it waits for its API server
	config, admin := startRestricted(t)
	as := func(namespace, name string) kubernetes.Interface {
		return clients(t, apitest.AsServiceAccount(config, namespace, name)).kube
	}

	tries := 0
	create := func(ctx context.Context, client kubernetes.Interface, kind discoveryv1.AddressType, addrs ...string) error {
		tries++
		_, err := client.DiscoveryV1().EndpointSlices("default").Create(ctx, slice(fmt.Sprint("s", tries), kind, addrs...), metav1.CreateOptions{})
		return err
	}
	await.OK(t, admissionPatience, func(ctx context.Context) error {
		if err := create(ctx, as("default", "tenant"), discoveryv1.AddressTypeIPv4, "10.128.0.5"); !apierrors.IsForbidden(err) {
			return fmt.Errorf("a pod's address in a tenant's EndpointSlice is not refused, but %s", fmt.Sprint(err))
		}
		return nil
	})
	ctx := t.Context()
	for _, addrs := range [][]string{{"10.131.255.254"}, {"192.0.2.7", "10.128.0.5"}, {"172.30.0.1"}, {"010.128.0.5"}, {"10.128.00.5"}} {
		if err := create(ctx, as("default", "tenant"), discoveryv1.AddressTypeIPv4, addrs...); err == nil {
			t.Errorf("a tenant's EndpointSlice with %q is accepted", addrs)
		}
	}
	for _, addrs := range [][]string{nil, {"192.0.2.7"}, {"10.132.0.1", "172.31.0.1"}} {
		must(t, create(ctx, as("default", "tenant"), discoveryv1.AddressTypeIPv4, addrs...))
	}
	must(t, create(ctx, as("default", "tenant"), discoveryv1.AddressTypeFQDN, "pods.example.com"))
	must(t, create(ctx, as("default", "tenant"), discoveryv1.AddressTypeIPv6, "2001:db8::1"))
	for _, client := range []kubernetes.Interface{admin.kube, as("default", "operator"), as("kube-system", "endpointslice-controller"), as("kube-system", "endpointslicemirroring-controller")} {
		must(t, create(ctx, client, discoveryv1.AddressTypeIPv4, "10.128.0.5"))
	}

	// An update of another writer's object is allowed, but not of its endpoints.
	of, err := admin.kube.DiscoveryV1().EndpointSlices("default").Create(ctx, slice("old", discoveryv1.AddressTypeIPv4, "10.128.0.5"), metav1.CreateOptions{})
	must(t, err)
	of.Labels = map[string]string{"a": "b"}
	of, err = as("default", "tenant").DiscoveryV1().EndpointSlices("default").Update(ctx, of, metav1.UpdateOptions{})
	must(t, err)
	of.Endpoints[0].Addresses[0] = "10.128.0.6"
	if _, err = as("default", "tenant").DiscoveryV1().EndpointSlices("default").Update(ctx, of, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a tenant's change of the endpoints: got %v, want it refused", err)
	}
	checkEndpoints(t, config)
}

// checkEndpoints creates Endpoints, which kube-controller-manager copies to EndpointSlices.
func checkEndpoints(t *testing.T, config *rest.Config) {
	t.Helper()
	ctx := t.Context()
	as := func(namespace, name string) kubernetes.Interface {
		return clients(t, apitest.AsServiceAccount(config, namespace, name)).kube
	}
	tries := 0
	endpoints := func(client kubernetes.Interface, ready, notReady []corev1.EndpointAddress) error {
		tries++
		_, err := client.CoreV1().Endpoints("default").Create(ctx, &corev1.Endpoints{ //nolint:staticcheck // Endpoints are still copied to EndpointSlices
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("e", tries)},
			Subsets:    []corev1.EndpointSubset{{Addresses: ready, NotReadyAddresses: notReady, Ports: []corev1.EndpointPort{{Port: 80}}}}, //nolint:staticcheck // as above
		}, metav1.CreateOptions{})
		return err
	}
	pod, outside := []corev1.EndpointAddress{{IP: "10.128.0.5"}}, []corev1.EndpointAddress{{IP: "192.0.2.7"}}
	await.OK(t, admissionPatience, func(context.Context) error {
		if err := endpoints(as("default", "tenant"), pod, nil); !apierrors.IsForbidden(err) {
			return fmt.Errorf("a pod's address in a tenant's Endpoints is not refused, but %s", fmt.Sprint(err))
		}
		return nil
	})
	if err := endpoints(as("default", "tenant"), outside, pod); !apierrors.IsForbidden(err) {
		t.Errorf("a pod's address in a tenant's Endpoints that is not ready: got %v, want it refused", err)
	}
	must(t, endpoints(as("default", "tenant"), outside, nil))
	must(t, endpoints(as("default", "operator"), pod, nil))
	must(t, endpoints(as("kube-system", "endpoint-controller"), pod, nil))
}

// startRestricted starts an API server with the component restricted-endpoints, and grants rights on endpoints to a tenant and an operator.
func startRestricted(t *testing.T) (*rest.Config, as) {
	t.Helper()
	config := apitest.Start(t)
	admin := clients(t, config)
	_, err := admin.network.NetworkV1().ClusterNetworks().Create(t.Context(), &networkv1.ClusterNetwork{
		ObjectMeta: metav1.ObjectMeta{Name: "default"}, ServiceNetwork: "172.30.0.0/16", PluginName: "redhat/openshift-ovs-multitenant",
		Network: "10.128.0.0/14", HostSubnetLength: 9, ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: "10.128.0.0/14", HostSubnetLength: 9}},
	}, metav1.CreateOptions{})
	must(t, err)
	write := []string{"get", "create", "update", "delete"}
	tenant := []rbacv1.PolicyRule{
		{APIGroups: []string{discoveryv1.GroupName}, Resources: []string{"endpointslices"}, Verbs: write},
		{APIGroups: []string{""}, Resources: []string{"endpoints"}, Verbs: write},
	}
	operator := append(tenant[:2:2],
		rbacv1.PolicyRule{APIGroups: []string{discoveryv1.GroupName}, Resources: []string{"endpointslices/restricted"}, Verbs: []string{"create"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"endpoints/restricted"}, Verbs: []string{"create"}})
	grant(t, admin.kube, "tenant", tenant...)
	grant(t, admin.kube, "operator", operator...)
	root, err := checkout.Root(".")
	must(t, err)
	must(t, controlplane.Apply(t.Context(), config, os.DirFS(filepath.Join(root, "deploy", "components", "restricted-endpoints"))))
	return config, admin
}
