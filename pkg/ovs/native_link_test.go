package ovs

import (
	"context"
	"testing"
)

// scene is a session that ends at once, and is done when it is closed.
type scene struct {
	lost   chan struct{}
	closed bool
}

func (s *scene) ended() <-chan struct{} { return s.lost }

func (s *scene) close() { s.closed = true }

// A reader of an ended session may be about to hand something over, which must not come after what the next session brings.
func TestLinkClosesASessionBeforeTheNext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var former *scene
	const enough = 3
	made := 0
	l := newLink(answerTimeout, func(context.Context) (*scene, error) {
		if former != nil && !former.closed {
			t.Error("the session before is not closed")
		}
		former = &scene{lost: make(chan struct{})}
		close(former.lost)
		if made++; made == enough {
			cancel()
		}
		return former, nil
	})
	defer l.close()
	l.keep(ctx, func() {})
}
