// Package native programs Open vSwitch over its sockets: OpenFlow and unixctl of ovs-vswitchd, OVSDB of ovsdb-server.
package native

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// DefaultRunDir is the directory of Open vSwitch's sockets, if no option sets another.
const DefaultRunDir = "/var/run/openvswitch"

const (
	// answerTimeout is the time limit of one call. vswitchd needs 40 ms to add a port to 500.
	answerTimeout = 10 * time.Second
	// replaceTimeout is the time limit of Replace. To replace 200,000 flows takes about two seconds.
	replaceTimeout = 60 * time.Second
	// dialTimeout is the time limit for connecting, which includes a copy of a database with thousands of ports.
	dialTimeout = 5 * time.Second
)

// Native programs a bridge over the sockets of ovsdb-server and ovs-vswitchd, without running a program.
//
// It connects on first use and retains the connections. After a loss it reconnects with the next call, or at once while Watch runs.
type Native struct {
	bridge  string
	runDir  string
	timeout time.Duration // of one call, except Replace and dumps
	undo    time.Duration // for undoing a failed call, after its own time limit
	db      *link[*database]
	flows   *link[*switchConn]

	monitored []int // tables; nil: all

	sessions atomic.Int64 // number of sessions with vswitchd so far

	mu       sync.Mutex
	watchers map[*watcher]bool
}

var _ ovs.Interface = (*Native)(nil)

// New returns a backend for the bridge of the Open vSwitch whose sockets are in runDir, which is DefaultRunDir except in tests. The
// caller must Close it.
func New(bridge, runDir string) *Native {
	n := &Native{bridge: bridge, runDir: runDir, timeout: answerTimeout, undo: answerTimeout, watchers: map[*watcher]bool{}}
	var previous *database
	n.db = newLink(dialTimeout, func(ctx context.Context) (*database, error) {
		db, err := dialDatabase(ctx, filepath.Join(runDir, "db.sock"), observer{bridge: bridge, onOFPort: n.onOFPort, onFlush: n.onFlush, onBridge: n.onBridge})
		if err != nil {
			return nil, err
		}
		if previous != nil {
			n.compareNumbers(previous, db)
			db.flushes.expect() // the fail mode may have changed in the meantime
		}
		previous = db
		n.notify(Event{Kind: DatabaseConnected})
		return db, nil
	})
	n.flows = newLink(dialTimeout, func(ctx context.Context) (*switchConn, error) {
		c, err := dialSwitch(ctx, filepath.Join(runDir, bridge+".mgmt"))
		if err != nil {
			return nil, err
		}
		if err = c.monitorChanges(ctx, n.monitored, n.onForeignChange); err == nil {
			err = c.matchFragments(ctx)
		}
		if err != nil {
			c.close()
			return nil, err
		}
		c.number = n.sessions.Add(1)
		n.notify(Event{Kind: SwitchConnected})
		return c, nil
	})
	return n
}

// Connected reports whether both the database and vswitchd are connected.
func (n *Native) Connected() bool {
	_, database := n.db.current()
	_, vswitchd := n.flows.current()
	return database && vswitchd
}

// Close closes the connections. Current and later calls fail.
func (n *Native) Close() {
	n.db.close()
	n.flows.close()
}

// Session returns the number of the current connection to vswitchd, 0 before the first. A different session may be with a restarted vswitchd.
func (n *Native) Session() int64 { return n.sessions.Load() }

// NewTransaction implements Interface.
func (n *Native) NewTransaction() *ovs.Transaction {
	return &ovs.Transaction{}
}

// within calls f with the link's session and a context that is limited by timeout.
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
	return timeoutError(ctx, limited, timeout, err)
}

