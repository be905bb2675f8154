package diagnosticsapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/test/apitest"
	"github.com/ovsdn/ovsdn/test/await"
)

const apiService = "diagnostics" // the Service, in namespace default

// requests are the paths that kube-apiserver requested, with the status codes of the answers.
type requests struct {
	http.Handler
	mu    sync.Mutex
	paths map[string]int
}

func (r *requests) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	recorder := &statusRecorder{ResponseWriter: w, code: http.StatusOK}
	r.Handler.ServeHTTP(recorder, request)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.paths[request.URL.Path] = recorder.code
}

type statusRecorder struct {
	http.ResponseWriter
	code int
}

func (r *statusRecorder) WriteHeader(code int) {
	r.code = code
	r.ResponseWriter.WriteHeader(code)
}

// Users read nodestatuses through kube-apiserver with their own rights.
func TestServer_behindAPIServer(t *testing.T) {
	admin := apitest.Start(t)
	kube, ours := apitest.Clients(t, admin)
	t.Cleanup(func() { apitest.Disconnect(kube, ours) })
	for i := range 3 {
		name := fmt.Sprintf("node%d", i)
		o := &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Host: name, HostIP: fmt.Sprintf("192.0.2.%d", i+1), Subnet: fmt.Sprintf("10.128.%d.0/23", 2*i)}
		if _, err := ours.NetworkV1().HostSubnets().Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s, err := New(t.Context(), Config{Kube: kube, Network: ours, Agents: answering(`{"flows":[{"tableName":"x","match":"ip"}]}`), Accept: func(*http.Request) {}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
	seen := &requests{Handler: s, paths: map[string]int{}}
	register(t, admin, kube, seen)
	grant(t, kube, "reader")

	reader, tenant := clientOf(t, admin, "reader"), clientOf(t, admin, "tenant")
	statusesOf := schema.GroupVersionResource{Group: diagnostics.Group, Version: diagnostics.Version, Resource: statuses}
	await.OK(t, time.Minute, func(ctx context.Context) error {
		list, err := reader.Resource(statusesOf).List(ctx, metav1.ListOptions{Limit: 2})
		if err != nil {
			return err
		}
		if got := len(list.Items); got != 2 || list.GetContinue() == "" || list.Items[0].GetName() != "node0" || list.Items[0].GetKind() != "NodeStatus" {
			return fmt.Errorf("got %d nodes, continue %q", got, list.GetContinue())
		}
		return nil
	})
	if _, err := tenant.Resource(statusesOf).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a user without rights: got %v, want Forbidden", err)
	}
	if _, err := reader.Resource(statusesOf).Get(t.Context(), "missing", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a missing node: got %v, want NotFound", err)
	}
	if _, err := reader.Resource(statusesOf).Watch(t.Context(), metav1.ListOptions{}); !apierrors.IsMethodNotSupported(err) {
		t.Errorf("watch: got %v, want MethodNotSupported", err)
	}
	flowsOf := statusesOf
	flowsOf.Resource = flows
	if o, err := reader.Resource(flowsOf).Get(t.Context(), "node1", metav1.GetOptions{}); err != nil || o.GetKind() != "NodeFlows" {
		t.Errorf("flows: got %v, %v", o, err)
	}
	table, err := kube.CoreV1().RESTClient().Get().AbsPath(versionPath, statuses).SetHeader("Accept", acceptKubectl).DoRaw(t.Context())
	if err != nil || !bytes.Contains(table, []byte(`"columnDefinitions"`)) {
		t.Errorf("table: got %.200s, %v", table, err)
	}
	checkDiscovery(t, kube, seen)
}

// register makes the handler the server of the API group, and waits until it is available.
func register(t *testing.T, admin *rest.Config, kube kubernetes.Interface, h http.Handler) {
	t.Helper()
	ca := newAuthority(t, "diagnostics")
	server := httptest.NewUnstartedServer(h)
	server.TLS = &tls.Config{
		Certificates: []tls.Certificate{ca.issue(t, apiService+".default.svc", x509.ExtKeyUsageServerAuth)}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12,
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	port := int64(netip.MustParseAddrPort(server.Listener.Addr().String()).Port())
	if _, err := kube.CoreV1().Services(metav1.NamespaceDefault).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: apiService}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(admin)
	if err != nil {
		t.Fatal(err)
	}
	services := client.Resource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"})
	name := diagnostics.Version + "." + diagnostics.Group
	if _, err := services.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"group": diagnostics.Group, "version": diagnostics.Version, "groupPriorityMinimum": int64(100), "versionPriority": int64(10), "caBundle": []byte(ca.pem()),
			"service": map[string]any{"namespace": metav1.NamespaceDefault, "name": apiService, "port": port},
		},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await.OK(t, 2*time.Minute, func(ctx context.Context) error {
		o, err := services.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, err := unstructured.NestedSlice(o.Object, "status", "conditions")
		for _, c := range conditions {
			if c, ok := c.(map[string]any); ok && c["type"] == "Available" && c["status"] == "True" {
				return nil
			}
		}
		return fmt.Errorf("not available: %v, %w", conditions, err)
	})
}

// grant gives the user the rights to read nodestatuses and nodeflows.
func grant(t *testing.T, kube kubernetes.Interface, user string) {
	t.Helper()
	if _, err := kube.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{diagnostics.Group}, Resources: []string{statuses, flows}, Verbs: []string{"get", "list", "watch"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := kube.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// clientOf returns a client of the user.
func clientOf(t *testing.T, admin *rest.Config, user string) dynamic.Interface {
	t.Helper()
	own := rest.CopyConfig(admin)
	own.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	client, err := dynamic.NewForConfig(own)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// checkDiscovery checks that kube-apiserver knows the resources, by aggregated discovery, and that it gets OpenAPI documents.
func checkDiscovery(t *testing.T, kube kubernetes.Interface, seen *requests) {
	t.Helper()
	await.OK(t, time.Minute, func(context.Context) error {
		_, lists, err := kube.Discovery().ServerGroupsAndResources()
		if err != nil {
			return err
		}
		var names []string
		for _, list := range lists {
			for _, r := range list.APIResources {
				if list.GroupVersion == groupVersion().String() {
					names = append(names, r.Name)
				}
			}
		}
		if got := strings.Join(names, " "); got != "nodeflows nodestatuses" {
			return fmt.Errorf("got resources %q", got)
		}
		seen.mu.Lock()
		defer seen.mu.Unlock()
		for _, path := range []string{groupsPath, versionPath, "/openapi/v2", "/openapi/v3"} {
			if seen.paths[path] != http.StatusOK {
				return fmt.Errorf("%s: got status %d, want 200", path, seen.paths[path])
			}
		}
		return nil
	})
}
