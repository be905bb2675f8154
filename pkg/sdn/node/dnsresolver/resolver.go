// Package dnsresolver resolves names again whenever their TTL ends, and retains each address for as long as DNS may still be answering with it.
//
// Each node resolves the names of its own pods (docs/decisions/0018-egress-policies.md). Only the workers of Run wait for DNS.
package dnsresolver

import (
	"context"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

const (
	// Grace is how long an address is retained after the TTL of the last answer that had it: connections to it continue while clients change to another.
	Grace = 30 * time.Second

	// minInterval is the minimum time between two queries for a name: less than Grace, so that a name with a shorter TTL does not lose its addresses.
	minInterval = 5 * time.Second

	maxTTL         = time.Hour // longer ones are shortened
	maxNegativeTTL = 5 * time.Minute
	maxRetry       = time.Minute // after failures

	// MaxAddrs is the number of addresses of a name.
	MaxAddrs = 100

	// Workers that wait for DNS. Names that were slow have workers of their own, so that they delay only each other.
	quickWorkers = 64
	slowWorkers  = 192
	schedulers   = 4

	slowLookup   = 500 * time.Millisecond // a query that takes longer is slow
	quickLookups = 8                      // quick queries in a row, after which a name is no longer slow
)

// Answer is what DNS has answered for a name.
type Answer struct {
	Addrs  []netip.Addr // whose TTL and grace have not ended, sorted
	Latest []netip.Addr // of the last answer, sorted: a failure later does not remove them
	Known  bool         // there was an answer, which may have no address
	Excess bool         // the last answer had more than MaxAddrs addresses; the others are missing

	Err   error     // of the last query, nil: it succeeded
	Since time.Time // of the first failure after the last answer
}

// Resolver resolves the names that are followed. Its methods are safe for concurrent use.
type Resolver struct {
	lookUp  func(ctx context.Context, name string) (reply, error)
	changed func(name string)
	loop    *reconcile.Loop // expires addresses and schedules queries; it waits for nothing

	quick, slow *reconcile.Loop // query names

	mu    sync.Mutex
	names map[string]*entry
}

// entry is a name that is followed.
type entry struct {
	followers int
	answer    Answer
	expires   map[netip.Addr]time.Time
	failures  int
	next      time.Time     // of the next query
	first     chan struct{} // closed after the first query
	query     query
	slow      int // quick queries until the name is no longer slow
}

// query is the state of the query for a name.
type query uint8

const (
	idle query = iota
	queued
	running
)

// New returns a resolver. It calls changed, without locks, when the answer for a name has changed.
func New(servers Servers, changed func(name string)) *Resolver {
	r := &Resolver{lookUp: client{servers}.lookUp, changed: changed, names: map[string]*entry{}}
	r.loop = reconcile.New("dns-names", r.process)
	r.quick, r.slow = reconcile.New("dns-queries", r.ask), reconcile.New("slow-dns-queries", r.ask)
	return r
}

// Follow resolves the name from now on, until as many calls of Unfollow.
func (r *Resolver) Follow(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.names[name]
	if e == nil {
		e = &entry{expires: map[netip.Addr]time.Time{}, first: make(chan struct{}), slow: 1}
		r.names[name] = e
		r.loop.Add(name)
	}
	e.followers++
}

// Unfollow ends the effect of one call of Follow.
func (r *Resolver) Unfollow(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.names[name]
	if e == nil {
		return
	}
	if e.followers--; e.followers == 0 {
		delete(r.names, name)
	}
}

// Answer returns the answer for a name that is followed. The caller must not modify it.
func (r *Resolver) Answer(name string) Answer {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.names[name]; e != nil {
		return e.answer
	}
	return Answer{}
}

// AwaitFirst returns when all names that are followed were resolved, or could not be, or the context ends.
func (r *Resolver) AwaitFirst(ctx context.Context) {
	r.mu.Lock()
	var pending []chan struct{}
	for _, e := range r.names {
		pending = append(pending, e.first)
	}
	r.mu.Unlock()
	for _, first := range pending {
		select {
		case <-first:
		case <-ctx.Done():
			return
		}
	}
}

// Run resolves names until the context ends. It is called once.
func (r *Resolver) Run(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { r.loop.Run(ctx, schedulers) })
	parts.Go(func() { r.quick.Run(ctx, quickWorkers) })
	parts.Go(func() { r.slow.Run(ctx, slowWorkers) })
	parts.Wait()
}

