package unidling

import (
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"
)

// maxRequests is the number of pending services of a namespace. Packets for more are dropped: users can create Events for any name, and agents repeat theirs.
const maxRequests = 200

// request is the last packet that an agent reported for a service, until it has endpoints or the request is too old.
type request struct {
	at       time.Time
	due      time.Time // when the next attempt is made
	tokens   int       // that it takes from the budget
	failures int       // since the last success
	reported string    // the message of the last Event about a failure, so that retries do not repeat it
	woken    time.Time // when all targets were scaled; zero: not yet
	idledAt  time.Time // of the service that was woken
}

func newRequest(at time.Time) request { return request{at: at, due: time.Now(), tokens: 1} }

func (r request) activity() activity {
	if r.woken.IsZero() {
		return waking
	}
	return polling
}

// requests are the pending requests by namespace.
type requests struct {
	mu         sync.Mutex
	namespaces map[string]*namespaceRequests
}

type namespaceRequests struct {
	services map[string]request
	paused   [activities]time.Time // until the budget has tokens again
}

// due returns when the next attempt for a service can be made.
func (n *namespaceRequests) due(r request) time.Time {
	if until := n.paused[r.activity()]; until.After(r.due) {
		return until
	}
	return r.due
}

func newRequests() *requests { return &requests{namespaces: map[string]*namespaceRequests{}} }

// add records a packet, and reports whether it may lead to an earlier attempt. A pending retry is not made earlier.
func (q *requests) add(service cache.ObjectName, at time.Time) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.namespaces[service.Namespace]
	if n == nil {
		n = &namespaceRequests{services: map[string]request{}}
		q.namespaces[service.Namespace] = n
	}
	r, ok := n.services[service.Name]
	switch now := time.Now(); {
	case !ok && len(n.services) >= maxRequests, ok && !r.at.Before(at):
		return false
	case !ok:
		r = newRequest(at)
	default:
		r.at = at
		if r.failures == 0 && r.due.After(now) {
			r.due = now
		}
	}
	n.services[service.Name] = r
	return true
}

// first returns the service of the namespace that is due first, and when; no name: none is pending.
func (q *requests) first(namespace string) (name string, r request, due time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.namespaces[namespace]
	if n == nil {
		return "", request{}, time.Time{}
	}
	for candidate, c := range n.services {
		at := n.due(c)
		if name == "" || at.Before(due) || at.Equal(due) && c.due.Before(r.due) {
			name, r, due = candidate, c, at
		}
	}
	return name, r, due
}

// pause postpones all attempts of an activity in a namespace.
func (q *requests) pause(namespace string, a activity, d time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := q.namespaces[namespace]; n != nil {
		n.paused[a] = time.Now().Add(d)
	}
}

// finish deletes the request. If a later packet was reported in the meantime, that one is due.
func (q *requests) finish(service cache.ObjectName, finished request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.namespaces[service.Namespace]
	if n == nil {
		return
	}
	if r, ok := n.services[service.Name]; ok && r.at.After(finished.at) {
		again := newRequest(r.at)
		again.reported = r.reported
		n.services[service.Name] = again
		return
	}
	delete(n.services, service.Name)
	if len(n.services) == 0 {
		delete(q.namespaces, service.Namespace)
	}
}

// update changes the request, if it is not finished.
func (q *requests) update(service cache.ObjectName, change func(*request)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.namespaces[service.Namespace]
	if n == nil {
		return
	}
	if r, ok := n.services[service.Name]; ok {
		change(&r)
		n.services[service.Name] = r
	}
}