// timeoutError returns the error of a call: that of ctx if the caller's context has ended, an unavailable error if only limited, the context of
// the call, has.
func timeoutError(ctx, limited context.Context, timeout time.Duration, err error) error {
	switch {
	case err == nil || isFinal(err):
		return err
	case ctx.Err() != nil && errors.Is(err, ctx.Err()) && !ovs.IsUnavailable(err):
		return err // wraps the context's error already
	case ctx.Err() != nil:
		// The end of the context caused the failure.
		return fmt.Errorf("%w (%s)", ctx.Err(), err.Error())
	case limited.Err() != nil:
		return ovs.NewUnavailable(fmt.Errorf("no answer in %v (%s)", timeout, err.Error()))
	}
	return err
}

// isFinal reports whether Open vSwitch has rejected the call, whatever time has passed.
func isFinal(err error) bool {
	return ovs.IsRefusal(err) || ovs.IsPortError(err) || ovs.IsDatapathMismatch(err) || ovs.IsForeignBridge(err) || ovs.IsTooOld(err)
}

// Event is a change that Open vSwitch made by itself, or a new connection.
type Event struct {
	Kind  EventKind
	Port  ovs.Port // of PortChanged
	Table int      // of ForeignChange
}

// EventKind is the type of an Event.
type EventKind int

const (
	// DatabaseConnected: the database is connected, for the first time or again. Ports may have changed in the meantime.
	DatabaseConnected EventKind = iota + 1
	// SwitchConnected: vswitchd is connected, for the first time or again. If it was restarted, it has no flows.
	SwitchConnected
	// PortChanged: the OpenFlow number of a port of the bridge changed, to -1 if the port lost its device, to 0 if the port was deleted.
	// Flows with the previous number are invalid. A restarted vswitchd assigns the numbers in the database, including those that no
	// client requested. But a port whose device was missing at that time gets another number when the device returns.
	PortChanged
	// FlowsLost: vswitchd deleted all flows although the connection persists. It does so when the bridge's fail mode changes: when another
	// client changes it, and again when EnsureBridge corrects it. After the database was disconnected it may have done so. See AwaitEvents.
	FlowsLost
	// BridgeChanged: a setting of the bridge in the database changed, by this or another client.
	BridgeChanged
	// ForeignChange: another client, a learn action, a timeout or vswitchd itself changed flows of Event.Table, or groups or meters (NoTable). Changes by
	// this backend, and those of tables without a monitor, cause no event.
	ForeignChange
)

// NoTable in Event.Table: the change may concern groups, meters, or flows of any table.
const NoTable = -1

type watcher struct{ handle func(Event) }

// Watch maintains the connections and calls handle for each event until the context ends or Close is called. A caller that reads the state of
// the switch after Watch has begun misses no change. The calls of handle do not overlap; handle must not block, nor call Native. The event of a new connection
// precedes the results of calls that use it.
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
	var both sync.WaitGroup
	both.Go(func() { n.db.maintain(ctx) })
	both.Go(func() { n.flows.maintain(ctx) })
	both.Wait()
}

// compareNumbers notifies watchers of port numbers that changed while there was no connection.
func (n *Native) compareNumbers(previous, current *database) {
	bridge, ok := previous.bridge(n.bridge)
	if !ok {
		return
	}
	for _, p := range previous.portsOf(bridge) {
		was, existed := previous.iface(p.Name)
		is, exists := current.iface(p.Name)
		switch {
		case !existed || was.OFPort == nil:
		case !exists:
			n.onOFPort(current, was.withoutNumber())
		case !equalOptional(was.OFPort, is.OFPort):
			n.onOFPort(current, *is)
		}
	}
}

func (n *Native) onOFPort(db *database, r interfaceRow) {
	if !n.owns(db, r.Name) {
		return
	}
	n.notify(Event{Kind: PortChanged, Port: r.port()})
}

func (n *Native) onFlush() { n.notify(Event{Kind: FlowsLost}) }

func (n *Native) onBridge() { n.notify(Event{Kind: BridgeChanged}) }

func (n *Native) onForeignChange(table int) { n.notify(Event{Kind: ForeignChange, Table: table}) }

func (n *Native) notify(e Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for w := range n.watchers {
		w.handle(e)
	}
}

func (n *Native) errNoBridge() error {
	return ovs.NewNoBridge(n.bridge)
}