// process removes addresses that have expired, also while a query is waiting for DNS, and queues the query if that is due.
func (r *Resolver) process(_ context.Context, name string) error {
	r.mu.Lock()
	e := r.names[name]
	if e == nil {
		r.mu.Unlock()
		return nil
	}
	now, before := time.Now(), e.answer
	e.expire(now)
	if e.query == idle && !e.next.After(now) {
		e.query = queued
		if e.slow > 0 {
			r.slow.Add(name)
		} else {
			r.quick.Add(name)
		}
	}
	r.schedule(name, e, now)
	changed := !before.equal(e.answer)
	r.mu.Unlock()
	if changed {
		r.changed(name)
	}
	return nil
}

// schedule schedules the next call of process for the name. The lock must be held.
func (r *Resolver) schedule(name string, e *entry, now time.Time) {
	if next, ok := e.wake(); ok {
		r.loop.AddAfter(name, next.Sub(now))
	}
}

// ask queries a name whose query is queued.
func (r *Resolver) ask(ctx context.Context, name string) error {
	r.mu.Lock()
	e := r.names[name]
	if e == nil || e.query != queued {
		r.mu.Unlock()
		return nil
	}
	e.query = running
	r.mu.Unlock()
	start := time.Now()
	got, err := r.lookUp(ctx, name)
	if ctx.Err() != nil {
		return nil
	}
	logFailure(ctx, name, err)
	r.mu.Lock()
	if r.names[name] != e {
		r.mu.Unlock() // followed again in the meantime, with an entry of its own
		return nil
	}
	now, before := time.Now(), e.answer
	e.query = idle
	if e.slow = max(e.slow-1, 0); now.Sub(start) > slowLookup {
		e.slow = quickLookups
	}
	e.set(now, got, err)
	e.expire(now)
	r.schedule(name, e, now)
	changed := !before.equal(e.answer)
	r.mu.Unlock()
	if changed {
		r.changed(name)
	}
	return nil
}

func logFailure(ctx context.Context, name string, err error) {
	if err != nil {
		klog.FromContext(ctx).V(1).Info("Failed to resolve DNS name of EgressNetworkPolicy", "name", name, "err", err)
	}
}

// set changes the entry to the result of a query.
func (e *entry) set(now time.Time, got reply, err error) {
	if err != nil {
		if e.failures++; e.failures == 1 {
			e.answer.Since = now
		}
		e.answer.Err = err
		backoff := min(minInterval<<min(e.failures-1, 10), maxRetry)
		e.next = now.Add(backoff + rand.N(backoff/10)) //nolint:gosec // jitter
	} else {
		addrs := got.addrs[:min(len(got.addrs), MaxAddrs)]
		e.answer = Answer{Known: true, Latest: addrs, Excess: len(got.addrs) > MaxAddrs}
		e.failures = 0
		e.next = now.Add(max(got.ttl, minInterval))
		for _, a := range addrs {
			e.expires[a] = now.Add(got.ttl + Grace)
		}
		e.limit(addrs)
	}
	select {
	case <-e.first:
	default:
		close(e.first)
	}
}

// limit removes the addresses that expire first, except for those of the last answer, if there are too many.
func (e *entry) limit(latest []netip.Addr) {
	if len(e.expires) <= MaxAddrs {
		return
	}
	old := slices.DeleteFunc(slices.Collect(maps.Keys(e.expires)), func(a netip.Addr) bool { return slices.Contains(latest, a) })
	slices.SortFunc(old, func(a, b netip.Addr) int { return e.expires[a].Compare(e.expires[b]) })
	for _, a := range old[:len(e.expires)-MaxAddrs] {
		delete(e.expires, a)
	}
}

// expire removes expired addresses, and sets those of the answer.
func (e *entry) expire(now time.Time) {
	maps.DeleteFunc(e.expires, func(_ netip.Addr, end time.Time) bool { return !end.After(now) })
	e.answer.Addrs = slices.SortedFunc(maps.Keys(e.expires), netip.Addr.Compare)
}

// wake returns the time of the next query, or of the first address that expires before; none while a query runs and there are no addresses.
func (e *entry) wake() (next time.Time, ok bool) {
	if e.query == idle {
		next, ok = e.next, true
	}
	for _, end := range e.expires {
		if !ok || end.Before(next) {
			next, ok = end, true
		}
	}
	return next, ok
}

// equal reports whether users of the answer have nothing to do. The texts of two errors are not compared, since they differ in ports.
func (a Answer) equal(b Answer) bool {
	return a.Known == b.Known && a.Excess == b.Excess && (a.Err == nil) == (b.Err == nil) && a.Since.Equal(b.Since) &&
		slices.Equal(a.Addrs, b.Addrs) && slices.Equal(a.Latest, b.Latest)
}
