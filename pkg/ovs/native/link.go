package native

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// session is a connection. It ends when the other side closes it, or with close.
type session interface {
	ended() <-chan struct{}
	close() // waits for the goroutines of the session
}

// link has at most one session with a socket. A session is created on demand and shared until it ends.
type link[S session] struct {
	dial    func(ctx context.Context) (S, error)
	timeout time.Duration // of one dial

	ctx    context.Context // of dials, which callers share and must not cancel
	cancel context.CancelFunc

	mu     sync.Mutex
	latest *dialing[S] // nil before the first
}

// dialing is an attempt to create a session, running or finished.
type dialing[S session] struct {
	done    chan struct{}
	session S // session and err are valid after done is closed
	err     error
}

func newLink[S session](timeout time.Duration, dial func(context.Context) (S, error)) *link[S] {
	l := &link[S]{dial: dial, timeout: timeout}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// get returns the session, or creates one. It does not wait for a server: if none listens on the socket, it returns the error at once.
func (l *link[S]) get(ctx context.Context) (S, error) {
	d := l.attempt()
	select {
	case <-d.done:
		return d.session, d.err
	case <-ctx.Done():
		var none S
		return none, ctx.Err()
	}
}

// current returns the session if one exists and has not ended.
func (l *link[S]) current() (s S, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.latest == nil || !isClosed(l.latest.done) || !l.latest.usable() {
		return s, false
	}
	return l.latest.session, true
}

func (l *link[S]) attempt() *dialing[S] {
	l.mu.Lock()
	defer l.mu.Unlock()
	if d := l.latest; d != nil && (!isClosed(d.done) || d.usable()) {
		return d
	}
	previous, d := l.latest, &dialing[S]{done: make(chan struct{})}
	if l.ctx.Err() != nil {
		d.err = fmt.Errorf("connection to Open vSwitch: %w", net.ErrClosed)
		close(d.done)
		return d
	}
	l.latest = d
	go func() {
		defer close(d.done)
		if previous != nil && previous.err == nil {
			previous.session.close() // its last events must precede those of the next session
		}
		ctx, cancel := context.WithTimeout(l.ctx, l.timeout)
		defer cancel()
		d.session, d.err = l.dial(ctx)
		if !ovs.IsUnavailable(d.err) {
			d.err = timeoutError(l.ctx, ctx, l.timeout, d.err)
		}
	}()
	return d
}

// usable reports whether the session can be used. The dialing must be done.
func (d *dialing[S]) usable() bool {
	return d.err == nil && !isClosed(d.session.ended())
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// close ends the session and prevents new ones.
func (l *link[S]) close() {
	l.cancel()
	l.mu.Lock()
	d := l.latest
	l.mu.Unlock()
	if d == nil {
		return
	}
	<-d.done
	if d.err == nil {
		d.session.close()
	}
}

// maintain creates a session whenever the previous one has ended, until the context ends or the link is closed.
func (l *link[S]) maintain(ctx context.Context) {
	down := time.Now() // when the last stable session ended
	for ctx.Err() == nil && l.ctx.Err() == nil {
		if s, err := l.get(ctx); err == nil {
			began := time.Now()
			select {
			case <-s.ended():
			case <-ctx.Done():
			}
			if time.Since(began) > reconnectLast {
				down = time.Now()
			}
		}
		pause(ctx, min(max(time.Since(down)/reconnectShare, reconnectFirst), reconnectLast))
	}
}

// Backoff of reconnecting: the pause is a share of the outage so far, which prolongs the outage by at most that share. A dial of a local
// socket takes 20 µs.
const (
	reconnectShare = 20
	reconnectFirst = 5 * time.Millisecond
	reconnectLast  = time.Second
)

// pause waits as pkg/sdn/pause does, which pkg/ovs must not import.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
