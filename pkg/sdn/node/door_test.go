package node

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
)

// handler does what its functions say.
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

// lead opens the door until the returned function is called.
func lead(t *testing.T, d *door, h cniserver.Handler) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	d.mu.Lock()
	opened := d.opened
	d.mu.Unlock()
	done := make(chan error, 1)
	go func() { done <- d.lead(ctx, h) }()
	<-opened
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

func TestDoorTellsWhyItIsClosed(t *testing.T) {
	d := newDoor()
	d.patience = time.Millisecond
	wantCode(t, d.Status(t.Context()), types.ErrTryAgainLater, "the node agent is starting")
	d.explain(errors.New("no HostSubnet"))
	wantCode(t, d.Status(t.Context()), types.ErrPluginNotAvailable, "no HostSubnet")
	_, err := d.Add(t.Context(), nil)
	wantCode(t, err, types.ErrTryAgainLater, "no HostSubnet")
	wantCode(t, d.Del(t.Context(), nil), types.ErrTryAgainLater, "no HostSubnet")
	d.patience = time.Hour
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	wantCode(t, d.GC(ctx, nil), types.ErrTryAgainLater, "no HostSubnet")
}

// Requests that come while the agent starts are served when it has, and every life of the door has its own handler.
func TestDoorOpensAndCloses(t *testing.T) {
	d := newDoor()
	d.patience = time.Hour
	for range 2 {
		waiting := make(chan error, 1)
		go func() { waiting <- d.Check(t.Context(), nil) }()
		stop := lead(t, d, handler{add: func(context.Context) error { return nil }})
		if err := <-waiting; err != nil {
			t.Error(err)
		}
		if _, err := d.Add(t.Context(), nil); err != nil {
			t.Error(err)
		}
		if err := d.Status(t.Context()); err != nil {
			t.Error(err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if err := d.Status(t.Context()); err == nil {
			t.Error("STATUS of a closed door: no error")
		}
	}
}

// A request in progress first gets time to end, then its context ends, and in the end nobody waits for it.
func TestDoorLetsRequestsEnd(t *testing.T) {
	for name, tt := range map[string]struct {
		drain, undo time.Duration
		request     func(ctx context.Context, release chan struct{}) error
		late        bool
	}{
		"in time":      {time.Hour, 0, func(_ context.Context, release chan struct{}) error { <-release; return nil }, false},
		"undone":       {time.Millisecond, time.Hour, func(ctx context.Context, _ chan struct{}) error { <-ctx.Done(); return ctx.Err() }, false},
		"never ending": {time.Millisecond, time.Millisecond, func(_ context.Context, release chan struct{}) error { <-release; return nil }, true},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDoor()
			d.drain, d.undo = tt.drain, tt.undo
			started, release := make(chan struct{}), make(chan struct{})
			stop := lead(t, d, handler{add: func(ctx context.Context) error {
				close(started)
				return tt.request(ctx, release)
			}})
			answered := make(chan error, 1)
			go func() {
				_, err := d.Add(t.Context(), nil)
				answered <- err
			}()
			<-started
			stopped := make(chan error, 1)
			go func() { stopped <- stop() }()
			if tt.late {
				if err := <-stopped; err == nil {
					t.Error("no error")
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
