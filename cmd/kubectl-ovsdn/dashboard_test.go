package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
)

const (
	testAddress   = "127.0.0.1:8001"
	userToken     = "token-of-the-user"
	emptyList     = `{"metadata":{},"items":[]}`
	anyTrace      = `{"source":"pod/shop/web","destination":"pod/shop/db","protocol":"TCP","port":80}`
	forbiddenText = `pods is forbidden: User \"tenant\" cannot list resource \"pods\"`
)

// apiTransport is an API server that records requests.
type apiTransport struct {
	answer func(*http.Request) (*http.Response, error) // nil: an empty list

	mu       sync.Mutex
	requests []string // method, URI and body
}

func (a *apiTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	text := r.Method + " " + r.URL.RequestURI()
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		text += " " + string(body)
	}
	a.mu.Lock()
	a.requests = append(a.requests, text)
	a.mu.Unlock()
	if got := r.Header.Get("Authorization"); got != "Bearer "+userToken {
		return nil, fmt.Errorf("got credentials %q, want those of the user", got)
	}
	if a.answer != nil {
		return a.answer(r)
	}
	return jsonResponse(http.StatusOK, emptyList), nil
}

func (a *apiTransport) received() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	got := a.requests
	a.requests = nil
	return got
}

func jsonResponse(code int, body string) *http.Response {
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body))}
}

func newTestDashboard(t testing.TB, api *apiTransport) *dashboard {
	t.Helper()
	d, err := newDashboard(&rest.Config{Host: "http://api.test", BearerToken: userToken, Transport: api}, testAddress)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// path returns the path of a file of the page.
func (d *dashboard) path(file string) string { return "/" + d.page + "/" + file }

// ask sends a request as the page does, changed by change.
func (d *dashboard) ask(method, path, body string, change func(*http.Request)) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, "http://"+testAddress+path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+d.token)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	d.ServeHTTP(w, r)
	return w
}

func TestDashboard_requests(t *testing.T) {
	api := &apiTransport{}
	d := newTestDashboard(t, api)
	for _, tc := range []struct{ method, path, body, want string }{
		{"GET", "/api/nodestatuses", "", "GET " + diagnosticsPath + "/nodestatuses?limit=500"},
		{"GET", "/api/nodestatuses?continue=a%26b%3D1&watch=true", "", "GET " + diagnosticsPath + "/nodestatuses?continue=a%26b%3D1&limit=500"},
		{"GET", "/api/nodeflows/node1.example?object=pod/a/b", "", "GET " + diagnosticsPath + "/nodeflows/node1.example"},
		{"GET", "/api/namespaces?limit=7", "", "GET /api/v1/namespaces?limit=7"},
		{"GET", "/api/netnamespaces", "", "GET /apis/network.openshift.io/v1/netnamespaces?limit=500"},
		{"GET", "/api/namespaces/shop/pods?limit=1", "", "GET /api/v1/namespaces/shop/pods?limit=1"},
		{"GET", "/api/tables", "", ""},
		{"GET", d.path(""), "", ""},
		{"GET", d.path("main.js"), "", ""},
	} {
		w := d.ask(tc.method, tc.path, tc.body, nil)
		if got := strings.Join(api.received(), "\n"); w.Code != http.StatusOK || got != tc.want {
			t.Errorf("%s %s: got status %d and the request %q, want %q", tc.method, tc.path, w.Code, got, tc.want)
		}
	}
	w := d.ask("POST", "/api/namespaces/shop/traces", anyTrace, nil)
	got := strings.Join(api.received(), "\n")
	if before, sent, _ := strings.Cut(got, " {"); w.Code != http.StatusOK || before != "POST "+diagnosticsPath+"/namespaces/shop/traces" || !strings.Contains(sent, `"spec":`+anyTrace) {
		t.Errorf("trace: got status %d and the request %q", w.Code, got)
	}
}

