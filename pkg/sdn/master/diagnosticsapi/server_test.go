package diagnosticsapi

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

const statusesPath = versionPath + "/nodestatuses"

func TestServer_refusesAsKubectlPrintsIt(t *testing.T) {
	f := newFixture(t, nodes(1), answering(""))
	for path, want := range map[string]string{
		"/nodestatuses/node0000":                  `nodestatuses.diagnostics.ovsdn.io "node0000" is forbidden: User "tenant" cannot get resource "nodestatuses" in API group "diagnostics.ovsdn.io" at the cluster scope`,
		"/nodestatuses/missing":                   `nodestatuses.diagnostics.ovsdn.io "missing" is forbidden: User "tenant" cannot get resource "nodestatuses" in API group "diagnostics.ovsdn.io" at the cluster scope`,
		"/nodestatuses":                           `nodestatuses.diagnostics.ovsdn.io is forbidden: User "tenant" cannot list resource "nodestatuses" in API group "diagnostics.ovsdn.io" at the cluster scope`,
		"/nodetraffics":                           `nodetraffics.diagnostics.ovsdn.io is forbidden: User "tenant" cannot list resource "nodetraffics" in API group "diagnostics.ovsdn.io" at the cluster scope`,
		"/nodetraffics/node0000":                  `nodetraffics.diagnostics.ovsdn.io "node0000" is forbidden: User "tenant" cannot get resource "nodetraffics" in API group "diagnostics.ovsdn.io" at the cluster scope`,
		"/nodeflows/node0000?object=pod/tenant/p": `nodeflows.diagnostics.ovsdn.io "node0000" is forbidden: User "tenant" cannot get resource "nodeflows" in API group "diagnostics.ovsdn.io" at the cluster scope`,
	} {
		r := f.get(t, "tenant", versionPath+path)
		if status := decode[metav1.Status](t, r, http.StatusForbidden); status.Message != want || status.Reason != metav1.StatusReasonForbidden || status.Kind != "Status" {
			t.Errorf("%s: got %+v, want message %q", path, status, want)
		}
	}
	if r := f.get(t, "tenant", versionPath); r.code != http.StatusOK {
		t.Errorf("discovery: got status %d, want 200 for any user", r.code)
	}
}

func TestServer_paths(t *testing.T) {
	f := newFixture(t, nodes(1), answering(`{"flows":[]}`))
	for path, want := range map[string]int{
		"/nodestatuses/node0000": http.StatusOK, "/nodestatuses/missing": http.StatusNotFound, "/nodeflows/node0000": http.StatusOK, "/nodeflows/missing": http.StatusNotFound,
		"/nodetraffics": http.StatusOK, "/nodetraffics/node0000": http.StatusOK, "/nodetraffics/missing": http.StatusNotFound, "/nodetraffics?watch=1": http.StatusMethodNotAllowed,
		"/nodeflows": http.StatusMethodNotAllowed, "/nodestatuses?watch=true": http.StatusMethodNotAllowed, "/nodestatuses?watch": http.StatusMethodNotAllowed,
		"/nodestatuses?watch=false": http.StatusOK, "/nodestatuses/node0000/status": http.StatusNotFound, "/nodestatuses/": http.StatusNotFound,
		"/nodestatuses/a%2Fb": http.StatusNotFound, "/nodestatuses/" + strings.Repeat("n", 254): http.StatusNotFound, "/pods": http.StatusNotFound, "/nodestatuses?a=%zz": http.StatusBadRequest,
		"/traces": http.StatusNotFound, "/namespaces/a/traces": http.StatusMethodNotAllowed, "/namespaces/a/probes": http.StatusMethodNotAllowed, "/probes": http.StatusNotFound, "/namespaces/a/traces/x": http.StatusNotFound, "/namespaces/a/pods": http.StatusNotFound,
		"/namespaces/A/traces": http.StatusNotFound, "/namespaces//traces": http.StatusNotFound, "/nodestatuses?limit=-1": http.StatusBadRequest, "/nodestatuses?limit=x": http.StatusBadRequest, "/nodestatuses?continue=!": http.StatusBadRequest,
		"/nodestatuses?labelSelector=a%20b%20c": http.StatusBadRequest, "/nodestatuses?fieldSelector=spec.x%3D1": http.StatusBadRequest,
		"/nodestatuses?fieldSelector=metadata.name%21%3Da": http.StatusBadRequest, "/nodestatuses?fieldSelector=metadata.name%3Da%2Cmetadata.name%3Db": http.StatusBadRequest,
		"/nodestatuses?fieldSelector=metadata.name%3Dnode0000": http.StatusOK, "/nodeflows/node0000?object=a&object=b": http.StatusBadRequest,
		"/nodeflows/node0000?object=a%0Ab": http.StatusBadRequest, "/nodeflows/node0000?object=" + strings.Repeat("a", 601): http.StatusBadRequest,
	} {
		if r := f.get(t, "admin", versionPath+path); r.code != want {
			t.Errorf("%s: got status %d with %.200s, want %d", path, r.code, r.body, want)
		}
	}
	client := f.client(t, f.proxy.Issue(t, "front-proxy-client", x509.ExtKeyUsageClientAuth))
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, "WATCH"} {
		for _, path := range []string{versionPath, versionPath + "/nodestatuses", versionPath + "/nodestatuses/node0000"} {
			if r := do(t, client, method, f.url+path, "X-Remote-User", "admin"); r.code != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: got status %d, want 405", method, path, r.code)
			}
		}
	}
	if r := do(t, client, http.MethodHead, f.url+statusesPath, "X-Remote-User", "admin"); r.code != http.StatusOK || r.body != "" {
		t.Errorf("HEAD: got status %d with %q, want 200 without a body", r.code, r.body)
	}
}

