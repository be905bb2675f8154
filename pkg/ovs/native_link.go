package ovs

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"
)

// session is a connection. It ends by itself when the other side goes, or by close.
type session interface {
	comparable
	ended() <-chan struct{}
	close() // waits until all of the session's own goroutines are done
}

// link holds at most one session to a socket. A session is made when somebody asks for one, and shared until it ends.
type link[S session] struct {
	dial    func(ctx context.Context) (S, error)
	timeout time.Duration // of one dial

	ctx    context.Context // of dials, since a caller's would end them for all who share one
	cancel context.CancelFunc

	mu     sync.Mutex
	latest *dialing[S] // nil before the first
}

// dialing is an attempt to make a session, under way or done.
type dialing[S session] struct {
	done    chan struct{}
	session S // valid once done is closed, as err is
	err     error
}

func newLink[S session](timeout time.Duration, dial func(context.Context) (S, error)) *link[S] {
	l := &link[S]{dial: dial, timeout: timeout}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// get returns the session, a new one if there is none. It does not wait for the other side to come up: when nobody
// answers there, the error says so at once.
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

// current returns the session if there is a living one.
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
	d := &dialing[S]{done: make(chan struct{})}
	if l.ctx.Err() != nil {
		d.err = fmt.Errorf("the connection to Open vSwitch: %w", net.ErrClosed)
		close(d.done)
		return d
	}
	l.latest = d
	go func() {
		defer close(d.done)
		ctx, cancel := context.WithTimeout(l.ctx, l.timeout)
		defer cancel()
		d.session, d.err = l.dial(ctx)
		if !IsUnavailable(d.err) {
			d.err = blame(l.ctx, ctx, l.timeout, d.err)
		}
	}()
	return d
}

// usable is valid once the dialing is done.
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

// close ends the session and all dialing, for good.
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

// keep makes a session again whenever the last one ended, and calls made for each but the one that was there when it
// began, until the context ends or the link is closed.
func (l *link[S]) keep(ctx context.Context, made func()) {
	last, _ := l.current()
	down := time.Now() // since when no session has lasted
	for ctx.Err() == nil && l.ctx.Err() == nil {
		if s, err := l.get(ctx); err == nil {
			if s != last {
				last = s
				made()
			}
			began := time.Now()
			select {
			case <-s.ended():
				s.close() // what it was told last must not come after what the next one is told
			case <-ctx.Done():
			}
			if time.Since(began) > reconnectLast {
				down = time.Now()
			}
		}
		pause(ctx, min(max(time.Since(down)/reconnectShare, reconnectFirst), reconnectLast))
	}
}

// Back-off of reconnecting: a share of the outage so far, which makes the outage no longer than by that share. A dial to a
// local socket costs 20 µs.
const (
	reconnectShare = 20
	reconnectFirst = 5 * time.Millisecond
	reconnectLast  = time.Second
)

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
