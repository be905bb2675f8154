package native

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/ovn-kubernetes/libovsdb/cache"
	"github.com/ovn-kubernetes/libovsdb/client"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

const databaseName = "Open_vSwitch"

// An unanswered probe ends a session. The interval is the default of Open vSwitch; the main thread of a vswitchd that applies a bundle of
// 200,000 flows is busy for two seconds.
const (
	probeInterval = 5 * time.Second
	probeTimeout  = 15 * time.Second
)

// database is a session with ovsdb-server: transactions, and a copy of the monitored columns. The copy always contains this session's
// own transactions, because the server sends an update before the result of the transaction.
//
// libovsdb's reconnection is not used, because it cannot be stopped while the server is unreachable. A session is discarded together with
// its copy when it ends, and link creates a new one.
type database struct {
	client   client.Client
	cache    *cache.TableCache
	observer observer
	flushes  flushes

	ctx     context.Context // ends the session
	end     context.CancelFunc
	lost    chan struct{} // closed after the connection has ended
	workers sync.WaitGroup

	mu       sync.Mutex
	waiters  map[string][]chan struct{} // by the UUID of the row
	removing map[string]int             // deleted ports by name: the cur_cfg at which vswitchd has closed them
}

// observer receives changes of the database. Its functions must not block.
type observer struct {
	bridge   string
	onOFPort func(*database, interfaceRow) // the number of an interface changed or was removed
	onFlush  func()                        // vswitchd has deleted the bridge's flows
	onBridge func()                        // a column of the bridge changed, except its ports
}

// dialDatabase connects and creates the copy.
func dialDatabase(ctx context.Context, socket string, o observer) (*database, error) {
	schema, err := databaseModel()
	if err != nil {
		return nil, fmt.Errorf("OVSDB model: %w", err)
	}
	silent := logr.Discard() // failures are returned as errors
	c, err := client.NewOVSDBClient(schema, client.WithEndpoint("unix:"+socket), client.WithLogger(&silent))
	if err != nil {
		return nil, fmt.Errorf("OVSDB client: %w", err)
	}
	db := &database{
		client:   c,
		observer: o,
		flushes:  flushes{requests: make(chan struct{}, 1)},
		lost:     make(chan struct{}),
		waiters:  map[string][]chan struct{}{},
		removing: map[string]int{},
	}
	db.ctx, db.end = context.WithCancel(context.Background())
	// Before Connect: libovsdb reports a lost connection only to listeners that exist at that moment.
	db.workers.Go(db.attend)
	if err := db.connect(ctx); err != nil {
		db.close()
		return nil, ovs.NewUnavailable(fmt.Errorf("connect to OVSDB at %s: %w", socket, err))
	}
	db.workers.Go(db.probe)
	db.workers.Go(db.followFlushes)
	return db, nil
}

func (db *database) connect(ctx context.Context) error {
	if err := db.client.Connect(ctx); err != nil {
		return err
	}
	db.cache = db.client.Cache()
	db.cache.AddEventHandler(&cache.EventHandlerFuncs{
		AddFunc:    func(_ string, now model.Model) { db.rowChanged(nil, now) },
		UpdateFunc: func(_ string, old, now model.Model) { db.rowChanged(old, now) },
		DeleteFunc: func(_ string, old model.Model) { db.rowDeleted(old) },
	})
	_, err := db.client.Monitor(ctx, monitorOf(db.client))
	return err
}

// attend waits for the end of the session or the connection, and ends both.
func (db *database) attend() {
	defer close(db.lost)
	defer db.end()
	select {
	case <-db.client.DisconnectNotify():
	case <-db.ctx.Done():
		db.client.Close()
	}
}

// probe ends the session if the server does not answer.
func (db *database) probe() {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-db.ctx.Done():
			return
		}
		ctx, cancel := context.WithTimeout(db.ctx, probeTimeout)
		if err := db.client.Echo(ctx); err != nil {
			db.end()
		}
		cancel()
	}
}

func (db *database) ended() <-chan struct{} { return db.lost }

func (db *database) close() {
	db.end()
	db.workers.Wait()
}

// transact applies all operations or none. It fails with errConflict if the condition of a wait operation is not met.
func (db *database) transact(ctx context.Context, ops ...ovsdb.Operation) ([]ovsdb.OperationResult, error) {
	var results []ovsdb.OperationResult
	err := db.ask(ctx, func(ctx context.Context) (err error) {
		results, err = db.client.Transact(ctx, ops...)
		return err
	})
	if err != nil {
		return nil, ovs.NewUnavailable(fmt.Errorf("OVSDB transaction: %w", err))
	}
	failed, err := ovsdb.CheckOperationResults(results, ops)
	if len(failed) > 0 {
		err = failed[0]
	}
	var waited *ovsdb.TimedOut
	if errors.As(err, &waited) {
		return nil, errConflict
	}
	if err != nil {
		return nil, fmt.Errorf("OVSDB transaction: %w", err)
	}
	return results, nil
}

// ask calls the server. If the call fails before ctx ends, ask ends the session and returns after its end: once one caller has received an
// error, no other caller may read the copy of a lost connection.
func (db *database) ask(ctx context.Context, call func(context.Context) error) error {
	// libovsdb cannot close a connection while a call waits on it.
	callable, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(db.ctx, cancel)()
	err := call(callable)
	ending := db.ctx.Err() != nil
	if !ending && (err == nil || ctx.Err() != nil) {
		return err
	}
	db.end()
	select {
	case <-db.lost:
	case <-ctx.Done():
	}
	if ending {
		return errConnectionLost()
	}
	return err
}

