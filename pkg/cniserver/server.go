package cniserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"
)

// Handler executes the verbs. The context ends when the plugin closes its connection (runtimes kill it at their own timeout), when its
// timeout expires, and when the agent stops. Errors that are not CNI errors are sent as ErrInternal.
type Handler interface {
	Add(ctx context.Context, req *Request) (*current.Result, error)
	Del(ctx context.Context, req *Request) error
	Check(ctx context.Context, req *Request) error
	GC(ctx context.Context, req *Request) error
	Status(ctx context.Context) error
}

const (
	// When the agent stops, requests in progress get drainTimeout to end. Then their contexts are canceled, and they get cancelTimeout to roll back.
	// Both together are below the default termination grace period of pods, 30 s.
	drainTimeout  = 5 * time.Second
	cancelTimeout = 15 * time.Second

	// ioTimeout limits the read of a request and the write of an answer: the plugin runs on the same machine.
	ioTimeout = 10 * time.Second

	// acceptRetry is the delay after accept failed for lack of file descriptors or memory.
	acceptRetry = 50 * time.Millisecond
)

// Serve answers requests until the context ends, then waits for those in progress, with a time limit, and closes the listener.
func Serve(ctx context.Context, l *Listener, h Handler) error {
	return serve(ctx, l, h, drainTimeout, cancelTimeout)
}

func serve(ctx context.Context, l *Listener, h Handler, drain, cancel time.Duration) error {
	// The lock is released last: no other agent starts while requests still run.
	defer l.Close()

	s := &server{handler: h, conns: map[*net.UnixConn]bool{}}
	// Requests outlive ctx by drain.
	requests, cancelRequests := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelRequests()
	accepting, stopAccepting := context.WithCancel(ctx)
	defer stopAccepting()
	stop := context.AfterFunc(accepting, func() { l.socket.Close() }) // the deferred Close returns the same error
	defer stop()

	if err := s.accept(accepting, requests, l.socket); err != nil {
		stopAccepting()
		s.abandon()
		return fmt.Errorf("serve CNI on %s: %w", l.path, err)
	}
	if WaitTimeout(&s.wg, drain) {
		return nil
	}
	cancelRequests()
	if WaitTimeout(&s.wg, cancel) {
		return nil
	}
	s.abandon()
	return fmt.Errorf("stop serving CNI on %s: requests did not end in %s", l.path, drain+cancel)
}

// server has the exchanges in progress.
type server struct {
	handler Handler

	mu    sync.Mutex
	conns map[*net.UnixConn]bool
	wg    sync.WaitGroup
}

// accept starts an exchange for every connection. It returns nil when ctx ends.
func (s *server) accept(ctx, requests context.Context, l *socket) error {
	for {
		conn, err := l.AcceptUnix()
		switch {
		case err == nil:
			s.start(requests, conn)
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM):
			select { // requests in progress will release some
			case <-time.After(acceptRetry):
			case <-ctx.Done():
			}
		default:
			return err
		}
	}
}

func (s *server) start(ctx context.Context, conn *net.UnixConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[conn] = true
	s.wg.Go(func() {
		defer s.end(conn)
		s.exchange(ctx, conn)
	})
}

func (s *server) end(conn *net.UnixConn) {
	conn.Close() // the answer was sent before
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, conn)
}

// WaitTimeout waits for the group, and reports whether the group has ended.
func WaitTimeout(group *sync.WaitGroup, timeout time.Duration) bool {
	ended := make(chan struct{})
	go func() {
		group.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return true
	case <-time.After(timeout):
		return false
	}
}

// abandon closes the connections of plugins that still wait.
func (s *server) abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.conns {
		conn.Close()
	}
}

// exchange reads one request and answers it.
func (s *server) exchange(ctx context.Context, conn *net.UnixConn) {
	a := s.answer(ctx, conn)
	data, err := json.Marshal(a)
	if err != nil {
		data = []byte(`{"error":{"code":999,"msg":"the agent can't encode its answer"}}`)
	}
	if err := conn.SetWriteDeadline(time.Now().Add(ioTimeout)); err != nil {
		return
	}
	_, _ = conn.Write(append(data, '\n')) // the plugin may have ended
}

