package metrics

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ovsdn/ovsdn/test/await"
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

// api is an API server that knows the users by their tokens, and allows reader to get /metrics.
type api struct {
	*fake.Clientset
	mu      sync.Mutex
	reviews int
	err     error
}

func newAPI() *api {
	a := &api{Clientset: fake.NewClientset()}
	count := func() error {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.reviews++
		return a.err
	}
	a.PrependReactor("create", "tokenreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
		if name, ok := strings.CutPrefix(review.Spec.Token, "token-of-"); ok {
			name, _, _ = strings.Cut(name, "/") // a user can have several
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{
				Username: name, UID: "7", Groups: []string{"monitoring"}, Extra: map[string]authenticationv1.ExtraValue{"node": {"node1"}},
			}}
		}
		return true, review, count()
	})
	a.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		s := review.Spec
		review.Status.Allowed = s.User == "reader" && s.UID == "7" && s.Groups[0] == "monitoring" && s.Extra["node"][0] == "node1" &&
			*s.NonResourceAttributes == authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"}
		return true, review, count()
	})
	return a
}

func (a *api) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.reviews
}

func (a *api) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.err = err
}

// get sends a request from the address, and returns the status code and the body.
func get(h http.Handler, source, authorization, path string) (int, string) {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	r.RemoteAddr = source + ":1000"
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

func TestHandler_admits(t *testing.T) {
	for _, c := range []struct {
		name, authorization, path string
		status, reviews           int
	}{
		{"no token", "", "/metrics", http.StatusUnauthorized, 0},
		{"empty token", "Bearer ", "/metrics", http.StatusUnauthorized, 0},
		{"another scheme", "Basic token-of-reader", "/metrics", http.StatusUnauthorized, 0},
		{"invalid token", "Bearer guess", "/metrics", http.StatusUnauthorized, 1},
		{"user without the right", "Bearer token-of-tenant", "/metrics", http.StatusForbidden, 2},
		{"user with the right", "Bearer token-of-reader", "/metrics", http.StatusOK, 2},
		{"right to another path", "Bearer token-of-reader", "/debug/pprof/heap", http.StatusForbidden, 2},
		{"unclean path", "Bearer token-of-reader", "/metrics/../debug/pprof/heap", http.StatusNotFound, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newAPI()
			h := newHandler(a, NewRegistry())
			for range 3 { // reviews are cached
				if status, body := get(h, "10.0.0.1", c.authorization, c.path); status != c.status || status == http.StatusOK != strings.Contains(body, "ovsdn_build_info{") {
					t.Errorf("got status %d with %.200q, want %d", status, body, c.status)
				}
			}
			if got := a.count(); got != c.reviews {
				t.Errorf("got %d reviews, want %d", got, c.reviews)
			}
		})
	}
}

// The cache distinguishes paths: a right to one is none to another.
func TestHandler_cachesByPath(t *testing.T) {
	h := newHandler(newAPI(), NewRegistry())
	for range 2 {
		for path, want := range map[string]int{"/metrics": http.StatusOK, "/debug/pprof/heap": http.StatusForbidden} {
			if status, _ := get(h, "10.0.0.1", "Bearer token-of-reader", path); status != want {
				t.Errorf("%s: got status %d, want %d", path, status, want)
			}
		}
	}
}

// The rate of a source is limited before anything else, also with a valid token and without any.
func TestHandler_limitsSource(t *testing.T) {
	for authorization, want := range map[string]int{"": http.StatusUnauthorized, "Bearer token-of-reader": http.StatusOK} {
		synctest.Test(t, func(t *testing.T) {
			h := newHandler(newAPI(), NewRegistry())
			codes := map[int]int{}
			for range sourceBurst + 30 {
				status, _ := get(h, "10.0.0.1", authorization, "/metrics")
				codes[status]++
			}
			if codes[want] != sourceBurst || codes[http.StatusTooManyRequests] != 30 {
				t.Errorf("%q: got statuses %v, want %d for %d requests and 429 for the others", authorization, codes, want, sourceBurst)
			}
			time.Sleep(time.Second) //nolint:forbidigo // of the bubble
			if status, _ := get(h, "10.0.0.1", authorization, "/metrics"); status != want {
				t.Errorf("%q, a second later: got status %d, want %d", authorization, status, want)
			}
		})
	}
}

// A right that was revoked ends, and one that was granted begins, within the lifetimes of reviews.
func TestHandler_reviewsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		h := newHandler(a, NewRegistry())
		_, _ = get(h, "10.0.0.1", "Bearer token-of-reader", "/metrics")
		_, _ = get(h, "10.0.0.1", "Bearer guess", "/metrics")
		for _, c := range []struct {
			authorization string
			reviews       int
		}{{"Bearer token-of-reader", 5}, {"Bearer guess", 6}} {
			time.Sleep(acceptedLifetime + time.Second) //nolint:forbidigo // of the bubble
			if _, _ = get(h, "10.0.0.1", c.authorization, "/metrics"); a.count() != c.reviews {
				t.Errorf("%s: got %d reviews, want %d", c.authorization, a.count(), c.reviews)
			}
		}
	})
}

