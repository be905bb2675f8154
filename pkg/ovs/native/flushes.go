package native

import (
	"context"
	"fmt"
	"sync"
)

// flushes are the deletions of all flows by vswitchd itself, after changes of the bridge's row.
type flushes struct {
	requests chan struct{} // to followFlushes

	mu       sync.Mutex
	expected int // number of changes after which vswitchd flushes
	reported int // number of these that followFlushes has reported
	nextCfg  int // of the last change of the root row that rowChanged has processed
}

// expect makes followFlushes report a flush.
func (f *flushes) expect() {
	f.mu.Lock()
	f.expected++
	f.mu.Unlock()
	select {
	case f.requests <- struct{}{}:
	default: // already requested
	}
}

// processed records that rowChanged has processed all changes up to that number.
func (f *flushes) processed(nextCfg int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nextCfg = nextCfg
}

// settled reports whether all flushes up to that number were reported.
func (f *flushes) settled(nextCfg int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.nextCfg >= nextCfg && f.reported == f.expected
}

// followFlushes reports a flush after vswitchd has confirmed the change that caused it.
func (db *database) followFlushes() {
	f := &db.flushes
	for {
		select {
		case <-f.requests:
		case <-db.ctx.Done():
			return
		}
		f.mu.Lock()
		expected := f.expected
		f.mu.Unlock()
		// The client that changed the fail mode may not have requested a confirmation (`ovs-vsctl --no-wait`).
		_, cfg, err := db.change(db.ctx)
		if err == nil {
			err = db.confirmed(db.ctx, cfg)
		}
		if err != nil && db.ctx.Err() != nil {
			return // the next session reports it
		}
		db.observer.onFlush() // after an error too early rather than never
		f.mu.Lock()
		f.reported = expected
		f.mu.Unlock()
		if root, err := db.root(); err == nil {
			db.wake(root.UUID) // for awaitFlushes
		}
	}
}

// awaitFlushes returns after all flushes that vswitchd has done before the call were reported.
func (db *database) awaitFlushes(ctx context.Context) error {
	root, err := db.root()
	if err != nil {
		return err
	}
	_, cfg, err := db.change(ctx) // rowChanged processes it after all earlier changes
	if err != nil {
		return err
	}
	return db.await(ctx, root.UUID, func() bool { return db.flushes.settled(cfg) })
}

// AwaitEvents implements Interface.
func (n *Native) AwaitEvents(ctx context.Context) error {
	err := within(ctx, n.timeout, n.db, func(ctx context.Context, db *database) error { return db.awaitFlushes(ctx) })
	if err != nil {
		return fmt.Errorf("wait for events of Open vSwitch: %w", err)
	}
	return nil
}
