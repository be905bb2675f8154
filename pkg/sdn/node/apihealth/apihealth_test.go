package apihealth

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ovsdn/ovsdn/test/await"
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

// server answers with its status, without a network.
type server struct {
	status int // 0: no answer
}

func (s *server) RoundTrip(*http.Request) (*http.Response, error) {
	if s.status == 0 {
		return nil, errors.New("connection refused")
	}
	return &http.Response{StatusCode: s.status, Status: http.StatusText(s.status), Body: http.NoBody}, nil
}

func TestMonitor_unreachable(t *testing.T) {
	const interval = failureThreshold/2 + time.Second
	for _, test := range []struct {
		name     string
		method   string
		statuses []int // of requests, with the interval after each
		want     string
	}{
		{"success", http.MethodGet, []int{200, 200}, ""},
		{"not found and forbidden are answers", http.MethodGet, []int{404, 403}, ""},
		{"connection refused", http.MethodGet, []int{200, 0, 0}, "connection refused"},
		{"unauthorized", http.MethodGet, []int{401, 401}, "Unauthorized"},
		{"server error", http.MethodGet, []int{500, 503}, "Service Unavailable"},
		{"a single failed read that is not repeated", http.MethodGet, []int{200, 500}, ""},
		{"recovered", http.MethodGet, []int{0, 0, 200}, ""},
		{"sporadic failures", http.MethodGet, []int{0, 200, 0}, ""},
		{"failed writes", http.MethodPatch, []int{500, 500}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m, s := &Monitor{}, &server{}
				request(t.Context(), t, m.Wrap(s), test.method, interval, s, test.statuses...)
				check(t, m.Err(), test.want)
			})
		})
	}
}

func TestMonitor_shortOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, s := &Monitor{}, &server{}
		request(t.Context(), t, m.Wrap(s), http.MethodGet, time.Second, s, 0, 0, 0, 0)
		check(t, m.Err(), "")
	})
}

func TestMonitor_canceledReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, s := &Monitor{}, &server{}
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		request(cancelled, t, m.Wrap(s), http.MethodGet, failureThreshold, s, 0, 0, 0)
		check(t, m.Err(), "")
	})
}

func request(ctx context.Context, t *testing.T, client http.RoundTripper, method string, interval time.Duration, s *server, statuses ...int) {
	t.Helper()
	for _, status := range statuses {
		s.status = status
		req, err := http.NewRequestWithContext(ctx, method, "https://192.0.2.10:6443/api", nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := client.RoundTrip(req); err == nil {
			resp.Body.Close()
		}
		<-time.After(interval)
	}
}

func check(t *testing.T, got error, want string) {
	t.Helper()
	if (got != nil) != (want != "") || got != nil && !strings.Contains(got.Error(), want) {
		t.Errorf("got error %v, want %q", got, want)
	}
}
