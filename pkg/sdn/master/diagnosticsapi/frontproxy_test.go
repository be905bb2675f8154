package diagnosticsapi

import (
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/test/fakeca"
)

// Headers of a client that is not the front proxy must not make it a user.
func TestServer_authenticatesFrontProxy(t *testing.T) {
	f := newFixture(t, nodes(1), answering(""))
	other := fakeca.New(t, "front-proxy-ca") // the same name, another key
	expired := f.Server.proxy.now
	for _, c := range []struct {
		name    string
		chain   []tls.Certificate
		headers []string
		now     func() time.Time
		code    int
		message string
	}{
		{"front proxy", []tls.Certificate{f.proxy.Issue(t, "front-proxy-client", x509.ExtKeyUsageClientAuth)}, []string{"X-Remote-User", "admin"}, nil, http.StatusOK, ""},
		{"no certificate", nil, []string{"X-Remote-User", "admin", "X-Remote-Group", "system:masters"}, nil, http.StatusUnauthorized, "client certificate of the front proxy is required"},
		{"wrong CA", []tls.Certificate{other.Issue(t, "front-proxy-client", x509.ExtKeyUsageClientAuth)}, []string{"X-Remote-User", "admin"}, nil, http.StatusUnauthorized, "verify client certificate"},
		{"name not allowed", []tls.Certificate{f.proxy.Issue(t, "tenant", x509.ExtKeyUsageClientAuth)}, []string{"X-Remote-User", "admin"}, nil, http.StatusUnauthorized, "requestheader-allowed-names"},
		{"serving certificate", []tls.Certificate{f.proxy.Issue(t, "front-proxy-client", x509.ExtKeyUsageServerAuth)}, []string{"X-Remote-User", "admin"}, nil, http.StatusUnauthorized, "verify client certificate"},
		{"expired", []tls.Certificate{f.proxy.Issue(t, "front-proxy-client", x509.ExtKeyUsageClientAuth)}, []string{"X-Remote-User", "admin"}, func() time.Time { return time.Now().Add(2 * time.Hour) }, http.StatusUnauthorized, "verify client certificate"},
		{"no user", []tls.Certificate{f.proxy.Issue(t, "front-proxy-client", x509.ExtKeyUsageClientAuth)}, []string{"X-Remote-Group", "system:masters"}, nil, http.StatusUnauthorized, "no header X-Remote-User"},
		{"empty user", []tls.Certificate{f.proxy.Issue(t, "front-proxy-client", x509.ExtKeyUsageClientAuth)}, []string{"X-Remote-User", ""}, nil, http.StatusUnauthorized, "no header X-Remote-User"},
	} {
		for _, path := range []string{versionPath, versionPath + "/nodestatuses", versionPath + "/unknown", "/metrics"} {
			f.Server.proxy.now = expired
			if c.now != nil {
				f.Server.proxy.now = c.now
			}
			r := do(t, f.client(t, c.chain...), http.MethodGet, f.url+path, c.headers...)
			want := c.code
			if c.code == http.StatusOK && (path == "/metrics" || strings.HasSuffix(path, "/unknown")) {
				want = http.StatusNotFound
			}
			status := metav1.Status{}
			if err := json.Unmarshal([]byte(r.body), &status); err != nil {
				t.Fatalf("%s: %v in %.200s", c.name, err, r.body)
			}
			if r.code != want || !strings.Contains(status.Message, c.message) && want == c.code {
				t.Errorf("%s, %s: got status %d with %.300s, want %d with %q", c.name, path, r.code, r.body, want, c.message)
			}
			if want == http.StatusUnauthorized && status.Reason != metav1.StatusReasonUnauthorized {
				t.Errorf("%s: got reason %q, want Unauthorized", c.name, status.Reason)
			}
		}
	}
	for _, review := range f.reviews {
		if review.User != "admin" || len(review.Groups) > 0 {
			t.Errorf("got a review of %+v, want only those of the front proxy", review)
		}
	}
}