// A client that guesses tokens neither makes the API server review each, nor prevents scrapes by others.
func TestHandler_limitsRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		h := newHandler(a, NewRegistry())
		if status, _ := get(h, "10.0.0.1", "Bearer token-of-reader", "/metrics"); status != http.StatusOK {
			t.Fatalf("got status %d, want 200", status)
		}
		codes := map[int]int{}
		for i := range 100 {
			status, _ := get(h, "10.0.0.2", fmt.Sprintf("Bearer guess%d", i), "/metrics")
			codes[status]++
		}
		if codes[http.StatusTooManyRequests] != 100-codes[http.StatusUnauthorized] || codes[http.StatusUnauthorized] > sourceReviewBurst {
			t.Errorf("one source: got statuses %v, want 401 for at most %d and 429 for the others", codes, sourceReviewBurst)
		}
		for i := range 100 {
			_, _ = get(h, fmt.Sprintf("10.0.1.%d", i), fmt.Sprintf("Bearer guess-%d", i), "/metrics")
		}
		if got := a.count(); got > 2+unknownBurst {
			t.Errorf("many sources: got %d reviews, want at most %d", got, 2+unknownBurst)
		}
		if status, _ := get(h, "10.0.0.1", "Bearer token-of-reader", "/metrics"); status != http.StatusOK {
			t.Errorf("known token: got status %d, want 200", status)
		}
	})
}

// Without an answer of the API server no request is admitted, and nothing is cached.
func TestHandler_unavailableAPI(t *testing.T) {
	a := newAPI()
	h := newHandler(a, NewRegistry())
	a.fail(errors.New("secret reason"))
	if status, body := get(h, "10.0.0.1", "Bearer token-of-reader", "/metrics"); status != http.StatusServiceUnavailable || strings.Contains(body, "secret") {
		t.Errorf("got status %d with %q, want 503 without the reason", status, body)
	}
	a.fail(nil)
	if status, _ := get(h, "10.0.0.1", "Bearer token-of-reader", "/metrics"); status != http.StatusOK {
		t.Errorf("got status %d, want 200", status)
	}
}

func TestServeListener(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serveListener(ctx, l, Config{}, newHandler(newAPI(), NewRegistry())) }()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true} //nolint:gosec // self-signed
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+l.Addr().String()+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer token-of-reader")
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK || answer.ProtoMajor != 1 {
		t.Errorf("got status %d by %s, want 200 by HTTP/1.1", answer.StatusCode, answer.Proto)
	}
	stop()
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Errorf("got error %v after the end, want ErrServerClosed", err)
	}
}

// A source can't hold more connections than its share, also without a TLS handshake; closed ones count no more.
func TestListener_limitsConnections(t *testing.T) {
	inner, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := newListener(inner, nil)
	defer l.Close()
	accepted := make(chan net.Conn, 100)
	go func() {
		defer close(accepted)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	dial := func() net.Conn {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	var servers []net.Conn
	for range sourceConnections {
		defer dial().Close()
		servers = append(servers, <-accepted)
	}
	refused := dial()
	defer refused.Close()
	if err := refused.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if n, err := refused.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("connection %d: got %d bytes, error %v, want it closed", sourceConnections+1, n, err)
	}
	_ = servers[0].Close()
	_ = servers[0].Close() // counts once
	defer dial().Close()
	servers = append(servers, <-accepted)
	if got := l.others.Open(); got != sourceConnections {
		t.Errorf("got %d connections, want %d", got, sourceConnections)
	}
	for _, conn := range servers {
		_ = conn.Close()
	}
	if got := l.others.Open(); got != 0 {
		t.Errorf("got %d connections, want none", got)
	}
	_ = l.Close()
	<-accepted
}

func TestConfig_Validate(t *testing.T) {
	for _, c := range []struct {
		Config
		want string
	}{
		{Config{Address: ":9447"}, ""}, {Config{Address: "0"}, ""}, {Config{Address: "10.0.0.1:9447", CertFile: "a", KeyFile: "b"}, ""},
		{Config{Address: "9447"}, "--metrics-bind-address"}, {Config{}, "--metrics-bind-address"},
		{Config{Address: "0", CertFile: "a"}, "--metrics-tls-private-key-file"}, {Config{Address: "0", KeyFile: "a"}, "--metrics-tls-cert-file"},
	} {
		err := c.Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got error %v, want %q", c.Config, err, c.want)
		}
	}
}
