// Package cnihandler serves CNI requests while the node's network is ready, and rejects them with the reason while it is not.
package cnihandler

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
)

const (
	// readyTimeout is how long a request waits for the network to become ready, as after a restart of the agent. Runtimes repeat requests.
	readyTimeout = 10 * time.Second

	// The timeouts of requests in progress when the network changes, as those of cniserver when the agent stops.
	drainTimeout  = 5 * time.Second
	cancelTimeout = 15 * time.Second
)

// Handler forwards the requests of the CNI socket to the pod manager while the network is ready. At other times requests wait up to
// readyTimeout and fail with the reason; STATUS fails at once.
type Handler struct {
	ready, drain, cancel time.Duration // timeouts

	mu      sync.Mutex
	backend *backend      // nil: not ready
	reason  error         // why the network is not ready
	soon    bool          // the network is expected to become ready without a change of the cluster or the host
	changed chan struct{} // closed when the network becomes ready
}

var _ cniserver.Handler = &Handler{}

// New returns a handler for an agent that is starting.
func New() *Handler {
	return &Handler{
		ready:   readyTimeout,
		drain:   drainTimeout,
		cancel:  cancelTimeout,
		reason:  errors.New("the node agent is starting"),
		soon:    true,
		changed: make(chan struct{}),
	}
}

// backend is the pod manager with its requests in progress.
type backend struct {
	cniserver.Handler
	requests sync.WaitGroup
	deadline context.Context // cancels requests that are still in progress after drain
}

// Serve forwards requests to the handler until the context ends, then waits for those in progress: at most drain, and after their
// cancellation at most cancel.
func (h *Handler) Serve(ctx context.Context, next cniserver.Handler) error {
	deadline, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	b := &backend{Handler: next, deadline: deadline}
	h.mu.Lock()
	h.backend = b
	close(h.changed)
	h.mu.Unlock()

	<-ctx.Done()
	h.mu.Lock()
	h.backend, h.reason, h.soon = nil, errors.New("the node agent is stopping, or sets the node up again"), true
	h.changed = make(chan struct{})
	h.mu.Unlock()
	if cniserver.WaitTimeout(&b.requests, h.drain) {
		return nil
	}
	cancel()
	if cniserver.WaitTimeout(&b.requests, h.cancel) {
		return nil
	}
	return fmt.Errorf("CNI requests did not end in %s", h.drain+h.cancel)
}

// SetReason sets the error with which requests fail while the network is not ready.
func (h *Handler) SetReason(reason error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reason, h.soon = reason, false
}

// NotReady returns why the network is not ready, nil if it is.
func (h *Handler) NotReady() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.backend == nil {
		return h.reason
	}
	return nil
}

// acquire adds a request to those of the backend and returns it; nil if the network is not ready.
func (h *Handler) acquire() (b *backend, changed chan struct{}, reason error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.backend != nil {
		h.backend.requests.Add(1)
	}
	return h.backend, h.changed, h.reason
}

// await waits for the network to become ready. The caller serves the request with the returned context, then calls release.
func (h *Handler) await(ctx context.Context) (b *backend, serving context.Context, release func(), err error) {
	timeout := time.NewTimer(h.ready)
	defer timeout.Stop()
	for {
		b, changed, reason := h.acquire()
		if b != nil {
			serving, cancel := context.WithCancel(ctx)
			stop := context.AfterFunc(b.deadline, cancel)
			return b, serving, func() { stop(); cancel(); b.requests.Done() }, nil
		}
		select {
		case <-changed:
			continue
		case <-timeout.C:
		case <-ctx.Done():
		}
		return nil, nil, nil, types.NewError(types.ErrTryAgainLater, "the node's pod network is not set up", reason.Error())
	}
}

// Add implements cniserver.Handler.
func (h *Handler) Add(ctx context.Context, req *cniserver.Request) (*current.Result, error) {
	b, ctx, release, err := h.await(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	return b.Add(ctx, req)
}

// Del implements cniserver.Handler.
func (h *Handler) Del(ctx context.Context, req *cniserver.Request) error {
	return h.forward(ctx, func(ctx context.Context, b *backend) error { return b.Del(ctx, req) })
}

// Check implements cniserver.Handler.
func (h *Handler) Check(ctx context.Context, req *cniserver.Request) error {
	return h.forward(ctx, func(ctx context.Context, b *backend) error { return b.Check(ctx, req) })
}

// GC implements cniserver.Handler.
func (h *Handler) GC(ctx context.Context, req *cniserver.Request) error {
	return h.forward(ctx, func(ctx context.Context, b *backend) error { return b.GC(ctx, req) })
}

func (h *Handler) forward(ctx context.Context, call func(context.Context, *backend) error) error {
	b, ctx, release, err := h.await(ctx)
	if err != nil {
		return err
	}
	defer release()
	return call(ctx, b)
}

// Status implements cniserver.Handler. While the agent starts or stops it returns ErrTryAgainLater, which does not make the node NotReady.
func (h *Handler) Status(ctx context.Context) error {
	b, _, reason := h.acquire()
	if b != nil {
		defer b.requests.Done()
		return b.Status(ctx)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	code := types.ErrPluginNotAvailable
	if h.soon {
		code = types.ErrTryAgainLater
	}
	return types.NewError(code, "the node's pod network is not set up", reason.Error())
}