// Accepted and refused results are retained for ten seconds, for the same user, verb, resource and name only.
func TestServer_retainsReviews(t *testing.T) {
	f := newFixture(t, nodes(2), answering(""))
	synctest.Test(t, func(t *testing.T) {
		ask := func(name, verb, resource, node string) bool {
			t.Helper()
			allowed, _, err := f.authorizer.allowed(t.Context(), user{name: name}, access{verb: verb, resource: resource, name: node})
			if err != nil {
				t.Fatal(err)
			}
			return allowed
		}
		f.authorizer = newAuthorizer(f.Kube.AuthorizationV1().SubjectAccessReviews())
		f.allow = func(s authorizationv1.SubjectAccessReviewSpec) (bool, error) {
			return s.User == "u" && s.ResourceAttributes.Name == "node0000" && s.ResourceAttributes.Verb == "get" && s.ResourceAttributes.Resource == statuses, nil
		}
		for range 3 {
			for want, allowed := range map[access]bool{
				{verb: "get", resource: statuses, name: "node0000"}: true, {verb: "get", resource: statuses, name: "node0001"}: false,
				{verb: "list", resource: statuses, name: "node0000"}: false, {verb: "get", resource: flows, name: "node0000"}: false,
			} {
				if got := ask("u", want.verb, want.resource, want.name); got != allowed {
					t.Errorf("%+v: got %v, want %v", want, got, allowed)
				}
			}
			if ask("v", "get", statuses, "node0000") {
				t.Error("another user has the right")
			}
		}
		if got := f.countReviews(); got != 5 {
			t.Errorf("got %d reviews, want 5", got)
		}
		f.allow = func(authorizationv1.SubjectAccessReviewSpec) (bool, error) { return false, nil }
		time.Sleep(reviewLifetime + time.Second) //nolint:forbidigo // of the bubble
		if ask("u", "get", statuses, "node0000") {
			t.Error("a revoked right is still accepted after its lifetime")
		}
	})
}

func TestServer_failsClosedWithoutReviews(t *testing.T) {
	f := newFixture(t, nodes(1), answering(""))
	f.allow = func(authorizationv1.SubjectAccessReviewSpec) (bool, error) { return true, errors.New("secret detail") }
	r := f.get(t, "admin", statusesPath)
	if status := decode[metav1.Status](t, r, http.StatusServiceUnavailable); strings.Contains(r.body, "secret") || status.Reason != metav1.StatusReasonServiceUnavailable {
		t.Errorf("got %+v", status)
	}
	f.allow = func(s authorizationv1.SubjectAccessReviewSpec) (bool, error) { return true, nil }
	if r := f.get(t, "admin", statusesPath); r.code != http.StatusOK {
		t.Errorf("got status %d after the API server recovered, want 200", r.code)
	}
}

