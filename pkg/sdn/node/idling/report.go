package idling

import (
	"time"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
)

// queue has the services to report, those of each namespace in turn: a tenant with many idled services does not delay those of others.
type queue struct {
	of         map[string][]*service // by namespace, none empty
	namespaces []string              // its keys, in the order of their turns
}

func (q *queue) add(s *service) {
	s.queued = true
	if len(q.of[s.namespace]) == 0 {
		q.namespaces = append(q.namespaces, s.namespace)
	}
	q.of[s.namespace] = append(q.of[s.namespace], s)
}

// next removes a service; nil: the queue is empty.
func (q *queue) next() *service {
	if len(q.namespaces) == 0 {
		return nil
	}
	namespace := q.namespaces[0]
	q.namespaces = q.namespaces[1:]
	s := q.of[namespace][0]
	s.queued = false
	if rest := q.of[namespace][1:]; len(rest) > 0 {
		q.of[namespace] = rest
		q.namespaces = append(q.namespaces, namespace)
	} else {
		delete(q.of, namespace)
	}
	return s
}

// report writes Events about services of the queue, as far as the budget allows. It returns the time until the next call is due.
func (h *Holder) report() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	for len(h.queue.namespaces) > 0 {
		if !h.budget.AllowN(now, 1) {
			return time.Second / reportRate
		}
		s := h.queue.next()
		for s != nil && (h.services[s.key] != s || !s.released.IsZero()) { // released in the meantime
			s = h.queue.next()
		}
		if s == nil {
			break
		}
		s.reported = now
		h.events.EventService(s.namespace, s.name, s.uid, eventreason.NeedPods, "a client has sent a packet to the idled service, which has no endpoints; scale its workload")
	}
	return holdTime
}
