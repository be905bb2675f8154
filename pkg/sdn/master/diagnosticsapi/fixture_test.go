package diagnosticsapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"

	networkfake "github.com/openshift/client-go/network/clientset/versioned/fake"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	policyfake "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned/fake"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/fakeca"
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

// configMap returns the ConfigMap as kube-apiserver publishes it.
func configMap(ca string, names ...string) *corev1.ConfigMap {
	list, _ := json.Marshal(append([]string{}, names...)) // never fails
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "extension-apiserver-authentication"}, Data: map[string]string{
		"client-ca-file": "unused", "requestheader-client-ca-file": ca, "requestheader-allowed-names": string(list),
		"requestheader-username-headers": `["X-Remote-User"]`, "requestheader-uid-headers": `["X-Remote-Uid"]`,
		"requestheader-group-headers": `["X-Remote-Group"]`, "requestheader-extra-headers-prefix": `["X-Remote-Extra-"]`,
	}}
}

// nodeList implements Nodes.
type nodeList []Node

func (l nodeList) HasSynced() bool { return l != nil }
func (l nodeList) List() []Node    { return l }

func (l nodeList) Get(name string) (Node, bool) {
	for _, n := range l {
		if n.Name == name {
			return n, true
		}
	}
	return Node{}, false
}

func nodes(n int) nodeList {
	l := nodeList{}
	for i := range n {
		l = append(l, Node{Name: fmt.Sprintf("node%04d", i), HostIP: netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}), Subnet: "10.128.0.0/23"})
	}
	return l
}

// agentFunc implements Agents.
type agentFunc func(ctx context.Context, node, path string, query url.Values) (answer string, err error)

func (f agentFunc) Get(ctx context.Context, node string, _ netip.Addr, path string, query url.Values, into any) error {
	answer, err := f(ctx, node, path, query)
	if err != nil {
		return err
	}
	if d, ok := into.(decoder); ok {
		return d.decode(strings.NewReader(answer))
	}
	return json.Unmarshal([]byte(answer), into)
}

// Post implements Agents: the query has the body.
func (f agentFunc) Post(ctx context.Context, node string, hostIP netip.Addr, path string, object, into any) error {
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	return f.Get(ctx, node, hostIP, path, url.Values{"body": {string(body)}}, into)
}

func (f agentFunc) Stream(ctx context.Context, node string, _ netip.Addr, path string, query url.Values) (io.ReadCloser, error) {
	answer, err := f(ctx, node, path, query)
	return io.NopCloser(strings.NewReader(answer)), err
}

// answering returns agents that answer with the status of a ready node, or with the flows.
func answering(flows string) agentFunc {
	return func(_ context.Context, node, path string, _ url.Values) (string, error) {
		if path == diagnostics.FlowsPath {
			return flows, nil
		}
		return `{"metadata":{"name":"` + node + `"},"status":{"ready":true,"agentVersion":"v1.0","pods":3,"flows":200,"drift":1,"freeAddresses":5}}`, nil
	}
}

// fixture is a server behind TLS with a front proxy.
type fixture struct {
	*Server
	kube     *fake.Clientset
	network  *networkfake.Clientset
	policies *policyfake.Clientset

	url   string
	proxy *fakeca.Authority
	pool  *x509.CertPool // of the server

	mu      sync.Mutex
	reviews []authorizationv1.SubjectAccessReviewSpec
	allow   func(authorizationv1.SubjectAccessReviewSpec) (allowed bool, err error)
}

// newFixture serves the nodes. User admin may do everything.
func newFixture(tb testing.TB, nodes Nodes, agents Agents) *fixture {
	tb.Helper()
	f := &fixture{proxy: fakeca.New(tb, "front-proxy-ca"), allow: func(s authorizationv1.SubjectAccessReviewSpec) (bool, error) { return s.User == "admin", nil }}
	kube := fake.NewClientset()
	kube.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		f.mu.Lock()
		defer f.mu.Unlock()
		f.reviews = append(f.reviews, review.Spec)
		var err error
		review.Status.Allowed, err = f.allow(review.Spec)
		return true, review, err
	})
	f.kube, f.network, f.policies = kube, networkfake.NewClientset(), policyfake.NewClientset()
	f.Server = newServer(Config{Kube: kube, Network: f.network, Policies: f.policies, Agents: agents, Accept: func(*http.Request) {}}, nodes)
	f.Server.proxy.hasRead = func() bool { return true }
	f.publish(tb, configMap(f.proxy.PEM(), "front-proxy-client"))
	server := httptest.NewUnstartedServer(f.Server)
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	tb.Cleanup(server.Close)
	f.url, f.pool = server.URL, x509.NewCertPool()
	f.pool.AddCert(server.Certificate())
	return f
}

// publish makes the ConfigMap the current one.
func (f *fixture) publish(tb testing.TB, o *corev1.ConfigMap) {
	tb.Helper()
	headers, err := parseRequestHeaders(o)
	if err != nil {
		tb.Fatal(err)
	}
	f.Server.proxy.headers.Store(headers)
}

func (f *fixture) countReviews() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.reviews)
}

// client returns a client with the certificate, if any.
func (f *fixture) client(tb testing.TB, certificates ...tls.Certificate) *http.Client {
	tb.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: f.pool, Certificates: certificates, MinVersion: tls.VersionTLS12}}
	tb.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// response is an answer.
type response struct {
	code   int
	header http.Header
	body   string
}

// do sends a request with pairs of header names and values.
func do(tb testing.TB, client *http.Client, method, address string, headers ...string) response {
	tb.Helper()
	return doBody(tb, client, method, address, "", headers...)
}

// doBody sends a request with a body.
func doBody(tb testing.TB, client *http.Client, method, address, body string, headers ...string) response {
	tb.Helper()
	r, err := http.NewRequestWithContext(tb.Context(), method, address, strings.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	answer, err := client.Do(r)
	if err != nil {
		tb.Fatal(err)
	}
	defer answer.Body.Close()
	content, err := io.ReadAll(answer.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return response{answer.StatusCode, answer.Header, string(content)}
}

// get sends a request of the user through the front proxy.
func (f *fixture) get(tb testing.TB, user, path string, headers ...string) response {
	tb.Helper()
	client := f.client(tb, f.proxy.Issue(tb, "front-proxy-client", x509.ExtKeyUsageClientAuth))
	return do(tb, client, http.MethodGet, f.url+path, append([]string{"X-Remote-User", user}, headers...)...)
}

// decode decodes the body of an answer with the status code.
func decode[T any](tb testing.TB, r response, code int) (o T) {
	tb.Helper()
	if r.code != code {
		tb.Fatalf("got status %d with %.300s, want %d", r.code, r.body, code)
	}
	if err := json.Unmarshal([]byte(r.body), &o); err != nil {
		tb.Fatalf("%v in %.300s", err, r.body)
	}
	return o
}
