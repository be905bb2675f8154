package ovs

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

// DefaultRunDir is where Open vSwitch's packages put its sockets.
const DefaultRunDir = "/var/run/openvswitch"

const (
	// answerTimeout is how long one call may take. vswitchd needs 40 ms to add a port to 500.
	answerTimeout = 10 * time.Second
	// replaceTimeout: a full replacement of 200,000 flows takes about two seconds.
	replaceTimeout = 60 * time.Second
	// dialTimeout covers the first copy of a database with thousands of ports.
	dialTimeout = 5 * time.Second
)

// Native programs a bridge over the sockets of ovsdb-server and ovs-vswitchd, without running a program.
//
// It connects when it is first asked and keeps the connections. One that was lost is made again by the next call, or at
// once while somebody watches.
type Native struct {
	bridge  string
	runDir  string
	timeout time.Duration // of one call, but for Replace and dumps
	undo    time.Duration // of taking back what a call has left, once its own time is over
	db      *link[*database]
	flows   *link[*switchConn]

	sessions atomic.Int64 // with vswitchd, so far

	mu       sync.Mutex
	watchers map[*watcher]bool
}

var _ Interface = (*Native)(nil)

// NewNative returns a backend for the bridge of the Open vSwitch whose sockets are in runDir (DefaultRunDir, unless it is a
// test's). Close it when it is not needed any more.
func NewNative(bridge, runDir string) *Native {
	n := &Native{bridge: bridge, runDir: runDir, timeout: answerTimeout, undo: answerTimeout, watchers: map[*watcher]bool{}}
	var former *database
	n.db = newLink(dialTimeout, func(ctx context.Context) (*database, error) {
		db, err := dialDatabase(ctx, filepath.Join(runDir, "db.sock"), observer{bridge: bridge, onOFPort: n.onOFPort, onFlush: n.onFlush})
		if err != nil {
			return nil, err
		}
		if former != nil {
			n.compareNumbers(former, db)
		}
		former = db
		return db, nil
	})
	n.flows = newLink(dialTimeout, func(ctx context.Context) (*switchConn, error) {
		c, err := dialSwitch(ctx, filepath.Join(runDir, bridge+".mgmt"))
		if err != nil {
			return nil, err
		}
		if err := c.matchFragments(ctx); err != nil {
			c.close()
			return nil, err
		}
		c.number = n.sessions.Add(1)
		return c, nil
	})
	return n
}

// Connected reports whether both the database and vswitchd are connected at this moment.
func (n *Native) Connected() bool {
	_, database := n.db.current()
	_, vswitchd := n.flows.current()
	return database && vswitchd
}

// Close ends the connections. Calls that are under way fail, and so do later ones.
func (n *Native) Close() {
	n.db.close()
	n.flows.close()
}

// Session numbers the connections to vswitchd, 0 before the first. In another session it may be another vswitchd.
func (n *Native) Session() int64 { return n.sessions.Load() }

// NewTransaction implements Interface.
func (n *Native) NewTransaction() *Transaction {
	return &Transaction{}
}

// within calls f with the link's session, for at most the given time.
func within[S session](ctx context.Context, timeout time.Duration, l *link[S], f func(context.Context, S) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	s, err := l.get(limited)
	if err == nil {
		err = f(limited, s)
	}
	return blame(ctx, limited, timeout, err)
}

// blame tells the end of the caller's context from that of the time which one call, under the context limited, may take.
func blame(ctx, limited context.Context, timeout time.Duration, err error) error {
	switch {
	case err == nil || isVerdict(err):
		return err
	case ctx.Err() != nil && errors.Is(err, ctx.Err()) && !IsUnavailable(err):
		return err // it says so itself
	case ctx.Err() != nil:
		// Whatever failed then failed because of it.
		return fmt.Errorf("%w (%s)", ctx.Err(), err.Error())
	case limited.Err() != nil:
		return &unavailableError{fmt.Errorf("no answer in %v (%s)", timeout, err.Error())}
	}
	return err
}

// isVerdict reports whether Open vSwitch has said no, whatever the time since.
func isVerdict(err error) bool {
	return isRefusal(err) || IsPortError(err) || IsDatapathMismatch(err) || IsForeignBridge(err) || IsTooOld(err)
}

// An Event is something that Open vSwitch did by itself.
type Event struct {
	Kind EventKind
	Port Port // of PortChanged
}

// EventKind says what happened.
type EventKind int

const (
	// DatabaseConnected: the database answers, for the first time or again. Ports may have changed meanwhile.
	DatabaseConnected EventKind = iota + 1
	// SwitchConnected: vswitchd answers, for the first time or again. If it has started anew it has no flows.
	SwitchConnected
	// PortChanged: a port of the bridge has another OpenFlow number than before, -1 when it lost its device, 0 when it went: flows
	// with the old number are wrong. vswitchd keeps the numbers over its own restart, those that nobody asked for too, since it
	// finds them in the database. But a port whose device was away then gets another when the device comes.
	PortChanged
	// FlowsLost: vswitchd has thrown the flows away while the connection stayed, as it does when the bridge's fail mode changes: once
	// when somebody else changes it, and again when EnsureBridge corrects it.
	FlowsLost
)

type watcher struct {
	mu     sync.Mutex
	handle func(Event)
}

func (w *watcher) tell(e Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.handle(e)
}

// Watch keeps the connections up and calls handle for what happens from now on, until the context ends or Close. Who reads the
// state of the switch after Watch has begun misses nothing. The calls come one at a time; handle must not block.
func (n *Native) Watch(ctx context.Context, handle func(Event)) {
	w := &watcher{handle: handle}
	n.mu.Lock()
	n.watchers[w] = true
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		delete(n.watchers, w)
		n.mu.Unlock()
	}()
	var keepers sync.WaitGroup
	keepers.Go(func() { n.db.keep(ctx, func() { w.tell(Event{Kind: DatabaseConnected}) }) })
	keepers.Go(func() { n.flows.keep(ctx, func() { w.tell(Event{Kind: SwitchConnected}) }) })
	keepers.Wait()
}

// compareNumbers tells of numbers that changed while there was no connection.
func (n *Native) compareNumbers(former, now *database) {
	bridge, ok := former.bridge(n.bridge)
	if !ok {
		return
	}
	for _, p := range former.portsOf(bridge) {
		was, existed := former.iface(p.Name)
		is, exists := now.iface(p.Name)
		switch {
		case !existed || was.OFPort == nil:
		case !exists:
			n.onOFPort(now, was.gone())
		case !equalOptional(was.OFPort, is.OFPort):
			n.onOFPort(now, *is)
		}
	}
}

// onOFPort is called by the database.
func (n *Native) onOFPort(db *database, r interfaceRow) {
	if !n.owns(db, r.Name) {
		return
	}
	n.tell(Event{Kind: PortChanged, Port: r.port()})
}

// onFlush is called by the database.
func (n *Native) onFlush() { n.tell(Event{Kind: FlowsLost}) }

func (n *Native) tell(e Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for w := range n.watchers {
		w.tell(e)
	}
}

func (n *Native) errNoBridge() error {
	return &noBridgeError{n.bridge}
}
