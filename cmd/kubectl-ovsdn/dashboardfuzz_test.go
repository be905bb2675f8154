package main

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

// FuzzDashboard checks that no request makes one to the API server that the page does not need.
func FuzzDashboard(f *testing.F) {
	f.Add("GET", "/api/namespaces/shop/pods?limit=1&continue=x", "")
	f.Add("POST", "/api/namespaces/shop/traces", anyTrace)
	f.Add("GET", "/api/nodeflows/..%2f..%2f..%2fapi%2fv1%2fsecrets", "")
	f.Add("GET", "//api/../apis/x?a=%00;b", "")
	f.Add("DELETE", "/api/namespaces/shop/pods", "{}")
	allowed := regexp.MustCompile(`^(GET /(apis/diagnostics\.ovsdn\.io/v1alpha1/(nodestatuses\?|nodeflows/[a-z0-9.-]+$)|api/v1/namespaces(/[a-z0-9-]+/pods)?\?|apis/network\.openshift\.io/v1/netnamespaces\?)` +
		`((continue=[^&]*&)?limit=[0-9]+)?|POST /apis/diagnostics\.ovsdn\.io/v1alpha1/namespaces/[a-z0-9-]+/traces [^\n]*)$`)
	f.Fuzz(func(t *testing.T, method, path, body string) {
		r, err := http.NewRequest(method, "http://"+testAddress, strings.NewReader(body))
		if err != nil {
			return // not a request
		}
		if r.URL, err = url.ParseRequestURI(path); err != nil {
			return // not a request
		}
		api := &apiTransport{}
		d := newTestDashboard(t, api)
		r.Header.Set("Authorization", "Bearer "+d.token)
		r.Header.Set("Content-Type", "application/json")
		r.Host = testAddress
		d.ServeHTTP(httptest.NewRecorder(), r)
		for _, got := range api.received() {
			if !allowed.MatchString(got) {
				t.Errorf("%s %s: got the request %q", method, path, got)
			}
		}
	})
}
