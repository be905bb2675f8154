package metrics

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

// One pod that guesses tokens leaves reviews for other sources, and any number of pods leaves them for scrapers, also with a new token.
func TestHandler_guessesDoNotEndScrapes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHandler(newAPI(), NewRegistry())
		scrape := func(source, name string) {
			t.Helper()
			if status, _ := get(h, source, "Bearer "+name, "/metrics"); status != http.StatusOK {
				t.Errorf("%s: got status %d, want 200", name, status)
			}
		}
		for minute := range 10 {
			for i := range 60 {
				_, _ = get(h, "10.0.0.2", fmt.Sprintf("Bearer guess-%d-%d", minute, i), "/metrics")
				time.Sleep(time.Second) //nolint:forbidigo // of the bubble
			}
		}
		scrape("10.0.0.1", "token-of-reader")
		for i := range 300 {
			_, _ = get(h, fmt.Sprintf("10.1.%d.%d", i/200, i%200), fmt.Sprintf("Bearer guess-%d", i), "/metrics")
		}
		for range 5 {
			time.Sleep(61 * time.Second) //nolint:forbidigo // of the bubble
			for i := range 300 {
				_, _ = get(h, fmt.Sprintf("10.1.%d.%d", i/200, i%200), fmt.Sprintf("Bearer later-%d", i), "/metrics")
			}
			scrape("10.0.0.1", "token-of-reader")
		}
		scrape("10.0.0.1", "token-of-reader/2")
	})
}

// The source's requests without a valid token do not use up the rate of those with one.
func TestHandler_sharedSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHandler(newAPI(), NewRegistry())
		_, _ = get(h, "10.0.0.1", "Bearer token-of-reader", "/metrics")
		for range 100 {
			_, _ = get(h, "10.0.0.1", "", "/metrics")
		}
		if status, _ := get(h, "10.0.0.1", "Bearer token-of-reader", "/metrics"); status != http.StatusOK {
			t.Errorf("got status %d, want 200", status)
		}
	})
}

// An accepted review is renewed before it ends, and holds until its end if the API server does not answer.
func TestHandler_renewsBeforeExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		h := newHandler(a, NewRegistry())
		at := func(pause time.Duration, status, reviews int) {
			t.Helper()
			time.Sleep(pause) //nolint:forbidigo // of the bubble
			if got, _ := get(h, "10.0.0.1", "Bearer token-of-reader", "/metrics"); got != status || a.count() != reviews {
				t.Errorf("got status %d after %d reviews, want %d after %d", got, a.count(), status, reviews)
			}
		}
		at(0, http.StatusOK, 2)
		at(20*time.Second, http.StatusOK, 2)
		at(15*time.Second, http.StatusOK, 4)
		a.fail(errors.New("down"))
		at(50*time.Second, http.StatusOK, 5)
		at(20*time.Second, http.StatusServiceUnavailable, 6)
	})
}

// Guesses from many sources cost the API server few reviews: a cluster has thousands of agents.
func TestHandler_boundsReviews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		h := newHandler(a, NewRegistry())
		for i := range 6000 { // ten per second
			_, _ = get(h, fmt.Sprintf("10.0.%d.%d", i/200, i%200), fmt.Sprintf("Bearer guess-%d", i), "/metrics")
			time.Sleep(100 * time.Millisecond) //nolint:forbidigo // of the bubble
		}
		if got := a.count(); got < 60 || got > 131 {
			t.Errorf("got %d reviews in ten minutes, want about 0.2 per second and ten", got)
		}
	})
}

// An invalid token is reviewed once for all paths.
func TestHandler_cachesInvalidTokens(t *testing.T) {
	a := newAPI()
	h := newHandler(a, NewRegistry())
	for _, path := range []string{"/metrics", "/debug/pprof/", "/debug/pprof/heap"} {
		if status, _ := get(h, "10.0.0.1", "Bearer guess", path); status != http.StatusUnauthorized {
			t.Errorf("%s: got status %d, want 401", path, status)
		}
	}
	if got := a.count(); got != 1 {
		t.Errorf("got %d reviews, want 1", got)
	}
}

// Paths that do not exist and other methods are refused before any review.
func TestHandler_refusesUnknownPaths(t *testing.T) {
	a := newAPI()
	h := newHandler(a, NewRegistry())
	for _, path := range []string{"/", "/metrics/", "/metrics/x", "/debug/pprof", "/debug/pprof/unknown", "/debug/pprof/../pprof/heap", "//metrics"} {
		if status, _ := get(h, "10.0.0.1", "Bearer token-of-reader", path); status != http.StatusNotFound {
			t.Errorf("%s: got status %d, want 404", path, status)
		}
	}
	r := httptest.NewRequest("GUESS", "/metrics", nil)
	r.Header.Set("Authorization", "Bearer token-of-reader")
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("got status %d, want 405", w.Code)
	}
	if got := a.count(); got != 0 {
		t.Errorf("got %d reviews, want none", got)
	}
}

