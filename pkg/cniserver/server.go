package cniserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"
)

// Handler does the work of the verbs. The context ends when the plugin goes away (runtimes kill it at their own
// timeout), when its timeout is over, and when the agent stops. Errors that are not CNI errors are sent as ErrInternal.
type Handler interface {
	Add(ctx context.Context, req *Request) (*current.Result, error)
	Del(ctx context.Context, req *Request) error
	Check(ctx context.Context, req *Request) error
	GC(ctx context.Context, req *Request) error
	Status(ctx context.Context) error
}

const (
	// Requests in flight when the agent stops first get drainTime to end by themselves, then their contexts are cancelled and
	// they get undoTime to roll back. Together they stay below the 30 s that Kubernetes gives a pod to stop.
	drainTime = 5 * time.Second
	undoTime  = 15 * time.Second

	// readTime is for a request to arrive: its sender is on the same machine.
	readTime = 10 * time.Second
)

// Serve answers requests until the context ends, then lets those in flight end, in bounded time, and closes the listener.
func Serve(ctx context.Context, l *Listener, h Handler) error {
	return serve(ctx, l, h, drainTime, undoTime)
}

func serve(ctx context.Context, l *Listener, h Handler, drain, undo time.Duration) error {
	// The lock is given back last: no successor starts beside requests that still run.
	defer l.Close()

	// Requests outlive ctx by drain.
	requests, cancelRequests := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelRequests()

	mux := http.NewServeMux()
	mux.Handle("POST "+requestPath, handler{h})
	server := &http.Server{
		Handler:        mux,
		ReadTimeout:    readTime,
		MaxHeaderBytes: 8 << 10,
		BaseContext:    func(net.Listener) context.Context { return requests },
		ConnContext:    withPeer,
	}
	server.SetKeepAlivesEnabled(false) // a plugin lives for one request

	served := make(chan error, 1)
	go func() { served <- server.Serve(l.socket) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve CNI on %s: %w", l.path, errors.Join(err, server.Close()))
	case <-ctx.Done():
	}

	err := shutdown(server, drain)
	if err != nil {
		cancelRequests()
		err = shutdown(server, undo)
	}
	if err != nil {
		err = fmt.Errorf("stop serving CNI on %s: requests did not end: %w", l.path, errors.Join(err, server.Close()))
	}
	if serveErr := <-served; !errors.Is(serveErr, http.ErrServerClosed) {
		err = errors.Join(err, serveErr)
	}
	return err
}

func shutdown(server *http.Server, bound time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	return server.Shutdown(ctx)
}

type peerKey struct{}

// peer is who connected, as the kernel recorded it at connect time (unix(7), SO_PEERCRED).
type peer struct {
	uid uint32
	err error
}

func withPeer(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, peerKey{}, peerOf(conn))
}

func peerOf(conn net.Conn) peer {
	c, ok := conn.(*net.UnixConn)
	if !ok {
		return peer{err: fmt.Errorf("a %T has no peer credentials", conn)}
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return peer{err: err}
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return peer{err: err}
	}
	if credErr != nil {
		return peer{err: fmt.Errorf("getsockopt SO_PEERCRED: %w", credErr)}
	}
	return peer{uid: cred.Uid}
}

// authorized refuses everybody but root. The socket's mode does too; this holds even when someone changes that.
func authorized(ctx context.Context) error {
	p, ok := ctx.Value(peerKey{}).(peer)
	switch {
	case !ok:
		return types.NewError(types.ErrInternal, "the agent can't tell who calls", "no peer credentials")
	case p.err != nil:
		return types.NewError(types.ErrInternal, "the agent can't tell who calls", p.err.Error())
	case p.uid != 0:
		return types.NewError(types.ErrInternal, fmt.Sprintf("uid %d may not call the node agent: run the plugin as root", p.uid), "")
	}
	return nil
}

type handler struct{ Handler }

func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := authorized(r.Context()); err != nil {
		answer(w, http.StatusForbidden, asCNIError(err))
		return
	}
	req, err := DecodeRequest(http.MaxBytesReader(w, r.Body, maxRequestBytes))
	if err != nil {
		answer(w, http.StatusBadRequest, asCNIError(err))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), req.timeout())
	defer cancel()
	result, err := h.call(ctx, req)
	if err != nil {
		answer(w, http.StatusInternalServerError, asCNIError(err))
		return
	}
	answer(w, http.StatusOK, result)
}

func (h handler) call(ctx context.Context, req *Request) (any, error) {
	var nothing struct{}
	switch req.Command {
	case CommandAdd:
		result, err := h.Add(ctx, req)
		return result, err
	case CommandDel:
		return nothing, h.Del(ctx, req)
	case CommandCheck:
		return nothing, h.Check(ctx, req)
	case CommandGC:
		return nothing, h.GC(ctx, req)
	default: // the decoder lets only STATUS through
		return nothing, h.Status(ctx)
	}
}

// asCNIError keeps CNI errors, tells the runtime to come again when time ran out, and calls the rest internal.
func asCNIError(err error) *types.Error {
	var e *types.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return types.NewError(types.ErrTryAgainLater, err.Error(), "")
	default:
		return types.NewError(types.ErrInternal, err.Error(), "")
	}
}

func answer(w http.ResponseWriter, status int, body any) {
	data, err := json.Marshal(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(data) // a plugin that is gone needs no answer
}