func TestDashboard_refuses(t *testing.T) {
	api := &apiTransport{}
	d := newTestDashboard(t, api)
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	host := func(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }
	const trace = "/api/namespaces/shop/traces"
	for name, tc := range map[string]struct {
		method, path, body string
		change             func(*http.Request)
		want               int
	}{
		"no token":               {"GET", "/api/nodestatuses", "", func(r *http.Request) { r.Header.Del("Authorization") }, 401},
		"another token":          {"GET", "/api/nodestatuses", "", header("Authorization", "Bearer "+strings.Repeat("A", len(d.token))), 401},
		"the user's token":       {"GET", "/api/nodestatuses", "", header("Authorization", "Bearer "+userToken), 401},
		"token in the query":     {"GET", "/api/nodestatuses?token=" + d.token, "", func(r *http.Request) { r.Header.Del("Authorization") }, 401},
		"DNS rebinding":          {"GET", "/api/nodestatuses", "", host("attacker.example:8001"), 403},
		"page by another name":   {"GET", d.path(""), "", host("attacker.example:8001"), 403},
		"page by localhost":      {"GET", d.path(""), "", host("localhost:8001"), 403},
		"localhost":              {"GET", "/api/nodestatuses", "", host("localhost:8001"), 403},
		"another port":           {"GET", "/api/nodestatuses", "", host("127.0.0.1:8002"), 403},
		"no port":                {"GET", "/api/nodestatuses", "", host("127.0.0.1"), 403},
		"POST of another origin": {"POST", trace, anyTrace, header("Origin", "http://attacker.example"), 403},
		"POST of another site":   {"POST", trace, anyTrace, header("Sec-Fetch-Site", "cross-site"), 403},
		"POST of another port":   {"POST", trace, anyTrace, header("Origin", "http://127.0.0.1:8002"), 403},
		"preflight":              {"OPTIONS", trace, "", header("Origin", "http://attacker.example"), 404},
		"form":                   {"POST", trace, anyTrace, header("Content-Type", "text/plain"), 415},
		"unknown path":           {"GET", "/api/v1/secrets", "", nil, 404},
		"all pods":               {"GET", "/api/pods", "", nil, 404},
		"one pod":                {"GET", "/api/namespaces/shop/pods/web", "", nil, 404},
		"path of the API":        {"GET", diagnosticsPath + "/nodestatuses", "", nil, 404},
		"dots in a name":         {"GET", "/api/namespaces/..%2f..%2fsecrets/pods", "", nil, 404},
		"dots as a name":         {"GET", "/api/namespaces/%2e%2e/pods", "", nil, 404},
		"slash in a node":        {"GET", "/api/nodeflows/a%2fb", "", nil, 404},
		"query in a node":        {"GET", "/api/nodeflows/a%3fwatch=1", "", nil, 404},
		"probe":                  {"POST", "/api/namespaces/shop/probes", anyTrace, nil, 404},
		"creation of a pod":      {"POST", "/api/namespaces/shop/pods", "{}", nil, 404},
		"deletion":               {"DELETE", "/api/namespaces/shop/pods", "", nil, 404},
		"update":                 {"PATCH", "/api/namespaces/shop/traces", anyTrace, nil, 404},
		"unknown field":          {"POST", trace, `{"source":"pod/a/b","kind":"Pod"}`, nil, 400},
		"no JSON":                {"POST", trace, `<x>`, nil, 400},
		"two objects":            {"POST", trace, anyTrace + anyTrace, nil, 400},
		"a large body":           {"POST", trace, `{"source":"` + strings.Repeat("a", maxTraceSpec) + `"}`, nil, 413},
		"a long token of a list": {"GET", "/api/namespaces?continue=" + strings.Repeat("a", maxContinue+1), "", nil, 400},
		"a limit of 0":           {"GET", "/api/namespaces?limit=0", "", nil, 400},
		"a limit of 501":         {"GET", "/api/namespaces?limit=501", "", nil, 400},
		"page at no path":        {"GET", "/", "", nil, 404},
		"script at no path":      {"GET", "/main.js", "", nil, 404},
		"page of another run":    {"GET", "/" + strings.Repeat("A", len(d.page)) + "/", "", nil, 404},
		"POST to the page":       {"POST", d.path(""), "", nil, 405},
	} {
		w := d.ask(tc.method, tc.path, tc.body, tc.change)
		if got := api.received(); w.Code != tc.want || len(got) > 0 {
			t.Errorf("%s: got status %d and the requests %q, want %d and none", name, w.Code, got, tc.want)
		}
	}
}

// Browsers omit port 80.
func TestDashboard_port80(t *testing.T) {
	for address, accepted := range map[string]string{"127.0.0.1:80": "127.0.0.1", "[::1]:80": "[::1]"} {
		d, err := newDashboard(&rest.Config{Host: "http://api.test"}, address)
		if err != nil {
			t.Fatal(err)
		}
		for host, want := range map[string]int{accepted: 200, address: 200, "localhost": 403, accepted + ":8080": 403} {
			if w := d.ask("GET", "/api/tables", "", func(r *http.Request) { r.Host = host }); w.Code != want {
				t.Errorf("%s: got status %d for Host %s, want %d", address, w.Code, host, want)
			}
		}
	}
}