func (s *server) answer(ctx context.Context, conn *net.UnixConn) answer {
	if err := authorized(conn); err != nil {
		return answer{Error: asCNIError(err)}
	}
	if err := conn.SetReadDeadline(time.Now().Add(ioTimeout)); err != nil {
		return answer{Error: asCNIError(err)}
	}
	line, err := readLine(conn, maxRequestBytes)
	if err != nil {
		return answer{Error: types.NewError(types.ErrDecodingFailure, "the request is incomplete", err.Error())}
	}
	req, err := DecodeRequest(line)
	if err != nil {
		return answer{Error: asCNIError(err)}
	}
	ctx, cancel := context.WithTimeout(ctx, req.timeout())
	defer cancel()
	stop := onClose(conn, cancel)
	defer stop()
	result, err := s.call(ctx, req)
	if err != nil {
		return answer{Error: asCNIError(err)}
	}
	return answer{Result: result}
}

// onClose calls closed when the plugin closes its end before it has an answer. stop ends the watch.
func onClose(conn *net.UnixConn, closed func()) (stop func()) {
	watching := make(chan struct{})
	if conn.SetReadDeadline(time.Time{}) != nil {
		closed()
		return func() {}
	}
	go func() {
		defer close(watching)
		_, err := conn.Read(make([]byte, 1))
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() {
			closed()
		}
	}()
	return func() {
		_ = conn.SetReadDeadline(time.Unix(1, 0)) // fails only on a closed connection, which ends the watch too
		<-watching
	}
}

func (s *server) call(ctx context.Context, req *Request) (*current.Result, error) {
	switch req.Command {
	case CommandAdd:
		return s.handler.Add(ctx, req)
	case CommandDel:
		return nil, s.handler.Del(ctx, req)
	case CommandCheck:
		return nil, s.handler.Check(ctx, req)
	case CommandGC:
		return nil, s.handler.GC(ctx, req)
	default: // STATUS: DecodeRequest rejects other verbs
		return nil, s.handler.Status(ctx)
	}
}

// authorized rejects callers other than root, also if the mode of the socket was changed.
func authorized(conn *net.UnixConn) error {
	uid, err := peerUID(conn)
	switch {
	case err != nil:
		return types.NewError(types.ErrInternal, "the agent can't determine the caller's uid", err.Error())
	case uid != 0:
		return types.NewError(types.ErrInternal, fmt.Sprintf("uid %d may not call the node agent: run the plugin as root", uid), "")
	}
	return nil
}

// peerUID returns the uid of the client at connect time (unix(7), SO_PEERCRED).
func peerUID(conn *net.UnixConn) (uint32, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if credErr != nil {
		return 0, fmt.Errorf("getsockopt SO_PEERCRED: %w", credErr)
	}
	return cred.Uid, nil
}

// asCNIError returns CNI errors unchanged, a timeout as ErrTryAgainLater, and other errors as ErrInternal.
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

// readLine reads up to a newline, which is not returned. A line is at most limit bytes.
func readLine(r io.Reader, limit int) ([]byte, error) {
	line := make([]byte, 0, 1024)
	for {
		if len(line) == cap(line) {
			line = append(line, 0)[:len(line)]
		}
		n, err := r.Read(line[len(line):cap(line)])
		line = line[:len(line)+n]
		if n > 0 && line[len(line)-1] == '\n' {
			if len(line) > limit {
				return nil, errTooLong(limit)
			}
			return line[:len(line)-1], nil
		}
		switch {
		case len(line) > limit:
			return nil, errTooLong(limit)
		case errors.Is(err, io.EOF):
			return nil, io.ErrUnexpectedEOF
		case err != nil:
			return nil, err
		}
	}
}

func errTooLong(limit int) error { return fmt.Errorf("the line is longer than %d bytes", limit) }
