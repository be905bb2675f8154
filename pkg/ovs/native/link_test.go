package native

import (
	"context"
	"testing"
)

// fakeSession is a session that ends at once.
type fakeSession struct {
	lost   chan struct{}
	closed bool
}

func (s *fakeSession) ended() <-chan struct{} { return s.lost }

func (s *fakeSession) close() { s.closed = true }

// The goroutines of an ended session may still report events, which must precede those of the next session.
func TestLinkClosesSessionBeforeNext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var previous *fakeSession
	const enough = 3
	made := 0
	l := newLink(answerTimeout, func(context.Context) (*fakeSession, error) {
		if previous != nil && !previous.closed {
			t.Error("got a dial before the previous session was closed, want it after")
		}
		previous = &fakeSession{lost: make(chan struct{})}
		close(previous.lost)
		if made++; made == enough {
			cancel()
		}
		return previous, nil
	})
	defer l.close()
	l.maintain(ctx)
}
