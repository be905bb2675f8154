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

	// wireTime is for a request to arrive, and for an answer to be taken: the other side is on the same machine.
	wireTime = 10 * time.Second

	// acceptAgain is the pause after the system had no descriptor or memory for a connection.
	acceptAgain = 50 * time.Millisecond
)

// Serve answers requests until the context ends, then lets those in flight end, in bounded time, and closes the listener.
func Serve(ctx context.Context, l *Listener, h Handler) error {
	return serve(ctx, l, h, drainTime, undoTime)
}

func serve(ctx context.Context, l *Listener, h Handler, drain, undo time.Duration) error {
	// The lock is given back last: no successor starts beside requests that still run.
	defer l.Close()

	s := &server{handler: h, conns: map[*net.UnixConn]bool{}}
	// Requests outlive ctx by drain.
	requests, cancelRequests := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelRequests()
	accepting, stopAccepting := context.WithCancel(ctx)
	defer stopAccepting()
	stop := context.AfterFunc(accepting, func() { l.socket.Close() }) // an error is Serve's own Close's too
	defer stop()

	if err := s.accept(accepting, requests, l.socket); err != nil {
		stopAccepting()
		s.abandon()
		return fmt.Errorf("serve CNI on %s: %w", l.path, err)
	}
	if s.endsWithin(drain) {
		return nil
	}
	cancelRequests()
	if s.endsWithin(undo) {
		return nil
	}
	s.abandon()
	return fmt.Errorf("stop serving CNI on %s: requests did not end in %s", l.path, drain+undo)
}

// server is the exchanges in progress.
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
			select { // those in flight will give some back
			case <-time.After(acceptAgain):
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
	conn.Close() // what was written has left; nobody can be told of more
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, conn)
}

// endsWithin tells whether all exchanges end in time.
func (s *server) endsWithin(bound time.Duration) bool {
	ended := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return true
	case <-time.After(bound):
		return false
	}
}

// abandon makes the plugins that still wait know that no answer comes.
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
	if err := conn.SetWriteDeadline(time.Now().Add(wireTime)); err != nil {
		return
	}
	_, _ = conn.Write(append(data, '\n')) // a plugin that is gone needs no answer
}

func (s *server) answer(ctx context.Context, conn *net.UnixConn) answer {
	if err := authorized(conn); err != nil {
		return answer{Error: asCNIError(err)}
	}
	if err := conn.SetReadDeadline(time.Now().Add(wireTime)); err != nil {
		return answer{Error: asCNIError(err)}
	}
	line, err := readLine(conn, maxRequestBytes)
	if err != nil {
		return answer{Error: types.NewError(types.ErrDecodingFailure, "the request does not arrive whole", err.Error())}
	}
	req, err := DecodeRequest(line)
	if err != nil {
		return answer{Error: asCNIError(err)}
	}
	ctx, cancel := context.WithTimeout(ctx, req.timeout())
	defer cancel()
	stop := whenGone(conn, cancel)
	defer stop()
	result, err := s.call(ctx, req)
	if err != nil {
		return answer{Error: asCNIError(err)}
	}
	return answer{Result: result}
}

// whenGone calls gone when the plugin closes its end, which it does not do before it has its answer. stop ends the watch.
func whenGone(conn *net.UnixConn, gone func()) (stop func()) {
	watching := make(chan struct{})
	if conn.SetReadDeadline(time.Time{}) != nil {
		gone()
		return func() {}
	}
	go func() {
		defer close(watching)
		_, err := conn.Read(make([]byte, 1))
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() {
			gone()
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
	default: // the decoder lets only STATUS through
		return nil, s.handler.Status(ctx)
	}
}

// authorized refuses everybody but root. The socket's mode does too; this holds even when someone changes that.
func authorized(conn *net.UnixConn) error {
	uid, err := peerUID(conn)
	switch {
	case err != nil:
		return types.NewError(types.ErrInternal, "the agent can't tell who calls", err.Error())
	case uid != 0:
		return types.NewError(types.ErrInternal, fmt.Sprintf("uid %d may not call the node agent: run the plugin as root", uid), "")
	}
	return nil
}

// peerUID is who connected, as the kernel recorded it at connect time (unix(7), SO_PEERCRED).
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

func errTooLong(limit int) error { return fmt.Errorf("it is longer than %d bytes", limit) }
