package flowstore

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pause"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// To list 100,000 connections costs vswitchd a quarter of a second. They are listed at most once in flushInterval, and in one restShare-th of the time, but
// after maxRest at the latest.
const (
	flushInterval = time.Second
	restShare     = 10
	maxRest       = 10 * time.Second

	// addrInterval is how long connections of a deleted pod may stay tracked. A node allocates an address again after all its others.
	addrInterval = time.Minute
)

// flusher is the last phase of a write. It runs beside the writer, so that no change of flows waits for a list of connections.
type flusher struct {
	bridge ovs.Interface
	runner *reconcile.Runner

	mu          sync.Mutex
	evaluators  []zonesEvaluator
	due         revocations // whose flows are installed
	evaluations int
	connections int
}

func newFlusher(bridge ovs.Interface) *flusher {
	f := &flusher{bridge: bridge}
	f.runner = reconcile.NewRunner("conntrack flush", flushInterval, f.serve).WithMaxBackoff(maxRest)
	return f
}

// request adds revocations whose flows are installed. It does not block.
func (f *flusher) request(r revocations) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.evaluators) == 0 {
		return
	}
	f.due.merge(r)
	if f.due.restarted || f.due.permission {
		f.runner.Trigger()
	}
}

// run flushes due connections until the context ends.
func (f *flusher) run(ctx context.Context) {
	f.request(revocations{}) // for those that a previous call of run did not flush
	var parts sync.WaitGroup
	parts.Go(func() { f.runner.Run(ctx) })
	parts.Go(func() { f.flushAddrs(ctx) })
	parts.Wait()
}

// flushAddrs bounds how long addresses wait for an evaluation.
func (f *flusher) flushAddrs(ctx context.Context) {
	tick := time.NewTicker(addrInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		f.mu.Lock()
		if len(f.due.addrs) > 0 {
			f.runner.Trigger()
		}
		f.mu.Unlock()
	}
}

// take returns and clears the due revocations.
func (f *flusher) take() (r revocations, evaluators []zonesEvaluator) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, f.due = f.due, revocations{}
	return r, f.evaluators
}

// serve flushes connections of the due revocations. After an error these are due again.
func (f *flusher) serve(ctx context.Context) error {
	r, evaluators := f.take()
	if r.empty() {
		return nil
	}
	// Flush only after the new flows are active: until then vswitchd commits the connections again.
	if err := f.bridge.AwaitDatapath(ctx); err != nil {
		f.request(r)
		return err
	}
	start := time.Now()
	l := connectionList{deleted: r.addrs, invalid: invalidOf(evaluators, r.restarted), zones: map[uint16]struct{}{}}
	count, err := f.flush(ctx, allZones(evaluators), &l)
	if count > 0 {
		klog.FromContext(ctx).Info("Flushed connections", "connections", count)
	}
	if err != nil || l.more {
		r.permission = true
		f.request(r)
	}
	f.mu.Lock()
	f.evaluations++
	f.connections += count
	f.mu.Unlock()
	pause.For(ctx, min(restShare*time.Since(start), maxRest))
	return err
}

// transactionConnections bounds the connections that one transaction flushes: a bundle of the writer waits for at most so many (80 ms of vswitchd).
const transactionConnections = 10_000

// flush lists the connections once, flushes those that are not valid, and returns their number.
func (f *flusher) flush(ctx context.Context, zones ovs.Zones, l *connectionList) (int, error) {
	if l.invalid == nil && len(l.deleted) == 0 {
		return 0, nil
	}
	err := f.bridge.ListConnections(ctx, zones, l.add)
	count := 0
	for some := range slices.Chunk(l.selected, transactionConnections) {
		tx := f.bridge.NewTransaction()
		for _, c := range some {
			tx.Flush(c)
		}
		if failed := f.bridge.Run(ctx, tx); failed != nil {
			return count, errors.Join(err, failed)
		}
		count += len(some)
	}
	return count, err
}