// A JWT that has expired is refused without a review. Tokens of any other form are reviewed.
func TestHandler_expiredTokens(t *testing.T) {
	jwt := func(claims string) string {
		encode := base64.RawURLEncoding.EncodeToString
		return encode([]byte(`{"alg":"RS256"}`)) + "." + encode([]byte(claims)) + ".c2ln"
	}
	for _, c := range []struct {
		name, token string
		reviews     int
	}{
		{"expired", jwt(`{"exp":1000000000}`), 0},
		{"expired, fraction", jwt(`{"exp":1000000000.5}`), 0},
		{"expired within the skew of clocks", jwt(fmt.Sprintf(`{"exp":%d}`, time.Now().Add(-time.Minute).Unix())), 1},
		{"valid", jwt(`{"exp":99000000000}`), 1},
		{"no expiry", jwt(`{}`), 1},
		{"expiry is no number", jwt(`{"exp":"x"}`), 1},
		{"not base64", "a.!.c", 1},
		{"opaque", "0123-456", 1},
	} {
		a := newAPI()
		if status, _ := get(newHandler(a, NewRegistry()), "10.0.0.1", "Bearer "+c.token, "/metrics"); status != http.StatusUnauthorized || a.count() != c.reviews {
			t.Errorf("%s: got status %d after %d reviews, want 401 after %d", c.name, status, a.count(), c.reviews)
		}
	}
}

// The server closes the connection after each refusal, so that the limits of connections apply to the next request.
func TestServeListener_closesAfterRefusal(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := newHandler(newAPI(), NewRegistry())
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serveListener(ctx, l, Config{}, h) }()
	defer func() {
		stop()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serve: %v", err)
		}
	}()
	send := func(token, path string) (status int, closed bool) {
		conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}}).DialContext(ctx, "tcp", l.Addr().String()) //nolint:gosec // self-signed
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(90 * time.Second)); err != nil {
			t.Fatal(err)
		}
		reader := bufio.NewReader(conn)
		for range 2 { // the second request shows whether the connection is open
			if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer %s\r\n\r\n", path, token); err != nil {
				return status, true
			}
			answer, err := http.ReadResponse(reader, nil)
			if err != nil {
				return status, true
			}
			status = answer.StatusCode
			_, _ = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
		}
		return status, false
	}
	for _, c := range []struct {
		token, path string
		status      int
		closed      bool
	}{
		{"token-of-reader", "/metrics", http.StatusOK, false}, {"", "/metrics", http.StatusUnauthorized, true}, {"guess", "/metrics", http.StatusUnauthorized, true},
		{"token-of-tenant", "/metrics", http.StatusForbidden, true}, {"token-of-reader", "/x", http.StatusNotFound, true},
	} {
		if status, closed := send(c.token, c.path); status != c.status || closed != c.closed {
			t.Errorf("%q %s: got status %d, closed: %t, want %d, %t", c.token, c.path, status, closed, c.status, c.closed)
		}
	}
	for range 2 * sourceBurst {
		_, _ = get(h, "127.0.0.1", "", "/metrics")
	}
	if status, closed := send("", "/metrics"); status != http.StatusTooManyRequests || !closed {
		t.Errorf("got status %d, closed: %t, want 429 and a closed connection", status, closed)
	}
}

// Clients cannot fill the log: failures are logged once a minute, with their number, and what to do if the right to create reviews is missing.
func TestHandler_logsFailures(t *testing.T) {
	a := newAPI()
	h := newHandler(a, NewRegistry())
	a.fail(apierrors.NewForbidden(schema.GroupResource{Resource: "tokenreviews"}, "", errors.New("no right")))
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	buffer := logger.GetSink().(ktesting.Underlier).GetBuffer()
	send := func() {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil).WithContext(klog.NewContext(t.Context(), logger))
		r.Header.Set("Authorization", "Bearer token-of-reader")
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	for range sourceReviewBurst {
		send()
	}
	if got := buffer.String(); strings.Count(got, "Failed to authenticate or authorize") != 1 || !strings.Contains(got, "apply deploy/rbac") {
		t.Errorf("got log %q, want one line with the action", got)
	}
}

func TestFailureLog_countsSuppressed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		ctx := klog.NewContext(t.Context(), logger)
		var f FailureLog
		for range 3 {
			f.Log(ctx, errors.New("down"), "Failed to load")
		}
		time.Sleep(failureLogInterval) //nolint:forbidigo // of the bubble
		f.Log(ctx, errors.New("down"), "Failed to load")
		got := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
		if strings.Count(got, "Failed to load") != 2 || !strings.Contains(got, "suppressed=2") {
			t.Errorf("got log %q, want two lines, the second with two suppressed", got)
		}
	})
}

// A scrape ends although a source of metrics does not answer.
func TestHandler_timeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		h := newHandler(newAPI(), prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { <-answer; return nil, nil }))
		status := make(chan int, 1)
		go func() {
			got, _ := get(h, "10.0.0.1", "Bearer token-of-reader", "/metrics")
			status <- got
		}()
		time.Sleep(scrapeTimeout + time.Second) //nolint:forbidigo // of the bubble
		synctest.Wait()
		select {
		case got := <-status:
			if got != http.StatusServiceUnavailable {
				t.Errorf("got status %d, want 503", got)
			}
		default:
			t.Errorf("got no answer after %s", scrapeTimeout)
		}
		close(answer)
	})
}