func TestDashboard_headers(t *testing.T) {
	d := newTestDashboard(t, &apiTransport{})
	// The file server removes Cache-Control from its own errors, so no missing file is here.
	for path, code := range map[string]int{
		d.path(""): 200, d.path("main.js"): 200, d.path("style.css"): 200, d.path("icon.svg"): 200, "/api/nodestatuses": 200, "/api/missing": 404,
	} {
		w := d.ask("GET", path, "", nil)
		h := w.Result().Header
		if csp := h.Get("Content-Security-Policy"); w.Code != code || !strings.Contains(csp, "default-src 'none'") || !strings.Contains(csp, "frame-ancestors 'none'") ||
			strings.Contains(csp, "unsafe") || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cache-Control") != "no-store" || len(h.Values("Access-Control-Allow-Origin")) > 0 {
			t.Errorf("%s: got status %d, want %d, and the headers %v", path, w.Code, code, h)
		}
	}
}

// The page has no script or style in its HTML, which its policy refuses, loads nothing from elsewhere, and never parses a string as HTML.
func TestDashboard_page(t *testing.T) {
	unwanted := regexp.MustCompile(`(?i)innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|https?://|(src|href)="//|<[a-z][^>]* (style|on[a-z]+)=|<style|<script>|createContextualFragment`)
	files := 0
	err := fs.WalkDir(dashboardFiles, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		files++
		content, err := dashboardFiles.ReadFile(path)
		text := strings.ReplaceAll(string(content), "http://www.w3.org/2000/svg", "")
		if found := unwanted.FindAllString(text, -1); len(found) > 0 {
			t.Errorf("%s: got %q", path, found)
		}
		return err
	})
	if err != nil || files < 8 {
		t.Errorf("got %d files and the error %v", files, err)
	}
}

func TestDashboard_noCredentials(t *testing.T) {
	const secret, jwt = "password-of-a-pod", "eyJhbGciOiJSUzI1.eyJpc3MiOiJrdWJl.c2lnbmF0dXJlMTIz"
	api := &apiTransport{answer: func(r *http.Request) (*http.Response, error) {
		answer := jsonResponse(http.StatusOK, `{"metadata":{"remainingItemCount":41},"items":[{"metadata":{"name":"web","annotations":{"applied":"`+secret+`"}},"spec":{"env":"`+secret+`"}}]}`)
		switch {
		case strings.HasSuffix(r.URL.Path, "/netnamespaces"):
			answer = jsonResponse(http.StatusOK, `{"items":[{"metadata":{"name":"shop","annotations":{"a":"`+secret+`"}},"netname":"shop","netid":17}]}`)
		case strings.HasSuffix(r.URL.Path, "/namespaces"):
			return nil, errors.New("authenticate: Bearer " + userToken + ": " + jwt)
		}
		answer.Header.Set("Set-Cookie", secret)
		answer.Header.Set("Authorization", secret)
		return answer, nil
	}}
	d := newTestDashboard(t, api)
	for path, want := range map[string]string{
		"/api/namespaces/shop/pods": `{"items":[{"name":"web"}],"remaining":41}`, "/api/netnamespaces": `{"items":[{"name":"shop","vnid":17}],"remaining":0}`, "/api/namespaces": "does not answer",
	} {
		w := d.ask("GET", path, "", nil)
		whole := fmt.Sprint(w.Result().Header) + w.Body.String()
		if !strings.Contains(whole, want) || strings.Contains(whole, secret) || strings.Contains(whole, userToken) || strings.Contains(whole, jwt) {
			t.Errorf("%s: got %s, want %q without credentials", path, whole, want)
		}
	}
}

