package native

import (
	"context"
	"errors"
	"slices"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

// exchange is a series of messages with consecutive XIDs, of which the last is a barrier, and the answers to them.
type exchange struct {
	first, barrier uint32
	sent           int           // number of messages that were passed to the writer
	done           chan struct{} // closed when the barrier is answered
	answers        []answer      // guarded by the session's mu; the commit of a bundle adds errors about earlier messages

	// take handles answers that are not retained, and returns false for others. It is called with the session's mu held, so never after the end of the exchange.
	take func(openflow.Message) bool
}

// answer is a message of the switch about the message with the given index in an exchange.
type answer struct {
	index   int
	message openflow.Message
}

// do sends n messages and a barrier, and returns the answers to the messages after the switch has processed them. If the context ends, some
// of the messages were not sent, but none was sent partly.
func (c *switchConn) do(ctx context.Context, n int, message func(i int) openflow.Message) ([]answer, error) {
	return c.doTaking(ctx, n, message, nil)
}

// doTaking is do with a function that handles answers as they arrive, see exchange.
func (c *switchConn) doTaking(ctx context.Context, n int, message func(i int) openflow.Message, take func(openflow.Message) bool) ([]answer, error) {
	x := c.begin(n, take)
	defer c.remove(x)
	if err := c.finish(ctx, x, func(i int) (openflow.Message, error) { return message(i), nil }); err != nil {
		return nil, err
	}
	return c.answers(x), nil
}

// finish sends the messages of an exchange and waits for the barrier reply.
func (c *switchConn) finish(ctx context.Context, x *exchange, message func(i int) (openflow.Message, error)) error {
	if err := c.send(ctx, x, message); err != nil {
		return err
	}
	select {
	case <-x.done:
		return nil
	case <-c.lost:
		return errSwitchLost()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// answers returns the answers received so far.
func (c *switchConn) answers(x *exchange) []answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clip(x.answers)
}

func errSwitchLost() error {
	return ovs.NewUnavailable(errors.New("connection to the bridge lost"))
}

func (c *switchConn) begin(n int, take func(openflow.Message) bool) *exchange {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := &exchange{first: c.lastXID + 1, barrier: c.lastXID + 1 + uint32(n), done: make(chan struct{}), take: take}
	c.lastXID = x.barrier
	c.exchanges[x] = true
	return x
}

func (c *switchConn) remove(x *exchange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.exchanges, x)
}

func (c *switchConn) send(ctx context.Context, x *exchange, message func(i int) (openflow.Message, error)) error {
	var b []byte
	n := int(x.barrier - x.first)
	for i := range n + 1 {
		var m openflow.Message = &openflow.BarrierRequest{}
		var err error
		if i < n {
			if m, err = message(i); err != nil {
				return &messageError{i, err}
			}
		}
		if b, err = openflow.Append(b, x.first+uint32(i), m); err != nil {
			return &messageError{i, err}
		}
		if len(b) < chunk && i < n {
			continue
		}
		if err := c.enqueue(ctx, b); err != nil {
			return err
		}
		x.sent = i + 1
		b = make([]byte, 0, len(b)+len(b)/8)
	}
	return nil
}

func (c *switchConn) enqueue(ctx context.Context, b []byte) error {
	select {
	case c.out <- b:
		return nil
	case <-c.lost:
		return errSwitchLost()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// deliver passes an answer to its exchange.
func (c *switchConn) deliver(xid uint32, m openflow.Message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for x := range c.exchanges {
		index := xid - x.first // modulo 2^32
		if index > x.barrier-x.first {
			continue
		}
		if _, ok := m.(*openflow.BarrierReply); ok && xid == x.barrier && !isClosed(x.done) {
			close(x.done)
		} else if x.take == nil || !x.take(m) {
			x.answers = append(x.answers, answer{int(index), m})
		}
		return
	}
}

// post sends one message if the queue has room, and never blocks.
func (c *switchConn) post(m openflow.Message) {
	c.mu.Lock()
	c.lastXID++
	xid := c.lastXID
	c.mu.Unlock()
	b, err := openflow.Append(nil, xid, m)
	if err != nil {
		return
	}
	select {
	case c.out <- b:
	default:
	}
}

// messageError reports that a message of an exchange cannot be compiled or encoded.
type messageError struct {
	index int
	err   error
}

func (e *messageError) Error() string { return e.err.Error() }

func (e *messageError) Unwrap() error { return e.err }
