package master_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
)

// slowProxy is a proxy to the API server. It can delay requests of a controller, as if the controller had been suspended between its
// decision and the write, or the network had delayed the packet.
type slowProxy struct {
	config *rest.Config // of a client that uses the proxy
	server *httptest.Server

	mu       sync.Mutex
	hold     func(*http.Request) bool // reports whether to delay a request
	waiting  int
	opened   chan struct{}    // closed to forward all requests
	statuses map[string][]int // the API server's answers to delayed requests, by "METHOD path name"; several for a retried request
}

func newSlowProxy(t *testing.T, to *rest.Config, hold func(*http.Request) bool) *slowProxy {
	t.Helper()
	r := &slowProxy{hold: hold, opened: make(chan struct{}), statuses: map[string][]int{}}
	transport := must(rest.TransportFor(to))(t)
	target := must(url.Parse(to.Host))(t)
	reverse := &httputil.ReverseProxy{
		Rewrite:       func(p *httputil.ProxyRequest) { p.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1, // watches
		ModifyResponse: func(response *http.Response) error {
			response.Body = &slowBody{response.Body, r}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
	}
	r.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(request.Body)
		if err != nil {
			return
		}
		request.Body = io.NopCloser(bytes.NewReader(body))
		if !r.wait(request) || request.Method == http.MethodGet { // a watch must end with its client
			reverse.ServeHTTP(w, request)
			return
		}
		// Forward the write even if its sender has given up.
		answer := httptest.NewRecorder()
		reverse.ServeHTTP(answer, request.WithContext(context.WithoutCancel(request.Context())))
		r.mu.Lock()
		what := request.Method + " " + request.URL.Path + " " + nameIn(body)
		r.statuses[what] = append(r.statuses[what], answer.Code)
		r.mu.Unlock()
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	}))
	r.config = &rest.Config{Host: r.server.URL}
	return r
}

// nameIn returns the name of the HostSubnet in the body of a request.
func nameIn(body []byte) string {
	_, rest, _ := strings.Cut(string(body), `"host":"`)
	name, _, _ := strings.Cut(rest, `"`)
	return name
}

// close ends all connections of the proxy.
func (r *slowProxy) close() {
	r.open()
	r.server.CloseClientConnections()
	r.server.Close()
}

// wait delays the request if hold returns true, and returns that.
func (r *slowProxy) wait(request *http.Request) bool {
	r.mu.Lock()
	delay := r.hold != nil && r.hold(request)
	if delay {
		r.waiting++
	}
	r.mu.Unlock()
	if delay {
		<-r.opened
	}
	return delay
}

// freeze delays all further requests, and the answers to current ones.
func (r *slowProxy) freeze() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hold = func(*http.Request) bool { return true }
}

func (r *slowProxy) open() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hold != nil {
		r.hold = nil
		close(r.opened)
	}
}

// awaitDelayed waits until n requests are delayed.
func (r *slowProxy) awaitDelayed(t *testing.T, n int) {
	t.Helper()
	eventually(t, func(context.Context) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.waiting < n {
			return fmt.Errorf("%d requests are delayed, want %d", r.waiting, n)
		}
		return nil
	})
}

// awaitStatus waits for the API server's answer to a delayed request.
func (r *slowProxy) awaitStatus(t *testing.T, request string, status int) {
	t.Helper()
	eventually(t, func(context.Context) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if !slices.Contains(r.statuses[request], status) {
			return fmt.Errorf("no answer %[2]d to %[1]s; got %[3]v", request, status, r.statuses)
		}
		return nil
	})
}

// slowBody is the body of an answer. Reads block while the proxy is frozen.
type slowBody struct {
	io.ReadCloser
	proxy *slowProxy
}

func (b *slowBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.proxy.mu.Lock()
	frozen := b.proxy.hold != nil && b.proxy.hold(&http.Request{Method: http.MethodGet, URL: &url.URL{}})
	b.proxy.mu.Unlock()
	if frozen {
		<-b.proxy.opened
	}
	return n, err
}
