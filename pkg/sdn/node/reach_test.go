package node

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// server answers as it is told, without a network.
type server struct {
	status int // 0: none
}

func (s *server) RoundTrip(*http.Request) (*http.Response, error) {
	if s.status == 0 {
		return nil, errors.New("connection refused")
	}
	return &http.Response{StatusCode: s.status, Status: http.StatusText(s.status), Body: http.NoBody}, nil
}

func TestAPIServerThatAnswersNothingIsTold(t *testing.T) {
	const rest = unheardTime/2 + time.Second
	for _, test := range []struct {
		name     string
		method   string
		statuses []int // of requests, with a rest after each
		says     string
	}{
		{"it answers", http.MethodGet, []int{200, 200}, ""},
		{"that something is not there, or not ours to read, is an answer", http.MethodGet, []int{404, 403}, ""},
		{"it is away", http.MethodGet, []int{200, 0, 0}, "connection refused"},
		{"it does not know this agent", http.MethodGet, []int{401, 401}, "Unauthorized"},
		{"it is ill", http.MethodGet, []int{500, 503}, "Service Unavailable"},
		{"one read failed that nobody repeats", http.MethodGet, []int{200, 500}, ""},
		{"it is back", http.MethodGet, []int{0, 0, 200}, ""},
		{"reads failed now and then", http.MethodGet, []int{0, 200, 0}, ""},
		{"writes fail", http.MethodPatch, []int{500, 500}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, s := &reach{}, &server{}
				ask(t.Context(), t, r.through(s), test.method, rest, s, test.statuses...)
				check(t, r.failing(), test.says)
			})
		})
	}
}

func TestShortOutageOfTheAPIServerIsNotTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := &reach{}, &server{}
		ask(t.Context(), t, r.through(s), http.MethodGet, time.Second, s, 0, 0, 0, 0)
		check(t, r.failing(), "")
	})
}

func TestReadsThatTheAgentItselfEndsSayNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s := &reach{}, &server{}
		ended, end := context.WithCancel(t.Context())
		end()
		ask(ended, t, r.through(s), http.MethodGet, unheardTime, s, 0, 0, 0)
		check(t, r.failing(), "")
	})
}

func ask(ctx context.Context, t *testing.T, client http.RoundTripper, method string, rest time.Duration, s *server, statuses ...int) {
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
		<-time.After(rest)
	}
}

func check(t *testing.T, got error, want string) {
	t.Helper()
	if (got != nil) != (want != "") || got != nil && !strings.Contains(got.Error(), want) {
		t.Errorf("it says %v, want %q", got, want)
	}
}