func TestServer_pages(t *testing.T) {
	all := nodes(7)
	for i := range all {
		all[i].Labels = map[string]string{"odd": fmt.Sprint(i % 2)}
	}
	f := newFixture(t, all, answering(""))
	list := func(query string) (names []string, meta metav1.ListMeta) {
		t.Helper()
		o := decode[diagnostics.NodeStatusList](t, f.get(t, "admin", statusesPath+query), http.StatusOK)
		if o.Kind != "NodeStatusList" || o.APIVersion != "diagnostics.ovsdn.io/v1alpha1" || o.Items == nil {
			t.Errorf("got %+v", o.TypeMeta)
		}
		for _, item := range o.Items {
			names = append(names, strings.TrimPrefix(item.Name, "node000"))
		}
		return names, o.ListMeta
	}
	var pages []string
	next := ""
	for {
		names, meta := list("?limit=3&continue=" + url.QueryEscape(next))
		pages = append(pages, strings.Join(names, ""))
		if rest := meta.RemainingItemCount; len(pages) == 1 && (rest == nil || *rest != 4) {
			t.Errorf("got %v remaining items, want 4", rest)
		}
		if next = meta.Continue; next == "" {
			break
		}
	}
	if diff := cmp.Diff([]string{"012", "345", "6"}, pages); diff != "" {
		t.Errorf("pages (-want +got):\n%s", diff)
	}
	for query, want := range map[string]string{
		"": "0123456", "?labelSelector=odd%3D1": "135", "?labelSelector=odd%3D1&limit=2": "13", "?fieldSelector=metadata.name%3Dnode0004": "4",
		"?fieldSelector=metadata.name%3Dmissing": "", "?limit=0": "0123456", "?limit=7": "0123456", "?labelSelector=%21odd": "", "?fieldSelector=": "0123456",
	} {
		if names, _ := list(query); strings.Join(names, "") != want {
			t.Errorf("%s: got %v, want %s", query, names, want)
		}
	}
	for _, review := range f.reviews {
		if a := review.ResourceAttributes; a.Name == "node0004" && a.Verb != "list" {
			t.Errorf("got verb %s for a field selector, want list", a.Verb)
		}
	}
}

// Five thousand nodes are asked in parallel, of which at most maxParallel at once.
func TestServer_listsAllNodesWithBoundedParallelism(t *testing.T) {
	const n = 5000
	var running, most atomic.Int64
	release := make(chan struct{})
	f := newFixture(t, nodes(n), agentFunc(func(_ context.Context, node, _ string, _ url.Values) (string, error) {
		if now := running.Add(1); now > most.Load() {
			most.Store(now)
			if now == maxParallel {
				close(release)
			}
		}
		<-release
		running.Add(-1)
		return `{"metadata":{"name":"` + node + `"},"status":{"ready":true}}`, nil
	}))
	o := decode[diagnostics.NodeStatusList](t, f.get(t, "admin", statusesPath), http.StatusOK)
	if len(o.Items) != n || o.Items[n-1].Name != "node4999" || !o.Items[n-1].Status.Ready {
		t.Errorf("got %d nodes, want %d", len(o.Items), n)
	}
	if got := most.Load(); got != maxParallel {
		t.Errorf("got %d requests at once, want %d", got, maxParallel)
	}
}

// An agent that does not answer delays a list by statusTimeout, and the list has a result for it. All of them end with listTimeout.
func TestServer_limitsTimeOfList(t *testing.T) {
	silent := agentFunc(func(ctx context.Context, _, _ string, _ url.Values) (string, error) {
		<-ctx.Done()
		return "", ctx.Err()
	})
	f := newFixture(t, nodes(0), silent)
	for n, want := range map[int]time.Duration{1: statusTimeout, maxParallel + 1: 2 * statusTimeout, 5000: listTimeout} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), listTimeout)
			defer cancel()
			items := f.statuses(ctx, nodes(n))
			if got := time.Since(start); got != want {
				t.Errorf("%d nodes: took %v, want %v", n, got, want)
			}
			for _, item := range items {
				if message := item.Status.Error; !strings.HasPrefix(message, "timeout") && (n < 5000 || !strings.HasPrefix(message, "not asked")) {
					t.Fatalf("%s: got error %q, want timeout", item.Name, message)
				}
			}
		})
	}
}

func TestServer_limitsListsAtOnce(t *testing.T) {
	f := newFixture(t, nodes(1), answering(`{"flows":[]}`))
	for path, semaphore := range map[string]chan struct{}{"/nodestatuses": f.lists, "/nodeflows/node0000": f.dumps, "/nodetraffics": f.samples} {
		for range cap(semaphore) {
			semaphore <- struct{}{}
		}
		if r := f.get(t, "admin", versionPath+path); r.code != http.StatusTooManyRequests || r.header.Get("Retry-After") != "2" {
			t.Errorf("%s: got status %d, Retry-After %q, want 429 and 2", path, r.code, r.header.Get("Retry-After"))
		}
		for range cap(semaphore) {
			<-semaphore
		}
		for range cap(semaphore) + 1 { // released each time
			if r := f.get(t, "admin", versionPath+path); r.code != http.StatusOK {
				t.Errorf("%s: got status %d with %s, want 200", path, r.code, r.body)
			}
		}
	}
}

func TestServer_waitsForNodes(t *testing.T) {
	f := newFixture(t, nodeList(nil), answering(""))
	for path, want := range map[string]int{"": http.StatusOK, "/nodestatuses": http.StatusServiceUnavailable, "/nodestatuses/a": http.StatusServiceUnavailable} {
		if r := f.get(t, "admin", versionPath+path); r.code != want {
			t.Errorf("%s: got status %d, want %d", path, r.code, want)
		}
	}
}