func errConnectionLost() error {
	return ovs.NewUnavailable(errors.New("connection to OVSDB lost"))
}

// errConflict reports that another client changed the database between the read of the copy and the transaction.
var errConflict = errors.New("OVSDB transaction conflict: another client changes the same rows")

// change calls transact and requests a confirmation by vswitchd. It returns the results and the number for confirmed.
func (db *database) change(ctx context.Context, ops ...ovsdb.Operation) ([]ovsdb.OperationResult, int, error) {
	root, err := db.root()
	if err != nil {
		return nil, 0, err
	}
	self := whereUUID(root.UUID)
	ops = append(slices.Clone(ops),
		ovsdb.Operation{
			Op: ovsdb.OperationMutate, Table: tableRoot, Where: self,
			Mutations: []ovsdb.Mutation{*ovsdb.NewMutation("next_cfg", ovsdb.MutateOperationAdd, 1)},
		},
		ovsdb.Operation{Op: ovsdb.OperationSelect, Table: tableRoot, Where: self, Columns: []string{"next_cfg"}})
	results, err := db.transact(ctx, ops...)
	if err != nil {
		return nil, 0, err
	}
	rows := results[len(ops)-1].Rows
	if len(rows) != 1 {
		return nil, 0, errConflict // the root row was replaced
	}
	cfg, ok := rows[0]["next_cfg"].(float64)
	if !ok {
		return nil, 0, fmt.Errorf("OVSDB: next_cfg is %v, want a number", rows[0]["next_cfg"])
	}
	return results, int(cfg), nil
}

// sync waits until the copy contains all changes that the server made before the call.
func (db *database) sync(ctx context.Context) error {
	if err := db.ask(ctx, db.client.Echo); err != nil {
		return ovs.NewUnavailable(fmt.Errorf("database: %w", err))
	}
	return nil
}

// confirmed waits until vswitchd has processed the change with that number.
func (db *database) confirmed(ctx context.Context, cfg int) error {
	root, err := db.root()
	if err != nil {
		return err
	}
	return db.await(ctx, root.UUID, func() bool {
		root, err := db.root()
		return err == nil && root.CurCfg >= cfg
	})
}

// await waits until ready returns true. It calls ready at once, and whenever the row with that UUID is changed or deleted.
func (db *database) await(ctx context.Context, row string, ready func() bool) error {
	wake := make(chan struct{}, 1)
	db.mu.Lock()
	db.waiters[row] = append(db.waiters[row], wake)
	db.mu.Unlock()
	defer db.removeWaiter(row, wake)
	for !ready() {
		select {
		case <-wake:
		case <-db.lost:
			return errConnectionLost()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (db *database) removeWaiter(row string, wake chan struct{}) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.waiters[row] = slices.DeleteFunc(db.waiters[row], func(c chan struct{}) bool { return c == wake })
	if len(db.waiters[row]) == 0 {
		delete(db.waiters, row)
	}
}

// rowChanged processes a changed or new row (old is nil). One goroutine calls rowChanged and rowDeleted.
func (db *database) rowChanged(old, now model.Model) {
	switch row := now.(type) {
	case *rootRow:
		db.flushes.processed(row.NextCfg)
		db.wake(row.UUID)
	case *interfaceRow:
		db.wake(row.UUID)
		before, ok := old.(*interfaceRow)
		if ok && before.OFPort != nil && !equalOptional(before.OFPort, row.OFPort) {
			db.observer.onOFPort(db, *row)
		}
	case *bridgeRow:
		before, ok := old.(*bridgeRow)
		if !ok || row.Name != db.observer.bridge {
			return
		}
		if !row.sameSettings(before) {
			db.observer.onBridge()
		}
		if row.flushesAfter(before) {
			db.flushes.expect()
		}
	}
}

// rowDeleted processes a deleted row.
func (db *database) rowDeleted(old model.Model) {
	switch row := old.(type) {
	case *rootRow:
		db.wake(row.UUID)
	case *interfaceRow:
		db.wake(row.UUID)
		db.observer.onOFPort(db, row.withoutNumber())
	}
}

func (db *database) wake(row string) {
	db.mu.Lock()
	defer db.mu.Unlock()
	for _, c := range db.waiters[row] {
		select {
		case c <- struct{}{}:
		default: // a wake-up is pending already
		}
	}
}

// Access to the copy. Each read of a table waits until an update of several rows is complete.

func (db *database) root() (*rootRow, error) {
	for _, r := range db.cache.Table(tableRoot).RowsShallow() {
		return r.(*rootRow), nil
	}
	return nil, fmt.Errorf("the database of Open vSwitch has no root row; start Open vSwitch by its service, or run `ovs-vsctl init`")
}

// bridge returns the bridge of that name.
func (db *database) bridge(name string) (*bridgeRow, bool) {
	return lookup(db, tableBridge, &bridgeRow{Name: name})
}

func (db *database) port(name string) (*portRow, bool) {
	return lookup(db, tablePort, &portRow{Name: name})
}

func (db *database) iface(name string) (*interfaceRow, bool) {
	return lookup(db, tableInterface, &interfaceRow{Name: name})
}

// lookup finds a row by the name in key, which is an index of all these tables.
func lookup[R any](db *database, table string, key *R) (*R, bool) {
	_, row, err := db.cache.Table(table).RowByModel(key)
	if err != nil || row == nil { // an error means that the key is not an index
		return nil, false
	}
	return row.(*R), true
}

func rowAt[R any](db *database, table, uuid string) (*R, bool) {
	row, ok := db.cache.Table(table).Row(uuid).(*R)
	return row, ok
}