func TestDashboard_errors(t *testing.T) {
	status := func(code int, message string) string {
		return fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"message":"%s"}`, code, message)
	}
	for name, tc := range map[string]struct {
		answerCode int // 0: no connection
		answer     string
		path       string
		code       int
		want       string
	}{
		"no right":            {403, status(403, forbiddenText), "/api/namespaces/shop/pods", 403, `cannot list resource "pods"`},
		"expired credentials": {401, status(401, "Unauthorized"), "/api/nodestatuses", 502, "does not accept your credentials: Unauthorized; log in"},
		"no controller":       {503, status(503, "error trying to reach service"), "/api/nodestatuses", 503, "check that ovsdn-controller runs"},
		"no API group":        {404, "404 page not found", "/api/nodestatuses", 404, "apply deploy/base of this version"},
		"no JSON":             {200, "<html>", "/api/namespaces", 502, "decode the answer of the API server: invalid character"},
		"another object":      {200, `{"items":{}}`, "/api/namespaces", 502, "decode the answer of the API server: it is not a list"},
		"a part of a list":    {200, `{"items":[{"metadata":{"name":"a"}}`, "/api/netnamespaces", 502, "decode the answer of the API server: unexpected EOF"},
		"no connection":       {0, "", "/api/nodestatuses", 502, "the API server does not answer"},
	} {
		d := newTestDashboard(t, &apiTransport{answer: func(*http.Request) (*http.Response, error) {
			if tc.answerCode == 0 {
				return nil, errors.New("connection refused")
			}
			return jsonResponse(tc.answerCode, tc.answer), nil
		}})
		w := d.ask("GET", tc.path, "", nil)
		var got struct{ Message string }
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != tc.code || !strings.Contains(got.Message, tc.want) {
			t.Errorf("%s: got status %d, %s (%v), want %d, %q", name, w.Code, w.Body, err, tc.code, tc.want)
		}
	}
}

// An answer that ends early is no complete one for the browser.
func TestDashboard_partialAnswer(t *testing.T) {
	d := newTestDashboard(t, &apiTransport{answer: func(*http.Request) (*http.Response, error) {
		answer := jsonResponse(http.StatusOK, "")
		answer.Body = io.NopCloser(io.MultiReader(strings.NewReader(emptyList), brokenReader{}))
		return answer, nil
	}})
	server := httptest.NewServer(d)
	defer server.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/api/nodestatuses", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = testAddress
	r.Header.Set("Authorization", "Bearer "+d.token)
	answer, err := server.Client().Do(r)
	if err == nil {
		defer answer.Body.Close()
		_, err = io.ReadAll(answer.Body)
	}
	if err == nil {
		t.Error("got no error")
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errors.New("connection reset") }

func TestDashboard_limits(t *testing.T) {
	arrived, release := make(chan struct{}), make(chan struct{})
	d := newTestDashboard(t, &apiTransport{answer: func(*http.Request) (*http.Response, error) {
		arrived <- struct{}{}
		<-release
		return jsonResponse(http.StatusOK, emptyList), nil
	}})
	var asked sync.WaitGroup
	for range maxRequests {
		asked.Go(func() { d.ask("GET", "/api/nodestatuses", "", nil) })
		<-arrived
	}
	if w := d.ask("GET", "/api/nodestatuses", "", nil); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" {
		t.Errorf("request %d at the same time: got status %d", maxRequests+1, w.Code)
	}
	close(release)
	asked.Wait()
	refused := 0
	for range 2 * requestsBurst {
		if w := d.ask("GET", "/api/tables", "", nil); w.Code == http.StatusTooManyRequests {
			refused++
		}
	}
	if refused == 0 {
		t.Errorf("got all of %d requests at once answered", 2*requestsBurst)
	}
}

func TestDashboardCommand(t *testing.T) {
	api := newFakeAPI(t, map[string]any{diagnosticsPath + "/nodestatuses": nodeStatuses(readyStatus())})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	read, write := io.Pipe()
	ended := make(chan int)
	go func() {
		ended <- run(ctx, []string{"--server", api.url, "--kubeconfig=/dev/null", "dashboard"}, genericiooptions.IOStreams{Out: write, ErrOut: io.Discard})
	}()
	line, err := bufio.NewReader(read).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	page, err := url.Parse(strings.TrimSpace(line))
	if err != nil || page.Hostname() != "127.0.0.1" || !regexp.MustCompile(`^/[A-Z2-7]{26}/$`).MatchString(page.Path) {
		t.Fatalf("got %q (%v), want a URL with a random path", line, err)
	}
	token := strings.TrimPrefix(page.Fragment, "token=")
	for path, want := range map[string]string{page.Path: "<title>ovsdn</title>", "/api/nodestatuses": `"node1"`} {
		target := url.URL{Scheme: page.Scheme, Host: page.Host, Path: path}
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || answer.StatusCode != http.StatusOK || !strings.Contains(string(body), want) {
			t.Errorf("%s: got status %d, %s (%v), want %q", path, answer.StatusCode, body, err, want)
		}
	}
	cancel()
	if code := <-ended; code != exitOK {
		t.Errorf("got exit code %d after the end of the context", code)
	}
	for _, args := range [][]string{{"--address=0.0.0.0"}, {"--address=192.0.2.1"}, {"--address=::"}, {"--address=localhost"}, {"--port=70000"}, {"node1"}} {
		refused, stop := context.WithTimeout(t.Context(), 10*time.Second) // a dashboard that does not refuse them serves until then
		code, out, errOut := api.run(refused, append([]string{"dashboard"}, args...)...)
		stop()
		if code != exitUsage || out != "" || !strings.Contains(errOut, "--help") {
			t.Errorf("%v: got exit code %d, %q, %q, want a usage error", args, code, out, errOut)
		}
	}
}
