package subnet

import (
	"context"
	"net/netip"
	"sync"
)

// waitQueue is a FIFO queue of the names of nodes for which no subnet was free. It is safe for concurrent use.
type waitQueue struct {
	mu      sync.Mutex
	names   []string        // including removed ones, which retain their position
	waiting map[string]bool // by name of names; false: removed
}

func newWaitQueue() *waitQueue { return &waitQueue{waiting: map[string]bool{}} }

func (q *waitQueue) add(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, listed := q.waiting[name]; !listed {
		q.names = append(q.names, name)
	}
	q.waiting[name] = true
}

func (q *waitQueue) remove(name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiting[name] {
		q.waiting[name] = false
	}
}

func (q *waitQueue) pop() (string, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.names) > 0 {
		name := q.names[0]
		q.names = q.names[1:]
		waiting := q.waiting[name]
		delete(q.waiting, name)
		if waiting {
			return name, true
		}
	}
	return "", false
}

// allocate allocates a subnet for the node, or adds the node to the wait queue. It adds the node before it calls the allocator, so that it does
// not miss a subnet that is released in between. If no subnet is free, it releases one of a deleted Node. The error is a *FullError if there is none.
func (c *Controller) allocate(ctx context.Context, name string) (netip.Prefix, error) {
	c.waitQueue.add(name)
	p, err := c.allocator.Allocate(name)
	if err != nil {
		p, err = c.allocateRetained(ctx, name, err)
	}
	if err != nil {
		return p, err
	}
	c.waitQueue.remove(name)
	c.retryWaiting(true) // more than one subnet may have been released
	return p, nil
}

// retryWaiting reconciles the first node of the wait queue if a subnet was released. If the allocation succeeds, allocate retries the next.
func (c *Controller) retryWaiting(released bool) {
	if !released {
		return
	}
	if name, ok := c.waitQueue.pop(); ok {
		c.loop.Add(name)
	}
}
