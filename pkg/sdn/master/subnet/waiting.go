package subnet

import (
	"net/netip"
	"sync"
)

// waiting are the names of nodes for which no subnet was free, the first come first. It is safe for concurrent use.
type waiting struct {
	mu      sync.Mutex
	names   []string
	present map[string]bool // of names, which keeps those that left until their turn
}

func (w *waiting) add(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, listed := w.present[name]; !listed {
		w.names = append(w.names, name)
	}
	w.present[name] = true
}

func (w *waiting) remove(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.present[name] {
		w.present[name] = false
	}
}

// pop takes the first one out.
func (w *waiting) pop() (string, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.names) > 0 {
		name := w.names[0]
		w.names = w.names[1:]
		here := w.present[name]
		delete(w.present, name)
		if here {
			return name, true
		}
	}
	return "", false
}

// allocate gives the node a subnet. Without one it waits, from before the question on: a subnet that comes free
// between the answer and the wait would be missed.
func (c *Controller) allocate(name string) (netip.Prefix, error) {
	c.waiting.add(name)
	p, err := c.allocator.Allocate(name)
	if err != nil {
		return p, err
	}
	c.waiting.remove(name)
	c.wakeAfter(true) // more than one may have come free at once
	return p, nil
}

// wakeAfter lets the first that waits try again when something was freed. One at a time: each success wakes the next.
func (c *Controller) wakeAfter(freed bool) {
	if !freed {
		return
	}
	if name, ok := c.waiting.pop(); ok {
		c.loop.Add(name)
	}
}
