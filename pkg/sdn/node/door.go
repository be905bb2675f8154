package node

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
	// doorPatience is how long a request waits while the node is being set up, as when the agent has just been started again.
	// Runtimes come again by themselves.
	doorPatience = 10 * time.Second

	// What cniserver gives requests when the agent stops, they also get when the network changes.
	drainTime = 5 * time.Second
	undoTime  = 15 * time.Second
)

// door is what the CNI socket leads to for as long as the agent lives: the pod manager while the node is set up. At other times
// requests wait a little, and are told why; STATUS is told at once.
type door struct {
	patience, drain, undo time.Duration

	mu     sync.Mutex
	inside *room         // nil: closed
	why    error         // while it is closed
	soon   bool          // it opens again, for all that is known
	opened chan struct{} // closed when it opens
}

var _ cniserver.Handler = &door{}

func newDoor() *door {
	return &door{
		patience: doorPatience,
		drain:    drainTime,
		undo:     undoTime,
		why:      errors.New("the node agent is starting"),
		soon:     true,
		opened:   make(chan struct{}),
	}
}

// room is a handler with its requests in progress.
type room struct {
	cniserver.Handler
	guests sync.WaitGroup
	over   context.Context // ends what takes too long after the door has closed
}

// lead leads requests to the handler until the context ends, then lets those in progress end, in bounded time.
func (d *door) lead(ctx context.Context, h cniserver.Handler) error {
	over, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	r := &room{Handler: h, over: over}
	d.mu.Lock()
	d.inside = r
	close(d.opened)
	d.mu.Unlock()

	<-ctx.Done()
	d.mu.Lock()
	d.inside, d.why, d.soon = nil, errors.New("the node agent is stopping, or sets the node up anew"), true
	d.opened = make(chan struct{})
	d.mu.Unlock()
	if endsWithin(&r.guests, d.drain) {
		return nil
	}
	end()
	if endsWithin(&r.guests, d.undo) {
		return nil
	}
	return fmt.Errorf("CNI requests did not end in %s", d.drain+d.undo)
}

func endsWithin(group *sync.WaitGroup, bound time.Duration) bool {
	ended := make(chan struct{})
	go func() {
		group.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return true
	case <-time.After(bound):
		return false
	}
}

// explain says why the door is closed.
func (d *door) explain(why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.why, d.soon = why, false
}

// look returns the handler; nil: closed, and why.
func (d *door) look() (r *room, opened chan struct{}, why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.inside != nil {
		d.inside.guests.Add(1)
	}
	return d.inside, d.opened, d.why
}

// closed returns why the door is closed, nil if it is open.
func (d *door) closed() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.inside == nil {
		return d.why
	}
	return nil
}

// enter waits for the door to open. The request must leave when it has been served, and end with the context that it gets.
func (d *door) enter(ctx context.Context) (r *room, inside context.Context, leave func(), err error) {
	patience := time.NewTimer(d.patience)
	defer patience.Stop()
	for {
		r, opened, why := d.look()
		if r != nil {
			inside, cancel := context.WithCancel(ctx)
			stop := context.AfterFunc(r.over, cancel)
			return r, inside, func() { stop(); cancel(); r.guests.Done() }, nil
		}
		select {
		case <-opened:
			continue
		case <-patience.C:
		case <-ctx.Done():
		}
		return nil, nil, nil, types.NewError(types.ErrTryAgainLater, "the node's pod network is not set up", why.Error())
	}
}

// Add implements cniserver.Handler.
func (d *door) Add(ctx context.Context, req *cniserver.Request) (*current.Result, error) {
	r, ctx, leave, err := d.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return r.Add(ctx, req)
}

// Del implements cniserver.Handler.
func (d *door) Del(ctx context.Context, req *cniserver.Request) error {
	return d.through(ctx, func(ctx context.Context, r *room) error { return r.Del(ctx, req) })
}

// Check implements cniserver.Handler.
func (d *door) Check(ctx context.Context, req *cniserver.Request) error {
	return d.through(ctx, func(ctx context.Context, r *room) error { return r.Check(ctx, req) })
}

// GC implements cniserver.Handler.
func (d *door) GC(ctx context.Context, req *cniserver.Request) error {
	return d.through(ctx, func(ctx context.Context, r *room) error { return r.GC(ctx, req) })
}

func (d *door) through(ctx context.Context, call func(context.Context, *room) error) error {
	r, ctx, leave, err := d.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	return call(ctx, r)
}

// Status implements cniserver.Handler. An agent that has just been started, or is about to be, is no reason to call the node not ready: who asks
// is told to ask again.
func (d *door) Status(ctx context.Context) error {
	r, _, why := d.look()
	if r == nil {
		code := types.ErrPluginNotAvailable
		if d.opensSoon() {
			code = types.ErrTryAgainLater
		}
		return types.NewError(code, "the node's pod network is not set up", why.Error())
	}
	defer r.guests.Done()
	return r.Status(ctx)
}

func (d *door) opensSoon() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.soon
}
