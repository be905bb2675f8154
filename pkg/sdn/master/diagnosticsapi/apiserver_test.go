package diagnosticsapi

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	policyfake "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned/fake"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/test/apitest"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/fakeca"
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

// Unwrap lets http.ResponseController flush.
func (r *statusRecorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

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
	agents := &streamingAgents{parts: make(chan string), ended: io.EOF, closed: make(chan struct{}), agentFunc: func(ctx context.Context, node, path string, query url.Values) (string, error) {
		if path == diagnostics.NodeTracePath {
			return tracingAgents(ctx, node, path, query)
		}
		return answering(`{"flows":[{"tableName":"x","match":"ip"}]}`)(ctx, node, path, query)
	}}
	s, err := New(t.Context(), Config{Kube: kube, Network: ours, Policies: policyfake.NewClientset(), Agents: agents, Accept: func(*http.Request) {}})
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
	grantInDefault(t, kube, "tenant", rbacv1.PolicyRule{APIGroups: []string{diagnostics.Group}, Resources: []string{traces}, Verbs: []string{"create"}})
	grantInDefault(t, kube, "listener", rbacv1.PolicyRule{APIGroups: []string{diagnostics.Group}, Resources: []string{"captures/attach"}, ResourceNames: []string{"web"}, Verbs: []string{"create"}})

	reader, tenant := clientOf(t, admin, "reader"), clientOf(t, admin, "tenant")
	statusesOf := schema.GroupVersionResource{Group: diagnostics.Group, Version: diagnostics.Version, Resource: statuses}
	await.OK(t, await.SyncTime, func(ctx context.Context) error {
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
	checkTraces(t, kube, ours, reader, tenant)
	checkVerifications(t, reader, tenant)
	checkCaptures(t, admin, agents)
}

// checkVerifications checks that a user with the right creates a Verification at the cluster scope, although it is a namespaced resource.
func checkVerifications(t *testing.T, reader, tenant dynamic.Interface) {
	t.Helper()
	of := schema.GroupVersionResource{Group: diagnostics.Group, Version: diagnostics.Version, Resource: verifications}
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": groupVersion().String(), "kind": "Verification"}}
	for _, namespace := range []string{"", "default"} {
		got, err := reader.Resource(of).Namespace(namespace).Create(t.Context(), o, metav1.CreateOptions{})
		if err != nil {
			t.Errorf("namespace %q: %v", namespace, err)
			continue
		}
		if n, _, err := unstructured.NestedInt64(got.Object, "status", "questions"); err != nil || n != 2 || got.GetNamespace() != namespace {
			t.Errorf("namespace %q: got %v, %v, want two questions", namespace, got.Object, err)
		}
		if _, err := tenant.Resource(of).Namespace(namespace).Create(t.Context(), o, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("namespace %q, a user without the right: got %v, want Forbidden", namespace, err)
		}
	}
}

// checkCaptures checks that a user with the right to capture at one pod receives the file while it is written, in a request that kube-apiserver does not end by
// its own time-out: it is a long-running one.
func checkCaptures(t *testing.T, admin *rest.Config, agents *streamingAgents) {
	t.Helper()
	const requestTimeout = time.Second // of requests that are not long-running, instead of 60 s
	clients := map[string]kubernetes.Interface{}
	for _, user := range []string{"listener", "tenant"} {
		own := rest.CopyConfig(admin)
		own.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
		client, err := kubernetes.NewForConfig(own)
		if err != nil {
			t.Fatal(err)
		}
		clients[user] = client
	}
	capture := func(ctx context.Context, user, pod string) (io.ReadCloser, error) {
		return clients[user].CoreV1().RESTClient().Post().AbsPath(versionPath+capturePath("default", pod)).Param("timeout", requestTimeout.String()).SetHeader("Content-Type", "application/json").Body([]byte(`{}`)).Stream(ctx)
	}
	for user, pod := range map[string]string{"tenant": "web", "listener": "db"} {
		if _, err := capture(t.Context(), user, pod); !apierrors.IsForbidden(err) {
			t.Errorf("a capture of %s by %s: got %v, want Forbidden", pod, user, err)
		}
	}
	var body io.ReadCloser
	await.OK(t, await.SyncTime, func(context.Context) (err error) { // the right may be late
		body, err = capture(t.Context(), "listener", "web")
		return err
	})
	defer body.Close()
	read := bufio.NewReader(body)
	for _, want := range []string{"one\n", "two\n"} {
		agents.parts <- want
		if line, err := read.ReadString('\n'); err != nil || line != want {
			t.Fatalf("got %q, error %v while the capture runs, want %q", line, err, want)
		}
		<-time.After(requestTimeout + time.Second/2)
	}
	close(agents.parts)
	if rest, err := io.ReadAll(read); err != nil || len(rest) > 0 {
		t.Errorf("got %q, error %v after the file, want its end", rest, err)
	}
}

// checkTraces checks that a user creates Traces in the namespace in which it has the right, with the validation of fields that it asks for.
func checkTraces(t *testing.T, kube kubernetes.Interface, ours networkclient.Interface, reader, tenant dynamic.Interface) {
	t.Helper()
	if _, err := ours.NetworkV1().ClusterNetworks().Create(t.Context(), tracedNetwork(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, pod := range []*corev1.Pod{tracedPod("default", "web", "node0", "10.128.0.5"), tracedPod("default", "db", "node0", "10.128.0.6")} {
		pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
		_, err := kube.CoreV1().ServiceAccounts(pod.Namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		status := pod.Status
		created, err := kube.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		created.Status = status
		if _, err := kube.CoreV1().Pods(pod.Namespace).UpdateStatus(t.Context(), created, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	tracesOf := schema.GroupVersionResource{Group: diagnostics.Group, Version: diagnostics.Version, Resource: traces}
	trace := func(port any, more ...string) *unstructured.Unstructured {
		spec := map[string]any{"source": "node/node0", "destination": "pod/default/db", "port": port}
		for _, name := range more {
			spec[name] = "x"
		}
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": groupVersion().String(), "kind": "Trace", "spec": spec}}
	}
	await.OK(t, await.SyncTime, func(ctx context.Context) error { // the right may be late
		o, err := tenant.Resource(tracesOf).Namespace("default").Create(ctx, trace(int64(80)), metav1.CreateOptions{})
		if err != nil {
			return err
		}
		// The agent reports another pod at the address.
		const want = "node node0 delivers it to another tenant's pod and not to pod/default/db; the API server reports the same address for both"
		if reason, _, err := unstructured.NestedString(o.Object, "status", "reason"); err != nil || reason != want {
			return fmt.Errorf("got %v, %w", o.Object, err)
		}
		return nil
	})
	if _, err := reader.Resource(tracesOf).Namespace("default").Create(t.Context(), trace(int64(80)), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a user without the right: got %v, want Forbidden", err)
	}
	if _, err := tenant.Resource(tracesOf).Namespace("kube-system").Create(t.Context(), trace(int64(80)), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another namespace: got %v, want Forbidden", err)
	}
	if _, err := tenant.Resource(tracesOf).Namespace("default").Create(t.Context(), trace(int64(-1)), metav1.CreateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("an invalid port: got %v, want Invalid", err)
	}
	if _, err := tenant.Resource(tracesOf).Namespace("default").Create(t.Context(), trace(int64(80), "x"), metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}); !apierrors.IsBadRequest(err) {
		t.Errorf("an unknown field: got %v, want BadRequest", err)
	}
	if _, err := tenant.Resource(tracesOf).Namespace("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) && !apierrors.IsMethodNotSupported(err) {
		t.Errorf("list: got %v, want an error", err)
	}
}

// register makes the handler the server of the API group, and waits until it is available.
func register(t *testing.T, admin *rest.Config, kube kubernetes.Interface, h http.Handler) {
	t.Helper()
	ca := fakeca.New(t, "diagnostics")
	server := httptest.NewUnstartedServer(h)
	server.TLS = &tls.Config{
		Certificates: []tls.Certificate{ca.Issue(t, apiService+".default.svc", x509.ExtKeyUsageServerAuth)}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12,
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
			"group": diagnostics.Group, "version": diagnostics.Version, "groupPriorityMinimum": int64(100), "versionPriority": int64(10), "caBundle": []byte(ca.PEM()),
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

// grant gives the user the rights to read nodestatuses and nodeflows, and to create Verifications.
func grant(t *testing.T, kube kubernetes.Interface, user string) {
	t.Helper()
	if _, err := kube.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{diagnostics.Group}, Resources: []string{statuses, flows}, Verbs: []string{"get", "list", "watch"}},
			{APIGroups: []string{diagnostics.Group}, Resources: []string{verifications}, Verbs: []string{"create"}}},
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

// grantInDefault gives the user a right in namespace default.
func grantInDefault(t *testing.T, kube kubernetes.Interface, user string, right rbacv1.PolicyRule) {
	t.Helper()
	if _, err := kube.RbacV1().Roles("default").Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: user}, Rules: []rbacv1.PolicyRule{right}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := kube.RbacV1().RoleBindings("default").Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: user},
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
	await.OK(t, await.SyncTime, func(context.Context) error {
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
		if got := strings.Join(names, " "); got != "nodeflows nodestatuses nodetraffics probes traces verifications captures/attach" {
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
