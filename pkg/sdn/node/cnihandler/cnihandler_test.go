package cnihandler

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/test/await"
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

// handler serves ADD with its function, and all else without effect.
type handler struct {
	add func(context.Context) error
}

func (h handler) Add(ctx context.Context, _ *cniserver.Request) (*current.Result, error) {
	return &current.Result{}, h.add(ctx)
}
func (handler) Del(context.Context, *cniserver.Request) error   { return nil }
func (handler) Check(context.Context, *cniserver.Request) error { return nil }
func (handler) GC(context.Context, *cniserver.Request) error    { return nil }
func (handler) Status(context.Context) error                    { return nil }

// serve has the handler serve until the returned function is called.
func serve(t *testing.T, h *Handler, next cniserver.Handler) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	h.mu.Lock()
	changed := h.changed
	h.mu.Unlock()
	done := make(chan error, 1)
	go func() { done <- h.Serve(ctx, next) }()
	<-changed
	return func() error {
		cancel()
		return <-done
	}
}

func wantCode(t *testing.T, err error, code uint, detail string) {
	t.Helper()
	var e *types.Error
	if !errors.As(err, &e) || e.Code != code || e.Details != detail {
		t.Errorf("got %v, want code %d with %q", err, code, detail)
	}
}

func TestHandler_networkNotReady(t *testing.T) {
	h := New()
	h.ready = time.Millisecond
	wantCode(t, h.Status(t.Context()), types.ErrTryAgainLater, "the node agent is starting")
	h.SetReason(errors.New("no HostSubnet"))
	wantCode(t, h.Status(t.Context()), types.ErrPluginNotAvailable, "no HostSubnet")
	_, err := h.Add(t.Context(), nil)
	wantCode(t, err, types.ErrTryAgainLater, "no HostSubnet")
	wantCode(t, h.Del(t.Context(), nil), types.ErrTryAgainLater, "no HostSubnet")
	h.ready = time.Hour
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	wantCode(t, h.GC(ctx, nil), types.ErrTryAgainLater, "no HostSubnet")
}

// Requests that arrive before the network is ready are served once it is, also after it was set up again.
func TestHandler_readinessChanges(t *testing.T) {
	h := New()
	h.ready = time.Hour
	for range 2 {
		waiting := make(chan error, 1)
		go func() { waiting <- h.Check(t.Context(), nil) }()
		stop := serve(t, h, handler{add: func(context.Context) error { return nil }})
		if err := <-waiting; err != nil {
			t.Error(err)
		}
		if _, err := h.Add(t.Context(), nil); err != nil {
			t.Error(err)
		}
		if err := h.Status(t.Context()); err != nil {
			t.Error(err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if err := h.Status(t.Context()); err == nil {
			t.Error("STATUS while the network is not ready: got no error")
		}
	}
}

// A request in progress gets time to end, then its context is cancelled, and finally Serve returns without it.
func TestHandler_drainsRequests(t *testing.T) {
	for name, tt := range map[string]struct {
		drain, cancel time.Duration
		request       func(ctx context.Context, release chan struct{}) error
		late          bool
	}{
		"in time":      {time.Hour, 0, func(_ context.Context, release chan struct{}) error { <-release; return nil }, false},
		"cancelled":    {time.Millisecond, time.Hour, func(ctx context.Context, _ chan struct{}) error { <-ctx.Done(); return ctx.Err() }, false},
		"never ending": {time.Millisecond, time.Millisecond, func(_ context.Context, release chan struct{}) error { <-release; return nil }, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := New()
			h.drain, h.cancel = tt.drain, tt.cancel
			started, release := make(chan struct{}), make(chan struct{})
			stop := serve(t, h, handler{add: func(ctx context.Context) error {
				close(started)
				return tt.request(ctx, release)
			}})
			answered := make(chan error, 1)
			go func() {
				_, err := h.Add(t.Context(), nil)
				answered <- err
			}()
			<-started
			stopped := make(chan error, 1)
			go func() { stopped <- stop() }()
			if tt.late {
				if err := <-stopped; err == nil {
					t.Error("got no error for a request that does not end")
				}
				close(release)
				t.Log("answered", <-answered)
				return
			}
			if name == "in time" {
				close(release)
			}
			t.Log("answered", <-answered)
			if err := <-stopped; err != nil {
				t.Error(err)
			}
		})
	}
}