// The client selects the certificates that it sends, which are verified before it is known: their number and their keys are limited.
func TestRequestHeaders_limitsCertificates(t *testing.T) {
	ca := fakeca.New(t, "front-proxy-ca")
	h := &requestHeaders{roots: ca.Pool()}
	client := ca.Issue(t, "front-proxy-client", x509.ExtKeyUsageClientAuth)
	leaf, err := x509.ParseCertificate(client.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	with := func(key any) *x509.Certificate { return &x509.Certificate{Raw: ca.Raw, PublicKey: key} }
	modulus := func(bits uint) *big.Int { return new(big.Int).Lsh(big.NewInt(1), bits-1) }
	for _, c := range []struct {
		name     string
		others   []*x509.Certificate
		accepted bool
	}{
		{"none", nil, true},
		{"four", slices.Repeat([]*x509.Certificate{ca.Certificate}, maxChain-1), true},
		{"five", slices.Repeat([]*x509.Certificate{ca.Certificate}, maxChain), false},
		{"common RSA key", []*x509.Certificate{with(&rsa.PublicKey{N: modulus(maxRSABits), E: maxRSAExponent})}, true},
		{"large RSA key", []*x509.Certificate{with(&rsa.PublicKey{N: modulus(2 * maxRSABits), E: maxRSAExponent})}, false},
		{"large RSA exponent", []*x509.Certificate{with(&rsa.PublicKey{N: modulus(2048), E: 1<<31 - 1})}, false},
	} {
		if err := h.verify(append([]*x509.Certificate{leaf}, c.others...), time.Now()); (err == nil) != c.accepted {
			t.Errorf("%s: got error %v, want accepted: %v", c.name, err, c.accepted)
		}
	}
}

func TestServer_acceptsAnyNameIfNoneIsListed(t *testing.T) {
	f := newFixture(t, nodes(1), answering(""))
	f.publish(t, configMap(f.proxy.PEM()))
	r := do(t, f.client(t, f.proxy.Issue(t, "any", x509.ExtKeyUsageClientAuth)), http.MethodGet, f.url+versionPath, "X-Remote-User", "u")
	if r.code != http.StatusOK {
		t.Errorf("got status %d with %.200s, want 200", r.code, r.body)
	}
}

func TestServer_acceptsNoClientWithoutConfigMap(t *testing.T) {
	f := newFixture(t, nodes(1), answering(""))
	f.Server.proxy.headers.Store(nil)
	for hasRead, want := range map[bool]string{true: "--requestheader-client-ca-file", false: "has not read ConfigMap"} {
		f.Server.proxy.hasRead = func() bool { return hasRead }
		r := f.get(t, "admin", versionPath)
		if status := decode[metav1.Status](t, r, http.StatusUnauthorized); !strings.Contains(status.Message, want) {
			t.Errorf("got message %q, want %q in it", status.Message, want)
		}
	}
}

// The user of the SubjectAccessReview is the one of the headers, with all its groups and extra fields.
func TestServer_reviewsUserOfHeaders(t *testing.T) {
	f := newFixture(t, nodes(1), answering(""))
	r := f.get(t, "admin", versionPath+"/nodestatuses/node0000", "X-Remote-Group", "a", "X-Remote-Group", "", "X-Remote-Group", "b", "X-Remote-Uid", "7",
		"X-Remote-Extra-Authentication.kubernetes.io%2fnode-Name", "n1", "X-Remote-Extra-Scopes", "x", "X-Remote-Extra-Scopes", "y", "X-Remote-Extra-%zz", "z",
		"Impersonate-User", "root", "Authorization", "Bearer t")
	if r.code != http.StatusOK {
		t.Fatalf("got status %d with %s", r.code, r.body)
	}
	want := []authorizationv1.SubjectAccessReviewSpec{{
		User: "admin", UID: "7", Groups: []string{"a", "b"},
		Extra:              map[string]authorizationv1.ExtraValue{"authentication.kubernetes.io/node-name": {"n1"}, "scopes": {"x", "y"}, "%zz": {"z"}},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Group: "diagnostics.ovsdn.io", Version: "v1alpha1", Resource: "nodestatuses", Verb: "get", Name: "node0000"},
	}}
	if diff := cmp.Diff(want, f.reviews); diff != "" {
		t.Errorf("reviews (-want +got):\n%s", diff)
	}
}

func TestParseRequestHeaders_invalid(t *testing.T) {
	ca := fakeca.New(t, "ca").PEM()
	for name, change := range map[string]func(map[string]string){
		"no PEM":           func(d map[string]string) { d[caKey] = "x" },
		"empty CA":         func(d map[string]string) { d[caKey] = "" },
		"names no list":    func(d map[string]string) { d[allowedNamesKey] = "front-proxy-client" },
		"empty header":     func(d map[string]string) { d[groupHeadersKey] = `[""]` },
		"empty prefix":     func(d map[string]string) { d[extraHeaderPrefix] = `[""]` },
		"no user header":   func(d map[string]string) { delete(d, userHeadersKey) },
		"null user header": func(d map[string]string) { d[userHeadersKey] = "null" },
	} {
		o := configMap(ca)
		change(o.Data)
		if headers, err := parseRequestHeaders(o); err == nil || headers != nil {
			t.Errorf("%s: got %v, want an error", name, headers)
		}
	}
	o := configMap(ca)
	delete(o.Data, caKey)
	if headers, err := parseRequestHeaders(o); err != nil || headers != nil {
		t.Errorf("without a front proxy: got %v, %v, want none", headers, err)
	}
}

// Different users must never have the same hash: a cached right of one would be that of another.
func TestUserHash_distinguishes(t *testing.T) {
	extra := func(pairs ...string) map[string]authorizationv1.ExtraValue {
		m := map[string]authorizationv1.ExtraValue{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = append(m[pairs[i]], pairs[i+1])
		}
		return m
	}
	users := []user{
		{}, {name: "a"}, {uid: "a"}, {groups: []string{"a"}}, {groups: []string{""}}, {groups: []string{"", ""}}, {name: "ab"}, {name: "a", uid: "b"},
		{groups: []string{"a", "b"}}, {groups: []string{"ab"}}, {groups: []string{"b", "a"}}, {extra: extra("a", "b")}, {extra: extra("a", "b", "c", "d")},
		{extra: extra("a", "b", "a", "c")}, {extra: extra("a", "bc")}, {groups: []string{"a"}, extra: extra("b", "c")}, {groups: []string{"a", "b", "c"}},
	}
	seen := map[[32]byte]int{}
	for i, u := range users {
		if j, ok := seen[u.hash()]; ok {
			t.Errorf("users %+v and %+v have the same hash", users[j], u)
		}
		seen[u.hash()] = i
	}
}
